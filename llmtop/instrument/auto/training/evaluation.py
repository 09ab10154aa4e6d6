"""An evaluation between two steps: forwards that no backward pass follows, and the waits for their batches.

No call marks its begin or end, so it is detected from what the script does:

- a module that is trained is called without gradients and in evaluation mode, and neither does a batch of the
  training's lie ready nor one of what may be its next epoch: it is one. A teacher, or an average of the weights,
  is another object; a generator that makes samples for its discriminator is in training mode; what is called
  while a step is open is part of that;
- a second batch of another iterator than the training's is asked for after a forward that no backward pass
  followed: it is one, whatever module is called, and it began with the first batch of that iterator.

Where no loader is involved it may be a rollout of reinforcement learning, which is a phase of its own.

Forwards and waits are each timed as they happen, so that they nest with whatever else is timed; what lies between
two of them (copies, metrics) is added at the later one, less phases of the script's own there. It is over when the
training goes on. Only the time after its last forward or wait cannot be separated from what follows.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING

from llmtop.instrument.record.recorder import Phase, phase_of
from llmtop.naming.own_phases import DATALOAD

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder import Recorder


class Evaluation:
    """Possible evaluation, from its first sign on. It keeps neither iterator nor module alive."""

    __slots__ = (
        "_computed",
        "_counted",
        "_evaluation",
        "_recorder",
        "_rollout",
        "_since",
        "_waited",
        "_waits",
        "phase",
    )

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._evaluation, self._rollout = phase_of("evaluation"), phase_of("rollout")
        self.phase: Phase = self._evaluation
        """Which of the two it is."""
        self._waits: Callable[[], object] | None = None
        """Returns the iterator that is not the training's, as far as is known: a weak reference."""
        self._waited = 0, 0
        """Time and count of the waits for batches before its first."""
        self._computed = False
        """True if a forward that no backward pass followed came after its first batch."""
        self._since = 0
        """Up to when what belongs to the evaluation is counted, as perf_counter ns."""
        self._counted = 0
        """Total of all phases at that time, in ns."""

    @property
    def under_way(self) -> bool:
        """Return True if it is one, and goes on."""
        return self._recorder.evaluates

    def batch_is_asked_for(self, waits: object) -> Phase | None:
        """Return a batch of an iterator that is not the training's, between steps; returns the phase if that is
        this."""
        if self._waits is None or self._waits() is not waits:
            self.begins_with(waits)
            return None
        if not self.under_way and self._computed:
            self._begin()
        if not self.under_way:
            return None
        self._count()
        return self.phase

    def begins_with(self, waits: object) -> None:
        """The first batch of an iterator: of the training's next epoch, or of an evaluation."""
        self._recorder.evaluates = False
        self._waits = weakref.ref(waits)
        self._waited = self._waits_counted()
        self._computed = False
        self._mark(perf_counter_ns())

    def computes(self) -> None:
        """A forward has ended that may be followed by a backward pass."""
        self._computed = self._waits is not None

    def may_be_training(self, feed: object) -> bool:
        """Return True if what is computed now may be part of the step that follows, as the forward of a teacher
        is: on a batch of the training's, or of an iterator that may be the training's from now on.

        Args:
            feed: the iterator of the training's batches, None if it has come to its end.
        """
        if self._waits is None:
            return self._waits_counted()[1] > 0
        return feed is None or self._waited[1] > 0

    def goes_on(self, *, as_judged: bool) -> bool:
        """Return a forward without gradients, between steps; returns whether it is part of an evaluation.

        Args:
            as_judged: whether it would be one by itself.
        """
        if not self.under_way:
            self.computes()
            if not as_judged:
                return False
            self._begin()
        self._count()
        return True

    def end(self) -> Callable[[], object] | None:
        """The training goes on; returns the iterator that its batch came from if that is a new one."""
        feed = None if self.under_way else self._waits
        self._recorder.evaluates = False
        self._waits = None
        self._computed = False
        self.phase = self._evaluation
        return feed

    def _begin(self) -> None:
        """It is one: the waits for its batches so far are part of it."""
        r = self._recorder
        r.evaluates = True
        if self._waits is None and _is_rollout():
            self.phase = self._rollout
        if self._waits is None:
            self._mark(perf_counter_ns())
            return
        node = r.root.children.get(DATALOAD)
        if node is not None:
            ns, count = self._waited
            moved = r.cells[node.slot] - ns
            r.cells[node.slot : node.slot + 2] = ns, count
            r.add_phase(self.phase.name, self._since, moved)

    def _count(self) -> None:
        """Add what lies since the last part of it and was in no phase."""
        now = perf_counter_ns()
        between = now - self._since - (self._all_counted() - self._counted)
        if between > 0:
            self._recorder.add_phase(self.phase.name, self._since, between)
        self._mark(now)

    def _mark(self, now: int) -> None:
        self._since, self._counted = now, self._all_counted()

    def _all_counted(self) -> int:
        r = self._recorder
        return sum(r.cells[node.slot] for node in r.root.children.values() if node.slot)

    def _waits_counted(self) -> tuple[int, int]:
        node = self._recorder.root.children.get(DATALOAD)
        return (0, 0) if node is None else (self._recorder.cells[node.slot], self._recorder.cells[node.slot + 1])


def _is_rollout() -> bool:
    """Return True if a policy acts in an environment, rather than is evaluated; no loader gives it its batches.

    The functions that are running name it; where they do not, a library of environments has been imported.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            break
        name = frame.f_code.co_name
        if "rollout" in name or "experience" in name:
            return True
        if name.startswith(("eval", "valid", "test", "estimate")):
            return False
        frame = frame.f_back
    return has_environments()


def has_environments() -> bool:
    """Return True if a library of environments for reinforcement learning has been imported."""
    return not _ENVIRONMENTS.isdisjoint(sys.modules)


_FRAMES = 60
_ENVIRONMENTS = frozenset({"gymnasium", "gym", "pettingzoo", "dm_env", "envpool"})
