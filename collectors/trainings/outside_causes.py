"""Activities of a training's host outside of phases: shares of recent samples, as seconds per step."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from statistics import median
from typing import Final, Literal, NamedTuple

from collectors.trainings.gpu_waits import MOST_MESSAGES
from llmtop.model.snapshot import Cause
from llmtop.protocol import wire
from llmtop.protocol.training_facts import CODE_AFTER, GARBAGE_COLLECTION, SampledStep

MOST_CAUSES: Final = 5
"""Most causes reported per training."""
LEAST_SECONDS: Final = 15.0
"""Least time covered by the sampled steps in use: a message covers about a second."""
SWITCH_SECONDS: Final = 0.005
"""Python's usual switch interval: for so long a thread waits for the lock before it requests it."""
LEAST_KEPT: Final = 1.5
"""Samples of places that keep Python's lock after a phase, from which these stand for what ran unseen there: two
samples, as one is no cause. Each shows code that keeps the lock for over 5 ms, and so has 5 ms unseen."""
CAUSES_SECONDS: Final = 60.0
"""Least time covered by the samples of causes. At six samples a second, 15 s of a training that is outside for a
third of its steps had 2 to 10 samples with a line: too few to separate two lines (docs/measurements.md)."""


LEAST_SAMPLED: Final = 5
"""Sampled steps from which the share without waits for a CPU is known. They differ little without those waits."""
LEAST_QUEUED: Final = 0.2
"""Share of these steps in waits for a CPU, below which the clock tells the share of the step: at 12 to 18 % both
differed by under a point."""


class _SampledSteps(NamedTuple):
    """The sampled steps of a message, with sums that each look needs."""

    received_at: float
    """Monotonic seconds."""
    steps: list[SampledStep]
    queued_ns: int
    ran_inside_ns: int


class _Found(NamedTuple):
    """Kept part of a message: of eight ranks there are two thousand."""

    received_at: float
    """Monotonic seconds."""
    samples: int
    found: tuple[tuple[str, int], ...]
    """Activities outside of phases with their time in ns."""
    kept_after: tuple[tuple[str, str, int], ...]
    """Activities that kept Python's lock until it was requested, with the phase before."""
    placed_after: tuple[tuple[str, str, int], ...]
    """Activities that had given it up since, with the phase before."""
    early: tuple[tuple[str, int], ...]
    """Time of activities without a line, from before the place of the phase before was known, by that phase."""


class _Sums:
    """Sums over kept messages, in ns: of eight ranks some 500 are kept, and eight come and go in a second."""

    def __init__(self) -> None:
        self.samples = 0
        self.spent: Counter[str] = Counter()
        """Time by activity."""
        self.kept: dict[str, Counter[str]] = {}
        """Time by phase, of the places that kept Python's lock after it."""
        self.placed: dict[str, Counter[str]] = {}
        """Likewise of those that had given it up since."""
        self.early: Counter[str] = Counter()
        """Time without a line from before the place of a phase was known, by phase."""

    def add(self, message: _Found, sign: Literal[1, -1]) -> None:
        """Add a message, or take one away again."""
        self.samples += sign * message.samples
        for what, ns in message.found:
            _add(self.spent, what, sign * ns)
        for places, after in ((self.kept, message.kept_after), (self.placed, message.placed_after)):
            for what, phase, ns in after:
                of_phase = places.setdefault(phase, Counter())
                _add(of_phase, _place(what), sign * ns)
                if not of_phase:
                    del places[phase]
        for phase, ns in message.early:
            _add(self.early, phase, sign * ns)


def _add(counter: Counter[str], key: str, ns: int) -> None:
    """Add to a counter, which keeps no zeros: a long training has lines without end."""
    value = counter[key] + ns
    if value:
        counter[key] = value
    else:
        del counter[key]


class OutsideCauses:
    """Keeps the causes of the last messages, and for how long each was seen."""

    def __init__(self) -> None:
        self._sampled: deque[_SampledSteps] = deque()
        self._sampled_number = self._queued_ns = self._ran_inside_ns = 0
        """Sums over these."""
        self._messages: deque[_Found] = deque()
        self._sums = _Sums()
        """Sums over these."""
        self._open: deque[_Found] = deque(maxlen=MOST_MESSAGES)
        """Messages since the last step ended: the line of a hang is no part of the steps before it."""

    def add(self, message: wire.Outside) -> None:
        """Ingest a message (after `bounds`); it counts once a step has ended."""
        now = time.monotonic()
        found = message.found
        kept_after = tuple([(what, phase, found[what]) for what, phase in message.kept_after.items()])
        placed_after = tuple([(what, phase, found[what]) for what, phase in message.placed_after.items()])
        early = tuple(message.early.items())
        self._open.append(_Found(now, message.samples, tuple(found.items()), kept_after, placed_after, early))
        if message.sampled:
            queued = sum([one.queued_ns for one in message.sampled])
            ran = sum([one.ran_inside_ns for one in message.sampled])
            self._sampled.append(_SampledSteps(now, message.sampled, queued, ran))
            self._sampled_number += len(message.sampled)
            self._queued_ns += queued
            self._ran_inside_ns += ran
            self._drop_sampled(-math.inf)

    def step_ended(self) -> None:
        """Assign what was reported since the last step to the step that is known now."""
        for message in self._open:
            self._messages.append(message)
            self._sums.add(message, 1)
        self._open.clear()
        self._drop_messages(-math.inf)

    def _drop_messages(self, since: float) -> None:
        """Drop what came before an instant, in monotonic seconds, and what is too much: a window only moves on."""
        messages = self._messages
        while messages and (messages[0].received_at < since or len(messages) > MOST_MESSAGES):
            self._sums.add(messages.popleft(), -1)

    def _drop_sampled(self, since: float) -> None:
        messages = self._sampled
        while messages and (messages[0].received_at < since or len(messages) > MOST_MESSAGES):
            oldest = messages.popleft()
            self._sampled_number -= len(oldest.steps)
            self._queued_ns -= oldest.queued_ns
            self._ran_inside_ns -= oldest.ran_inside_ns

    def work_pct(self, window_seconds: float | None, overhead_seconds: float | None) -> float | None:
        """Return the share of a step in no phase in percent, without waits for a CPU; None where there are few.

        Args:
            window_seconds: as for `figures`.
            overhead_seconds: llmtop's own work per step, which lies between phases; None where unknown.
        """
        since = time.monotonic() - max(LEAST_SECONDS, window_seconds or 0.0)
        self._drop_sampled(since)
        number = self._sampled_number
        if number < LEAST_SAMPLED:
            return None
        queued, ran = self._queued_ns / number, self._ran_inside_ns / number
        if queued < LEAST_QUEUED * (queued + ran):  # the usual case, where what else is in the sum changes nothing
            return None
        lately = [step for one in self._sampled for step in one.steps]
        # Python's lock is free when the thread that had it gets a CPU: such sleeps are long, and in few steps.
        outside = sum([one.ran_outside_ns for one in lately]) / number
        outside += median([one.slept_outside_ns for one in lately])
        inside = ran + median([one.slept_inside_ns for one in lately])
        outside = max(0.0, outside - 1e9 * (overhead_seconds or 0.0))
        if queued < LEAST_QUEUED * (queued + inside + outside) or not inside:
            return None
        return 100.0 * outside / (inside + outside)

    def figures(self, outside_seconds: float | None, window_seconds: float | None) -> tuple[Cause, ...]:
        """Return the largest of what was seen, as parts of the time outside phases.

        Args:
            outside_seconds: mean a step in no phase; None where that is not known.
            window_seconds: what that is over.
        """
        if not outside_seconds:
            return ()
        since = time.monotonic() - max(CAUSES_SECONDS, window_seconds or 0.0)
        self._drop_messages(since)
        sums, samples = self._sums, self._sums.samples
        seen: dict[str, Counter[str]] = {}
        for what, ns in sums.spent.items():
            seen.setdefault(_place(what), Counter())[what] = ns
        total = sum(words.total() for words in seen.values())
        least_ns = LEAST_KEPT * total / samples if samples else math.inf
        tail_ns = SWITCH_SECONDS * total / outside_seconds
        times: dict[str, float] = {place: words.total() for place, words in seen.items()}
        _place_early(times, sums.placed, sums.early, least_ns)
        times = _with_unseen(times, sums.kept, least_ns, tail_ns)
        largest = sorted(filter(None, times), key=lambda place: -times[place])[:MOST_CAUSES]
        return tuple(
            Cause(
                what=_most_frequent(seen[place]),
                seconds=outside_seconds * times[place] / total,
                samples=round(samples * seen[place].total() / total) if samples else None,
            )
            for place in largest
        )


def _place_early(
    times: dict[str, float], placed: dict[str, Counter[str]], early: Counter[str], least_ns: float
) -> None:
    """Give time from before a phase's place was known to the places at which later samples after that phase were.

    Args:
        times: time of each place, in ns; is changed.
        placed: by phase, for how long each place was seen after it, in ns.
        early: by phase, the time without a line from before that.
        least_ns: below which the places after a phase are too seldom seen.
    """
    for phase, ns in early.items():
        places, unseen = placed.get(phase), f"{CODE_AFTER}{phase}"
        if places is None or places.total() < least_ns or unseen not in times:
            continue
        moved = min(times[unseen], ns)
        times[unseen] -= moved
        for place, part in places.items():
            times[place] += moved * part / places.total()


def _with_unseen(
    spent: dict[str, float], kept: dict[str, Counter[str]], least_ns: float, tail_ns: float
) -> dict[str, float]:
    """Return the time of each place with its part of the time of code whose line was not seen.

    Code that keeps Python's lock is seen but for its last 5 ms. So the places seen after a phase get the unseen
    time after that phase in proportion: 5 ms of each step, or as much again as they were seen for.

    Args:
        spent: time of each place, in ns.
        kept: by phase, for how long each place was seen to keep the lock after it, in ns.
        least_ns: below which the places after a phase are too seldom seen.
        tail_ns: the part of `spent` that 5 ms of each step are.
    """
    times: dict[str, float] = dict(spent)
    for phase, places in kept.items():
        unseen = f"{CODE_AFTER}{phase}"
        total = places.total()
        if total < least_ns or unseen not in times:
            continue
        moved = min(times[unseen], max(total, tail_ns))
        times[unseen] -= moved
        for place, ns in places.items():
            times[place] += moved * ns / total
    return {place: ns for place, ns in times.items() if ns > 0}


def _most_frequent(words: Counter[str]) -> str:
    """Return the words of a place that most of its time has; garbage is collected at most lines sometimes, so one
    is named only with most of that time."""
    what, most = words.most_common(1)[0]
    if what.startswith(GARBAGE_COLLECTION) and 2 * most < words.total():
        return GARBAGE_COLLECTION
    return what


def _place(what: str) -> str:
    """Return the line that words begin with ("train.py:57"): a line has several calls; else all words.

    Collections of garbage are one place, wherever they start.
    """
    if what.startswith(GARBAGE_COLLECTION):
        return GARBAGE_COLLECTION
    place = what.partition(" ")[0]
    return place if place.rpartition(":")[2].isdigit() else what
