"""Detects which optimizer's step ends a step of the training.

The order in which optimizers step is nearly all the evidence:

- one that has never stepped before begins a training of its own, whether those of an earlier one are still alive
  or not (a model for each fold of the data): each of its steps counts;
- those that come back by turns, each for several steps in a row, are trainings in turns (clients of a federated
  one): each step of each counts;
- those of which one steps but once at a time go round together (GAN, one for each group of parameters): the round
  is one step, which ends with the one that came last;
- one that steps once after others that are made anew each time (the inner loops of meta-learning), and is older
  than those, closes a step with them.

Only in the last case a new optimizer is not believed to begin a training: as long as the outer one may be waited
for. In the first round, before that has stepped, it is any that was there when the first backward pass began.

When Python frees an optimizer decides nothing here, but that one that is no more is not waited for.
"""

from __future__ import annotations

import weakref
from typing import Any

LOST_CLOSER = 64
"""Steps of others without one of the optimizer that used to close a step, until another one does. More than a
GAN's discriminator takes for one of the generator."""
ALONE = 4
"""Steps in a row of one that may be an inner loop's, after which it is none."""
FOUNDER = 0
"""Age of those that were there when the training began; the others' is in which order they came."""
NOBODY = -1


class _Stepped:
    """State of an optimizer that has stepped."""

    __slots__ = ("age", "reference", "run", "turns", "under")

    def __init__(self, age: int) -> None:
        self.age = age
        self.reference: weakref.ref[Any] | None = None
        self.run = 0
        """How many steps in a row it has taken last."""
        self.under = NOBODY
        """Age of the one that closed steps when this one last began to step and did not take over."""
        self.turns = 0
        """How often it has come back and was taken for an inner loop's."""


class StepEndDetector:
    """Notified of the end of each optimizer's step; keeps no optimizer alive.

    The loop itself handles the usual case: where `number` is the optimizer's id() and there were no `others`, it
    adds one to `run`.
    """

    __slots__ = (
        "_awaited",
        "_closer",
        "_doubt",
        "_founders",
        "_last",
        "_lost",
        "_outer",
        "_round",
        "_seen",
        "_youngest",
        "number",
        "others",
        "run",
    )

    def __init__(self) -> None:
        self.number: int | None = None
        """id() of the optimizer that closes steps; None when it is no more."""
        self.run = 0
        """How many steps in a row it has taken last."""
        self.others = 0
        """Steps of others since then."""
        self._closer: _Stepped | None = None
        self._last: _Stepped | None = None
        self._seen: dict[int, _Stepped] = {}
        self._youngest = FOUNDER
        self._founders: list[weakref.ref[Any]] = []
        self._awaited: list[weakref.ref[Any]] = []
        """Founders that have not stepped, and may yet close the first step."""
        self._round = FOUNDER
        """Age of the youngest when this round began."""
        self._outer = False
        """True if the closer has closed what younger ones did that were made for the occasion."""
        self._lost: _Stepped | None = None
        """The closer that was given up last."""
        self._doubt = 1
        """How many times as patient as at first, since it came back after all."""

    def remember_optimizers(self, optimizers: list[Any]) -> None:
        """Store the optimizers that existed when the training began."""
        self._founders = [weakref.ref(optimizer) for optimizer in optimizers]
        self._awaited = [weakref.ref(optimizer) for optimizer in optimizers if id(optimizer) not in self._seen]

    def optimizer(self) -> Any:
        """Return the optimizer that closes steps; None when there is none, or it is no more."""
        reference = None if self._closer is None else self._closer.reference
        return None if reference is None else reference()

    def ends_step(self, optimizer: Any) -> bool:
        """Return True if this step ends a step of the training: of another than `number`, or of that one after
        others."""
        one = self._seen.get(id(optimizer))
        new = one is None
        if one is None:
            one = self._add_optimizer(optimizer)
        continues, self._last = one is self._last, one
        if one is self._closer:
            self._outer = self._youngest > self._round and self.run == 1
            self._round = self._youngest
            self._awaited.clear()
            self.run, self.others = 1, 0
            return True
        self.others += 1
        before = one.run
        one.run = before + 1 if continues else 1
        if new or self._closer is None:
            takes_over = self._begins(one)
        else:
            takes_over = self._returns(one, self._closer, before, continues)
        if takes_over or self._gives_up(one):
            self._take_over(one, id(optimizer))
            return True
        return False

    def _begins(self, one: _Stepped) -> bool:
        """Return True if one that has never stepped before closes steps from now on."""
        if one.age == FOUNDER:
            self._closes_around(self._youngest > FOUNDER)
            return True
        if self._closer is not None and self._is_inner(one):
            return False
        self._outer = False
        return True

    def _returns(self, one: _Stepped, closing: _Stepped, before: int, continues: bool) -> bool:
        """Return True if one that has stepped earlier, `before` times in a row, takes over from the closer."""
        older = one.age < closing.age
        passed_over = one.under not in (NOBODY, closing.age) and before == 1
        if not continues:
            one.under = closing.age
        if one is self._lost:
            self._doubt *= 2
        elif self._is_inner(one):
            one.turns += not continues
            return False
        if one is self._lost or (older and (one.age == FOUNDER or passed_over)):
            self._closes_around(older and before == 1)
            return True
        if self.number is None or (self.run > 1 and (before > 1 or one.run > 1)):
            self._outer = False
            return True
        return False

    def _closes_around(self, outer: bool) -> None:
        """An older one takes over: `outer` if it steps but once, after such as this closer."""
        self._outer = outer
        if outer:
            self._doubt = max(self._doubt, 2 * self.run // ALONE)

    def _is_inner(self, one: _Stepped) -> bool:
        """Return True if an outer optimizer may be waited for, of which this one's steps are the inner loop."""
        if one.age == FOUNDER:
            return False
        if self._outer and self.run == 1 and self.number is not None:
            return True
        if self._awaited:
            waits = self.run <= ALONE  # longer, and it is a training that has ended
            self._awaited = [founder for founder in self._awaited if waits and founder() is not None]
        return bool(self._awaited)

    def _gives_up(self, one: _Stepped) -> bool:
        """Return True if the closer, or the one that is awaited, is not going to step any more."""
        inner = self._is_inner(one) and (one.run > ALONE * self._doubt or one.turns > self._doubt)
        if not inner and self.others <= LOST_CLOSER * self._doubt:
            return False
        self._lost = self._closer
        self._outer = False
        self._awaited.clear()
        return True

    def _take_over(self, one: _Stepped, number: int) -> None:
        if self._closer is not None:
            self._closer.run = self.run
        self._closer, self.number = one, number
        self._round = self._youngest
        self.run, self.others = one.run, 0
        one.turns = 0

    def _add_optimizer(self, optimizer: Any) -> _Stepped:
        if any(founder() is optimizer for founder in self._founders):
            one = _Stepped(FOUNDER)
            self._awaited = [founder for founder in self._awaited if founder() is not optimizer]
        else:
            self._youngest += 1
            one = _Stepped(self._youngest)
        number = id(optimizer)
        one.reference = weakref.ref(optimizer, lambda _: self._forget(number))
        self._seen[number] = one
        return one

    def _forget(self, number: int) -> None:
        # Before another object can have its id.
        self._seen.pop(number, None)
        if number == self.number:
            self.number = None
