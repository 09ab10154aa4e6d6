"""Finds the rank that arrives last, from the stamps of a job's ranks, joined step by step.

One rank's stamp alone is no evidence; what counts is how much later it reached the same point of the same step
than the others. Ranks that read the same clock are compared by it directly. Others (on two hosts, or with the
GPU's clock not laid over the host's) are compared by the time from there to the end of the backward pass, which
they reach together since a collective ends there: the last one waits least. Where ranks wait for each other all
over the step (FSDP gathers parameters for each layer), one that is slower everywhere shows by how long it waits in
all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from llmtop.model.snapshot import GRADIENT_POINTS, Arrival, Rank, StampedWait
from llmtop.protocol import wire

MAX_STEPS: Final = 128
"""Stamped steps of a training that are remembered."""
WINDOWS: Final = (6, 12, 24)
"""Windows, in steps stamped by all ranks, over which the last rank is determined; the clearest one counts. The
longest covers about three seconds."""
NOISE_STEPS: Final = 64
"""Steps before and within the window from which the amount of chance is judged."""
NEARLY_ALWAYS_PCT: Final = 90.0
MIN_STEPS: Final = 8
"""Fewest steps for which a rank is named."""
END: Final = "end"
PHASES: Final = ("forward", "backward", "waits")
"""Used where gradients are not stamped, since they do not show when a rank arrives (FSDP)."""
WAITS: Final = "waits"
_APART: Final = 0.5
"""Ranks that end a step further apart than this part of it do not end it together: their indices differ."""

_Clock = Literal["host", "GPU"]


class StepStamps:
    """The stamps of one training, by step."""

    def __init__(self) -> None:
        self.group = self.clock = ""
        self.steps: dict[int, wire.Arrival] = {}

    def add(self, message: wire.Arrivals) -> None:
        """Take in stamps; those of another group than before are the only ones from then on."""
        if (message.group, message.clock) != (self.group, self.clock):
            self.group, self.clock = message.group, message.clock
            self.steps.clear()
        for arrival in message.arrivals[-MAX_STEPS:]:
            self.steps.pop(arrival.index, None)  # an index that comes again is the youngest now
            self.steps[arrival.index] = arrival
        while len(self.steps) > MAX_STEPS:
            del self.steps[next(iter(self.steps))]


def wait_seconds(arrival: wire.Arrival, *, has_gpu: bool) -> StampedWait | None:
    """Return how long a rank waited in a step, in seconds; None where its stamps do not show it.

    Args:
        arrival: its stamps.
        has_gpu: whether it trains on a GPU, whose host runs ahead, so that the host's stamps do not count.
    """
    by_gpu = has_gpu or any(stamp.gpu_ns is not None for stamp in arrival.stamps)
    times = _by_point(arrival, "GPU" if by_gpu else "host")
    last = times.get(GRADIENT_POINTS[1])
    if last is not None and END in times:
        return StampedWait(index=arrival.index, seconds=max(0, times[END] - last) / 1e9)
    if WAITS in times:
        return StampedWait(index=arrival.index, seconds=max(0, times[WAITS]) / 1e9)
    return None


class _Member(NamedTuple):
    place: int
    rank: Rank
    stamped: StepStamps


def compare_arrivals(members: Iterable[tuple[Rank, StepStamps]]) -> list[Rank]:
    """Return the ranks in the same order, with how they come to the collectives of their steps."""
    ranks: list[Rank] = []
    groups: dict[tuple[str, str], list[_Member]] = {}
    for place, (rank, stamped) in enumerate(members):
        ranks.append(rank)
        if stamped.steps and rank.job and rank.state == "running" and rank.rank is not None:
            groups.setdefault((rank.job, stamped.group), []).append(_Member(place, rank, stamped))
    for group in groups.values():
        together = _latest_per_rank(group)
        if len(together) > 1:
            for place, figures in _compare_group(together).items():
                ranks[place] = replace(ranks[place], **figures)
    return ranks


def _latest_per_rank(group: list[_Member]) -> list[_Member]:
    """Return one process for each rank: of a run that was started again, the one that attached last."""
    by_rank: dict[int | None, _Member] = {}
    for member in sorted(group, key=lambda one: one.rank.attached_at or 0.0):
        by_rank[member.rank.rank] = member
    return list(by_rank.values())


def _compare_group(group: list[_Member]) -> dict[int, dict[str, object]]:
    """Return the fields of each member's rank, by its place."""
    steps = _common_steps(group)
    step_ns = 1e9 * median(member.rank.step_seconds_p50 or 0.0 for member in group)
    if not steps or step_ns <= 0:
        return {}
    clock: _Clock = "GPU" if _has_gpus(group, steps) else "host"
    same_clock = len({member.stamped.clock for member in group}) == 1 and bool(group[0].stamped.clock)
    rows = [_StepRow.from_stamps(step, clock, same_clock=same_clock, step_ns=step_ns) for step in steps]
    by_gradients = any(row.has(GRADIENT_POINTS[1]) for row in rows)
    points = GRADIENT_POINTS if by_gradients else PHASES
    found: dict[int, list[Arrival]] = {member.place: [] for member in group}
    for point in points:
        late = [lateness for row in rows if (lateness := row.lateness_ns(point)) is not None][-NOISE_STEPS:]
        if len(late) >= MIN_STEPS:
            for member, mine in zip(group, zip(*late, strict=True), strict=True):
                found[member.place].append(_arrival(point, clock, len(group), mine))
    exposed = [waited for row in rows if (waited := row.exposed_ns(by_gradients=by_gradients)) is not None]
    seconds = median(exposed[-WINDOWS[-1] :]) / 1e9 if len(exposed) >= MIN_STEPS else None
    waits = _waits(rows, len(group), GRADIENT_POINTS[1] if by_gradients else WAITS)
    return {
        member.place: {
            "arrivals": tuple(found[member.place]),
            "exposed_seconds": seconds,
            "waits_seconds": waited,
        }
        for member, waited in zip(group, waits, strict=True)
    }


def _waits(rows: Sequence[_StepRow], ranks: int, point: str) -> list[float] | list[None]:
    """Return how long each rank waits for the one that comes last to a point, in seconds: median of the last
    steps."""
    waited = [one for row in rows if (one := row.waits_ns(point)) is not None][-WINDOWS[-1] :]
    if len(waited) < MIN_STEPS:
        return [None] * ranks
    return [median(mine) / 1e9 for mine in zip(*waited, strict=True)]


def _common_steps(group: list[_Member]) -> list[list[wire.Arrival]]:
    """Return the last steps that all of them have stamped, the stamps of each in the order of the members."""
    first, *others = group
    indices = [index for index in first.stamped.steps if all(index in one.stamped.steps for one in others)]
    return [[one.stamped.steps[index] for one in group] for index in indices]


def _has_gpus(group: Sequence[_Member], steps: Sequence[Sequence[wire.Arrival]]) -> bool:
    """Return True if they train on GPUs, whose host runs ahead, so that its stamps are not used."""
    stamps = (stamp for step in steps for one in step for stamp in one.stamps)
    return any(one.rank.gpu_uuid is not None for one in group) or any(stamp.gpu_ns is not None for stamp in stamps)


class _StepRow(NamedTuple):
    """One step: the stamps of all members, in ns, each by point."""

    stamps: Sequence[Mapping[str, int]]
    directly: bool
    """True if they are on one clock."""

    @classmethod
    def from_stamps(
        cls, step: Sequence[wire.Arrival], clock: _Clock, *, same_clock: bool, step_ns: float
    ) -> _StepRow:
        stamps = [_by_point(one, clock) for one in step]
        directly = same_clock and (clock == "host" or all(one.on_host_clock for one in step))
        ends = [one[END] for one in stamps if END in one]
        if ends and max(ends) - min(ends) > _APART * step_ns:
            directly = False
        return cls(stamps, directly)

    def has(self, point: str) -> bool:
        return all(point in one for one in self.stamps)

    def lateness_ns(self, point: str) -> list[float] | None:
        """Return how much later each rank came than the last of the others; None where unknown."""
        came = self._arrival_ns(point)
        if came is None:
            return None
        *_, second, last = sorted(came)
        return [mine - (second if mine == last else last) for mine in came]

    def waits_ns(self, point: str) -> list[float] | None:
        """Return how long each rank waited there for the last one; None where unknown."""
        came = self._arrival_ns(point)
        return None if came is None else [max(came) - mine for mine in came]

    def _arrival_ns(self, point: str) -> list[float] | None:
        """Return when each came, in ns from an instant that they share; to the waits, less what it waited."""
        if not self.has(point) or not (self.directly or point == WAITS or self.has(END)):
            return None
        if point == WAITS:
            return [-float(one[WAITS]) for one in self.stamps]
        return [float(one[point] - (0 if self.directly else one[END])) for one in self.stamps]

    def exposed_ns(self, *, by_gradients: bool) -> float | None:
        """Return how long the one that waited least did so: from its last gradient to the end, or in all."""
        if not by_gradients:
            return float(min(one[WAITS] for one in self.stamps)) if self.has(WAITS) else None
        last = GRADIENT_POINTS[1]
        if not (self.has(last) and self.has(END)):
            return None
        return float(max(0, min(one[END] - one[last] for one in self.stamps)))


def _by_point(arrival: wire.Arrival, clock: _Clock) -> dict[str, int]:
    by_host = clock == "host"
    waited = arrival.waited_host_ns if by_host else arrival.waited_gpu_ns
    times = {WAITS: waited, **{one.point: one.host_ns if by_host else one.gpu_ns for one in arrival.stamps}}
    return {point: ns for point, ns in times.items() if ns is not None}


def _arrival(point: str, clock: _Clock, ranks: int, late_ns: Sequence[float]) -> Arrival:
    """Sort key of a window: how often the rank is last, up to nearly always, then how clearly."""
    noise_ns = _noise(late_ns)
    windows = [late_ns[-steps:] for steps in WINDOWS if steps <= len(late_ns)]
    window = max(
        windows, key=lambda one: (min(_last_pct(one), NEARLY_ALWAYS_PCT), median(one) / _error(noise_ns, one))
    )
    return Arrival(
        point=point,
        clock=clock,
        steps=len(window),
        ranks=ranks,
        last_pct=_last_pct(window),
        late_seconds=median(window) / 1e9,
        error_seconds=_error(noise_ns, window) / 1e9,
    )


def _last_pct(window: Sequence[float]) -> float:
    return 100.0 * sum(late > 0 for late in window) / len(window)


def _noise(late_ns: Sequence[float]) -> float:
    """Return the standard deviation of what is chance in each, by the differences of neighbours: a rank that
    has become late adds a single one."""
    return 1.4826 / math.sqrt(2) * median(abs(b - a) for a, b in pairwise(late_ns))


def _error(noise_ns: float, window: Sequence[float]) -> float:
    """Return the standard error of the median of a window."""
    return max(1.2533 * noise_ns / math.sqrt(len(window)), 1.0)
