"""The whole steps of the last seconds of one training, and what they come to.

Sums are kept as steps come and go: with eight trainings, adding up hundreds of steps and their phases for every
snapshot was the dearest thing that the hub did. Steps leave the window in blocks of a few hundredths of a second,
so that steps of a millisecond cost no more memory than those of a second; a longer one is a block of its own.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from collectors.trainings.late_steps import pop_old
from llmtop.model.gpu_busy import WINDOW_SECONDS
from llmtop.model.snapshot import Phase, Step

RECENT_SECONDS = WINDOW_SECONDS
"""Window of the recent figures. A change shows within it; a shorter mean follows every hiccup of a loader."""
LEAST_STEPS = 5
"""Number of recent steps, however long they are."""
BLOCK_SECONDS = RECENT_SECONDS / 300


class CountedStep(NamedTuple):
    """A step as it counts."""

    step: Step
    length: float
    """Value of percentiles: seconds from start to start, or of a request."""
    elapsed: float | None
    """Seconds that it took of the training's time; None where that is not known, as of a first request."""
    outside: float | None
    """Seconds in no phase; None of a request, and where no phases are named."""


class Sum:
    """Adds up values that may be absent, or not a number: one NaN would never leave the sum again."""

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def add(self, value: float | None, sign: int = 1) -> None:
        """Take a value in, or with a sign of -1 out again."""
        if value is not None and value - value == 0.0:  # finite, without a call
            self.total += sign * value
            self.count += sign

    def merge(self, other: Sum, sign: int) -> None:
        """Take all values of another sum in, or out again."""
        self.total += sign * other.total
        self.count += sign * other.count


class Sums:
    """Sums over steps."""

    __slots__ = (
        "elapsed",
        "gpu",
        "gpu_of_idle",
        "host_paced",
        "idle",
        "outside",
        "phases",
        "samples",
        "steps",
        "tokens",
        "tokens_in",
    )

    def __init__(self) -> None:
        self.steps = 0
        self.elapsed = Sum()
        self.outside = Sum()
        self.tokens = Sum()
        self.tokens_in = Sum()
        self.samples = Sum()
        self.gpu = Sum()
        self.idle = Sum()
        self.host_paced = Sum()
        self.gpu_of_idle = Sum()
        """GPU time of the steps of which the idle time is known."""
        self.phases: dict[str, tuple[Sum, Sum]] = {}
        """Sums by name: by the host clock, and by the GPU's."""

    def count(self, counted: CountedStep, sign: int = 1) -> None:
        """Take a step in, or out again."""
        step, elapsed, outside = counted.step, counted.elapsed, counted.outside
        self.steps += sign
        if elapsed is not None:
            self.elapsed.add(elapsed, sign)
        if outside is not None:
            self.outside.add(outside, sign)
        if step.tokens is not None:
            self.tokens.add(step.tokens, sign)
        if step.tokens_in is not None:
            self.tokens_in.add(step.tokens_in, sign)
        if step.samples is not None:
            self.samples.add(step.samples, sign)
        if step.gpu_seconds is not None:
            self.count_gpu(step, sign)
        for phase in step.phases:
            host, seconds = (self.phases.get(phase.name) or self._sum_of(phase.name))[0], phase.host_seconds
            if seconds - seconds == 0.0:  # `Sum.add` without its call: every phase of every step comes through
                host.total += sign * seconds
                host.count += sign
            if not host.count:
                del self.phases[phase.name]

    def count_gpu(self, step: Step, sign: int) -> None:
        """Take a step's GPU times in, or out again; they may come, and come again, after the step."""
        if step.gpu_seconds is None:
            return
        self.gpu.add(step.gpu_seconds, sign)
        self.idle.add(step.gpu_idle_seconds, sign)
        self.host_paced.add(step.gpu_host_paced_seconds, sign)
        self.gpu_of_idle.add(None if step.gpu_idle_seconds is None else step.gpu_seconds, sign)
        for phase in step.phases:
            self._sum_of(phase.name)[1].add(phase.gpu_seconds, sign)

    def merge(self, other: Sums, sign: int) -> None:
        """Take all of another in, or out again."""
        self.steps += sign * other.steps
        for name in _MERGED:
            getattr(self, name).merge(getattr(other, name), sign)
        for name, (host, gpu) in other.phases.items():
            mine = self._sum_of(name)
            mine[0].merge(host, sign)
            mine[1].merge(gpu, sign)
            if not mine[0].count:
                del self.phases[name]

    def _sum_of(self, name: str) -> tuple[Sum, Sum]:
        found = self.phases.get(name)
        if found is None:
            found = self.phases[name] = (Sum(), Sum())
        return found


_MERGED = ("elapsed", "outside", "tokens", "tokens_in", "samples", "gpu", "idle", "host_paced", "gpu_of_idle")


class _Block:
    """Steps that come into the window and leave it together."""

    __slots__ = ("last_index", "lengths", "only", "requests", "seconds", "sums")

    def __init__(self) -> None:
        # Neither floats nor a step: each would hold on to the memory around it, of a message that has gone.
        self.lengths = array("d")
        self.seconds = 0.0
        self.last_index = -1
        self.only: CountedStep | None = None
        """The step of a block of one, as most are."""
        self.sums: Sums | None = None
        """Sums of more steps."""
        self.requests: dict[int, Step] = {}
        """Requests by index whose first token has a known time."""

    def add(self, counted: CountedStep, seconds: float) -> None:
        self.seconds += seconds
        self.last_index = counted.step.index
        if counted.step.ttft_seconds is not None:
            self.requests[counted.step.index] = counted.step
        self.lengths.append(counted.length)
        if len(self.lengths) == 1:
            self.only = counted
            return
        if self.sums is None:
            self.sums = Sums()
            if self.only is not None:
                self.sums.count(self.only)
                self.only = None
        self.sums.count(counted)

    def update(self, known: Step, step: Step) -> None:
        if step.index in self.requests:
            self.requests[step.index] = step
        if self.only is not None:
            self.only = self.only._replace(step=step)
        elif self.sums is not None:
            self.sums.count_gpu(known, -1)
            self.sums.count_gpu(step, 1)


class StepWindow:
    """The whole steps of the last `RECENT_SECONDS`, at least `LEAST_STEPS` of them."""

    def __init__(self) -> None:
        self.sums = Sums()
        self._blocks: deque[_Block] = deque()
        self._seconds = 0.0
        self._place: dict[int, tuple[_Block, Step]] = {}
        """The last steps by index, for their GPU times."""
        self._ordered, self._came, self._went = array("d"), array("d"), array("d")
        """Lengths as they were put in order last, and those that came and went since."""
        self._first_tokens = 0
        """How many requests are in it of which it is known when their first token was there."""

    def __len__(self) -> int:
        return self.sums.steps

    def add(self, counted: CountedStep) -> None:
        """Take in the newest step; those that are too long ago go."""
        seconds = counted.length if counted.elapsed is None else counted.elapsed
        if not self._blocks or self._blocks[-1].seconds + seconds > BLOCK_SECONDS:
            self._blocks.append(_Block())
        block = self._blocks[-1]
        known = len(block.requests)
        block.add(counted, seconds)
        self._first_tokens += len(block.requests) - known
        self._came.append(counted.length)
        self.sums.count(counted)
        self._seconds += seconds
        self._place.pop(counted.step.index, None)
        self._place[counted.step.index] = block, counted.step
        pop_old(self._place, counted.step, lambda place: place[1])
        oldest = self._blocks[0]
        while self._seconds - oldest.seconds >= RECENT_SECONDS and len(self) - len(oldest.lengths) >= LEAST_STEPS:
            self._drop()
            oldest = self._blocks[0]

    def update(self, step: Step) -> None:
        """Add GPU times to a step that is here already; another step is skipped."""
        block, known = self._place.get(step.index, (None, None))
        if block is None or known is None or known.started_at != step.started_at:
            return
        self._place[step.index] = block, step
        if block.lengths:
            block.update(known, step)
            self.sums.count_gpu(known, -1)
            self.sums.count_gpu(step, 1)

    def drop_before(self, first: int) -> None:
        """Drop the steps before that index, at which steps changed."""
        while self._blocks and self._blocks[0].last_index < first:
            self._drop()

    def keep_newest(self, number: int) -> None:
        """Drop the steps before the last `number`, as far as whole blocks are older."""
        while self._blocks and len(self) - len(self._blocks[0].lengths) >= number:
            self._drop()

    def clear(self) -> None:
        """Drop all data."""
        while self._blocks:
            self._drop()

    def lengths(self) -> Sequence[float]:
        """Return the lengths of all steps in it, in ascending order; not to be changed, and good until the next
        step."""
        came, went = self._came, self._went
        if len(came) + len(went) > _FEW:
            self._ordered = array("d", sorted(chain.from_iterable(block.lengths for block in self._blocks)))
        else:
            for length in came:
                insort(self._ordered, length)
            for length in went:
                del self._ordered[bisect_left(self._ordered, length)]
        self._came, self._went = array("d"), array("d")
        return self._ordered

    @property
    def has_first_tokens(self) -> bool:
        """Return True if it is known of any request when its first token was there."""
        return self._first_tokens > 0

    def first_tokens(self) -> list[float]:
        """Return how long requests took to their first token, in ascending order."""
        return sorted(_finite(step.ttft_seconds for block in self._blocks for step in block.requests.values()))

    def each_token(self) -> list[float]:
        """Return how long requests took for each token after the first, in ascending order."""
        return sorted(_finite(step.tpot_seconds for block in self._blocks for step in block.requests.values()))

    def mean_phases(self, order: Sequence[str]) -> tuple[Phase, ...]:
        """Mean seconds of each phase a step, in that order of names.

        On the host's clock a step without the phase counts as 0, so that the means add up to the mean step; on the
        GPU's clock the mean is over the steps that were measured.
        """
        sums, found = self.sums, []
        for name in order:
            if name not in sums.phases:
                continue
            host, gpu = sums.phases[name]
            measured = max(0.0, gpu.total) / sums.gpu.count if gpu.count and sums.gpu.count else None
            found.append(Phase(name=name, host_seconds=max(0.0, host.total) / sums.steps, gpu_seconds=measured))
        return tuple(found)

    def idle_pct(self) -> float | None:
        """Share of GPU time in which the training's stream had nothing to do, if most measured steps have it."""
        sums = self.sums
        if sums.idle.count * 2 < max(1, sums.gpu.count) or sums.gpu_of_idle.total <= 0:
            return None
        return 100 * max(0.0, sums.idle.total) / sums.gpu_of_idle.total

    def host_paced_pct(self) -> float | None:
        """Share of GPU time in which the host set the pace; None where no step was measured."""
        sums = self.sums
        if sums.gpu.total <= 0:
            return None
        return 100 * max(0.0, sums.host_paced.total) / sums.gpu.total

    def _drop(self) -> None:
        block = self._blocks.popleft()
        self._seconds -= block.seconds
        if block.only is not None:
            self.sums.count(block.only, -1)
            index = block.only.step.index
            if self._place.get(index, (None,))[0] is block:
                del self._place[index]
        elif block.sums is not None:
            self.sums.merge(block.sums, -1)
        self._first_tokens -= len(block.requests)
        block.requests = {}
        block.only = block.sums = None
        self._went += block.lengths
        block.lengths = array("d")  # by which a GPU time that comes later sees that the block is gone
        if not self._blocks:
            self.sums, self._seconds = Sums(), 0.0  # what rounding has left of it goes, too


_FEW = 32
"""Number of lengths that are inserted one by one; of more, all are sorted."""


def _finite(values: Iterable[float | None]) -> Iterable[float]:
    return (value for value in values if value is not None and math.isfinite(value))
