"""Kernels, operators and collectives before and after: what is new, gone, faster or slower, and what it is worth.

All of it a step: a window with fewer steps has fewer kernels, and nothing in it is faster for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from llmtop.compare.device_pairs import PairedDevices
from llmtop.compare.model import CollectiveChange, State, WorkChange
from llmtop.compare.step_times import FEW_PCT
from llmtop.format import percent_text, times
from llmtop.report.model import CollectiveTime, Report
from llmtop.report.per_step import PerStep

_CALL_PCT = 5.0
"""Percent by which the means of one kernel or call must differ where its spread over steps is unknown."""
_SMALL = 0.0005
"""Share of a step: a smaller change is not reported, however certain."""
_AGREE_PCT = 3.0
"""Within so much must kernels or operators agree on how much more work is done."""
_MOST_OF_IT = 0.8
_AS_LONG = 2.0
"""Within such a factor must one of them take as long as before: beyond it is other work, or on a GPU unlike."""
_IN_COMMON = 0.2
_WINDOW = 0.1
"""Share of the kernels in a window: a larger change of their number is reported."""
_OTHER_SIZE = 1.3
"""Factor by which kernels of every kind must have changed to be of another size."""
_LEAST_KINDS = 3


@dataclass(frozen=True)
class Work:
    """Kernels of one name, or an operator, in one report."""

    name: str
    kind: str
    count: int
    """Count in the whole file."""
    seconds: float
    """All of them together."""
    mean_us: float | None
    per_step: tuple[PerStep, ...] = ()


@dataclass(frozen=True)
class _Step:
    """Times of some work in a step: means over devices."""

    count: float = 0.0
    seconds: float = 0.0
    error: float = 0.0
    """Standard error of the seconds."""


@dataclass(frozen=True)
class ComparedSteps:
    """Which devices' steps are set against each other."""

    places: tuple[tuple[int, int], ...]
    """Pairs of devices with whole steps on both sides; empty where no step can be compared."""
    steps: tuple[tuple[int, int], ...]
    """How many whole steps these have."""
    step_seconds: float
    """Step time of the slower side, in seconds."""

    def of(self, work: Work | None, side: int) -> _Step:
        """Return the time of some work in a step of one side (0 or 1); over the whole window where steps are
        unknown."""
        if work is None:
            return _Step()
        if not self.places:
            return _Step(work.count, work.seconds)
        rows = {row.place: row for row in work.per_step}
        count = seconds = square = 0.0
        for places, steps in zip(self.places, self.steps, strict=True):
            row = rows.get(places[side])
            if row is not None:
                count, seconds = count + row.count, seconds + row.seconds
                square += row.deviation * row.deviation / steps[side]
        number = len(self.places)
        return _Step(count / number, seconds / number, math.sqrt(square) / number)


NOT_BY_STEP = ComparedSteps((), (), 0.0)


def compared_steps(
    paired: PairedDevices, before: Report, after: Report, step_seconds: float | None
) -> ComparedSteps:
    """Return the devices that have whole steps on both sides.

    Args:
        paired: devices of both reports.
        before: report of the first capture.
        after: report of the second capture.
        step_seconds: length of a step; None where not known.

    Returns:
        No device where a report does not say what a step holds.
    """
    told = all(
        any(row.per_step for row in side.kernels) or any(row.per_step for row in side.operators)
        for side in (before, after)
    )
    pairs = [pair for pair in paired.pairs if pair.has_steps] if told else []
    return ComparedSteps(
        tuple(pair.places for pair in pairs),
        tuple((pair.before.steps, pair.after.steps) for pair in pairs),
        step_seconds or 0.0,
    )


def kernels_of(report: Report) -> dict[str, Work]:
    """Return the kernels of a report by name and functor."""
    return {
        row.name: Work(row.name, row.kind, row.count, row.seconds, row.mean_us, row.per_step)
        for row in report.kernels
    }


def operators_of(report: Report) -> dict[str, Work]:
    """Return the operators of a report, and what none of them launched by how it was launched."""
    return {
        row.name: Work(row.name, "", row.calls, row.seconds, row.mean_us, row.per_step) for row in report.operators
    }


def work_changes(before: dict[str, Work], after: dict[str, Work], on: ComparedSteps) -> tuple[WorkChange, ...]:
    """Return each name before and after; the most valuable first, unmoved work last."""
    rows = [_change(before.get(name), after.get(name), on) for name in dict.fromkeys([*before, *after])]
    return _sort_rows(row for row in rows if row is not None)


def kind_changes(before: dict[str, Work], after: dict[str, Work], on: ComparedSteps) -> tuple[WorkChange, ...]:
    """Return the same by what kernels compute: names change with the GPU, the library and the shape."""
    kinds = dict.fromkeys(work.kind for work in [*before.values(), *after.values()])
    together = [{kind: _together(kind, side.values()) for kind in kinds} for side in (before, after)]
    rows = [_change(together[0][kind], together[1][kind], on) for kind in kinds]
    return _sort_rows(row for row in rows if row is not None)


def _together(kind: str, rows: Iterable[Work]) -> Work | None:
    own = [work for work in rows if work.kind == kind]
    if not own:
        return None
    places: dict[int, list[PerStep]] = {}
    for work in own:
        for row in work.per_step:
            places.setdefault(row.place, []).append(row)
    per_step = tuple(
        PerStep(
            place,
            sum(row.count for row in rows),
            sum(row.seconds for row in rows),
            math.hypot(*(row.deviation for row in rows)),
        )
        for place, rows in places.items()
    )
    # Kernels of one kind are of many sizes: a mean over all of them would be of none.
    count, seconds = sum(work.count for work in own), sum(work.seconds for work in own)
    return Work(kind, kind, count, seconds, None, per_step)


def _sort_rows(rows: Iterable[WorkChange]) -> tuple[WorkChange, ...]:
    def place(row: WorkChange) -> tuple[bool, float, str]:
        worth = abs(row.worth_seconds or 0.0)
        largest = max(row.seconds_before or 0.0, row.seconds_after or 0.0)
        if row.worth_seconds is None:
            sides = ((row.mean_us_before, row.window_before), (row.mean_us_after, row.window_after))
            worth = largest = max((mean or 0.0) * many for mean, many in sides)
        return row.state == "same", -worth if row.state != "same" else -largest, row.name

    return tuple(sorted(rows, key=place))


def _change(one: Work | None, other: Work | None, on: ComparedSteps) -> WorkChange | None:
    """Return one name before and after; None for what is in no whole step of either."""
    some = one or other
    if some is None:
        return None
    fields = {
        "name": some.name,
        "kind": some.kind,
        "mean_us_before": None if one is None else one.mean_us,
        "mean_us_after": None if other is None else other.mean_us,
        "window_before": 0 if one is None else one.count,
        "window_after": 0 if other is None else other.count,
    }
    if not on.places:
        return WorkChange(state=_state_of_calls(one, other), **fields)  # type: ignore[arg-type]
    a, b = on.of(one, 0), on.of(other, 1)
    if not a.count and not b.count:
        return None
    large = max(a.seconds, b.seconds)
    noise = max(2 * math.hypot(a.error, b.error), FEW_PCT / 100 * large, _SMALL * on.step_seconds)
    return WorkChange(
        state=_state(a, b, noise),
        count_before=a.count,
        count_after=b.count,
        seconds_before=a.seconds,
        seconds_after=b.seconds,
        worth_seconds=b.seconds - a.seconds,
        noise_seconds=noise,
        **fields,  # type: ignore[arg-type]
    )


def _state(a: _Step, b: _Step, noise: float) -> State:
    if abs(b.seconds - a.seconds) <= noise:
        return "same"
    if not a.count or not b.count:
        return "gone" if a.count else "new"
    one, two = a.seconds / a.count, b.seconds / b.count
    # The change is the sum of both parts exactly, and the same from both sides.
    by_count, by_length = (b.count - a.count) * (one + two) / 2, (two - one) * (a.count + b.count) / 2
    if abs(by_count) > abs(by_length):
        return "more" if by_count > 0 else "fewer"
    return "slower" if by_length > 0 else "faster"


def _state_of_calls(one: Work | None, other: Work | None) -> State:
    """Return the state without steps: only the duration of one call is known."""
    if one is None or other is None:
        return "gone" if other is None else "new"
    if one.mean_us is None or other.mean_us is None:
        return "same"
    if abs(other.mean_us - one.mean_us) <= _CALL_PCT / 100 * max(one.mean_us, other.mean_us):
        return "same"
    return "slower" if other.mean_us > one.mean_us else "faster"


def work_ratio(before: dict[str, Work], after: dict[str, Work], on: ComparedSteps) -> float | None:
    """Return how many times as much work is done after, in a step or, without steps, in the window; None if
    unclear.

    It is told by how often kernels or operators run, if most of them, by time, agree. Where gradients are
    accumulated over more batches, steps were told apart in another way, or a window is longer, it is not 1, and
    what a step or a window takes says nothing of how fast the work is done.
    """
    sides = [{name: on.of(work, side) for name, work in all_.items()} for side, all_ in enumerate((before, after))]
    everything = [sum(step.seconds for step in side.values()) for side in sides]
    shared = [(a, sides[1][name]) for name, a in sides[0].items() if name in sides[1]]
    ratios = sorted((b.count / a.count, a.seconds, b.seconds) for a, b in shared if a.count and b.count)
    if not ratios or not all(everything):
        return None
    ratio = _weighted_median([(own, a / everything[0] + b / everything[1]) for own, a, b in ratios])
    alike = [
        (a, b)
        for own, a, b in ratios
        if abs(own / ratio - 1) <= _AGREE_PCT / 100 and a / _AS_LONG <= b / own <= a * _AS_LONG
    ]
    agree = min(sum(row[side] for row in alike) / everything[side] for side in (0, 1))
    return ratio if agree >= _MOST_OF_IT else None


def has_little_in_common(before: dict[str, Work], after: dict[str, Work]) -> bool:
    """Return True if hardly any time goes to what is on both sides."""
    both = before.keys() & after.keys()
    sides = [
        (sum(side[name].seconds for name in both), sum(w.seconds for w in side.values()))
        for side in (before, after)
    ]
    return all(total > 0 and own < _IN_COMMON * total for own, total in sides)


def size_change_text(kinds: Iterable[WorkChange]) -> str:
    """Return a sentence if kernels of every kind take more (or less) time by one factor: no change of code does
    that.

    Args:
        kinds: kernels by what they compute, a step; "" for those whose steps cannot be told.
    """
    factors = [
        (row.seconds_after / row.count_after) / (row.seconds_before / row.count_before)
        for row in kinds
        if row.kind != "NCCL" and row.count_before and row.count_after and row.seconds_before and row.seconds_after
    ]
    if len(factors) < _LEAST_KINDS:
        return ""
    if min(factors) >= _OTHER_SIZE:
        word, factor = "longer", min(factors)
    elif max(factors) <= 1 / _OTHER_SIZE:
        word, factor = "shorter", 1 / max(factors)
    else:
        return ""
    return (
        f"kernels of every kind are {word}, by {times(factor)} at least: another size of batch, sequence or model "
        "rather than another speed"
    )


def _weighted_median(rows: list[tuple[float, float]]) -> float:
    """Return the value in the middle of ascending (value, weight)."""
    half, passed = sum(weight for _, weight in rows) / 2, 0.0
    for value, weight in rows:
        passed += weight
        if passed >= half:
            return value
    return rows[-1][0]


def window_note(before: dict[str, Work], after: dict[str, Work], on: ComparedSteps) -> str:
    """Return a note where one window has more kernels only because it is longer; "" elsewhere."""
    kinds = kind_changes(before, after, on)
    differences = []
    for row in sorted(kinds, key=lambda row: -max(row.window_before, row.window_after)):
        a, b = row.window_before, row.window_after
        if not a or not b or min(a, b) > (1 - _WINDOW) * max(a, b):
            continue
        if on.places and not _is_as_frequent(row):
            continue
        word = "fewer" if b < a else "more"
        differences.append(
            f"{percent_text(100 * abs(b / a - 1))} {word} {row.kind} kernels ({a} before, {b} after)"
        )
    if not differences:
        return ""
    if on.places:
        return f"the window after ran {differences[0]}, but the same number per step: the windows differ in length"
    largest = " and ".join(differences[:2])
    return f"the window after ran {largest}: without whole steps on both sides that does not compare speed"


def _is_as_frequent(row: WorkChange) -> bool:
    a, b = row.count_before or 0.0, row.count_after or 0.0
    return abs(a - b) <= 0.02 * max(a, b)


def collective_changes(before: Report, after: Report, paired: PairedDevices) -> tuple[CollectiveChange, ...]:
    """NCCL by device and collective, before and after; the largest change first."""
    rows = []
    for pair in paired.pairs:
        sides = []
        for report, device in ((before, pair.before), (after, pair.after)):
            mine = (row for row in report.collectives if (row.device, row.pid) == (device.device, device.pid))
            sides.append({row.name: row for row in mine})
        for name in dict.fromkeys([*sides[0], *sides[1]]):
            one, other = sides[0].get(name), sides[1].get(name)
            rows.append(_collective(pair.name, name, one, other, (pair.before.steps, pair.after.steps)))
    return tuple(
        sorted(
            rows, key=lambda row: (row.state == "same", -abs((row.seconds_after or 0) - (row.seconds_before or 0)))
        )
    )


def _collective(
    device: str, name: str, one: CollectiveTime | None, other: CollectiveTime | None, steps: tuple[int, int]
) -> CollectiveChange:
    has_steps = min(steps) > 0

    def both(of: Callable[[CollectiveTime], float | None]) -> tuple[float | None, float | None]:
        """Return a figure a step on both sides; 0 on a side that has steps and no such collective."""
        if not has_steps:
            return None, None
        return 0.0 if one is None else of(one), 0.0 if other is None else of(other)

    counts = both(lambda row: row.count_per_step)
    took, exposed, apart = (
        tuple(None if value is None else value / 1e3 for value in both(of))
        for of in (lambda r: r.ms_per_step, lambda r: r.exposed_ms_per_step, lambda r: r.ms_deviation or 0.0)
    )
    noise = None
    state: State = "same" if one is not None and other is not None else "gone" if other is None else "new"
    a, b = (
        None if count is None or seconds is None else _Step(count, seconds, (spread or 0.0) / math.sqrt(number))
        for count, seconds, spread, number in zip(counts, took, apart, (max(n, 1) for n in steps), strict=True)
    )
    if a is not None and b is not None:
        noise = max(2 * math.hypot(a.error, b.error), FEW_PCT / 100 * max(a.seconds, b.seconds))
        state = _state(a, b, noise)
    return CollectiveChange(
        device=device,
        name=name,
        state=state,
        count_before=counts[0],
        count_after=counts[1],
        seconds_before=took[0],
        seconds_after=took[1],
        noise_seconds=noise,
        exposed_seconds_before=exposed[0],
        exposed_seconds_after=exposed[1],
        bus_gb_per_s_before=None if one is None else one.bus_gb_per_s,
        bus_gb_per_s_after=None if other is None else other.bus_gb_per_s,
    )
