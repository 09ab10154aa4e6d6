"""Checks that a window is steady: trends, two regimes, GPUs that slow down, other processes on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from llmtop.bench.model.results import MeasuredSteps
from llmtop.format import duration, percent
from llmtop.hardware.clock_events import (
    HW_POWER_BRAKE,
    HW_SLOWDOWN,
    HW_THERMAL,
    SW_POWER_CAP,
    SW_THERMAL,
)
from llmtop.model.ownership import other_user
from llmtop.model.snapshot import Snapshot
from llmtop.step_history.step_blocks import best_split

BLOCKS = 10
MIN_STEPS = 20
"""Fewer steps show neither a trend nor two regimes."""
TREND = math.log(1.03)
REGIMES = math.log(1.05)
"""Drifts and jumps below these, from the window's begin to its end, are let be."""
CERTAIN = 27
"""Of Kendall's S of ten blocks, at most 45: so far from 0 it comes by chance once in 60 windows (two-sided)."""
APART = 3.0
"""A jump is this many times what blocks on either side spread by."""
SLOWED = {
    SW_THERMAL: "too hot",
    HW_THERMAL: "too hot",
    HW_SLOWDOWN: "slowed by hardware",
    HW_POWER_BRAKE: "slowed by the power brake",
}
OFTEN = 0.05
"""Share of the window's seconds from which a reason is reported."""


def step_findings(window: MeasuredSteps) -> list[str]:
    """What the steps themselves say against it."""
    steps = window.step_seconds
    if len(steps) < MIN_STEPS:
        return []
    edges = [round(place * len(steps) / BLOCKS) for place in range(BLOCKS + 1)]
    levels = [math.log(median(steps[low:high])) for low, high in pairwise(edges)]
    place = best_split(levels)
    before, after = levels[:place], levels[place:]
    jump = median(after) - median(before)
    within = median([abs(level - median(side)) for side in (before, after) for level in side])
    if (
        min(len(before), len(after)) > 1
        and abs(jump) >= max(REGIMES, APART * 1.4826 * within)
        and _is_jump(levels)
    ):
        first, second = median(steps[: edges[place]]), median(steps[edges[place] :])
        return [
            f"two regimes: steps took {duration(first)} up to step {edges[place]} of the window, and "
            f"{duration(second)} from then on ({_change_text(jump)})"
        ]
    s = sum((b > a) - (b < a) for i, a in enumerate(levels) for b in levels[i + 1 :])
    drift = (median(levels[-3:]) - median(levels[:3])) * BLOCKS / (BLOCKS - 3)
    if abs(s) >= CERTAIN and abs(drift) >= TREND:
        return [f"a trend: steps got {'longer' if drift > 0 else 'shorter'} all along ({_change_text(drift)})"]
    return []


def _is_jump(levels: Sequence[float]) -> bool:
    """Whether two levels describe the blocks better than a straight line does."""
    number, place = len(levels), best_split(list(levels))
    sides = (levels[:place], levels[place:])
    stepped = sum((level - sum(side) / len(side)) ** 2 for side in sides for level in side)
    middle, mean = (number - 1) / 2, sum(levels) / number
    along = sum((i - middle) * (level - mean) for i, level in enumerate(levels))
    slope = along / sum((i - middle) ** 2 for i in range(number))
    straight = sum((level - mean - slope * (i - middle)) ** 2 for i, level in enumerate(levels))
    return stepped < straight


def _change_text(log: float) -> str:
    return f"{100 * (math.exp(log) - 1):+.0f} %"


def gpu_findings(
    uuids: set[str], snapshots: Sequence[Snapshot], owns: Callable[[int], bool]
) -> tuple[list[str], list[str], frozenset[str]]:
    """What the GPUs say against it.

    Args:
        uuids: of the GPUs of the run.
        snapshots: of the window.
        owns: whether a process is of this run.

    Returns:
        Why it is not steady; what is to be known besides; and the GPUs on which others computed.
    """
    unsteady, notes = [], []
    reasons = [
        {name for gpu in one.gpus if gpu.uuid in uuids for name in gpu.clock_event_reasons or ()}
        for one in snapshots
    ]
    for name, word in SLOWED.items():
        share = sum(name in found for found in reasons) / max(len(reasons), 1)
        if share >= OFTEN:
            unsteady.append(f"throttling: a GPU was {word} ({name}) in {percent(100 * share)} of the window")
    capped = sum(SW_POWER_CAP in found for found in reasons) / max(len(reasons), 1)
    if capped >= OFTEN:
        notes.append(f"a GPU ran at its power limit in {percent(100 * capped)} of the window")
    others = {
        process.pid: (other_user(process, one), process.gpu_uuid)
        for one in snapshots
        for process in one.processes
        if process.gpu_uuid in uuids and process.gpu_computes and not owns(process.pid)
    }
    if others:
        users = sorted({user for user, _ in others.values() if user is not None})
        users_text = f" of {', '.join(users)}" if users else ""
        number = "another process" if len(others) == 1 else f"{len(others)} other processes"
        unsteady.append(f"{number}{users_text} computed on the same GPU")
    shared = frozenset(uuid for _, uuid in others.values() if uuid is not None)
    return unsteady, notes, shared
