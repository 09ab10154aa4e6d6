"""Checks that a window is steady: trends, two regimes, GPUs that slow down, other processes on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from llmtop.bench.model.results import MeasuredSteps
from llmtop.format import duration, percent_text
from llmtop.hardware.clock_events import (
    HW_POWER_BRAKE,
    HW_SLOWDOWN,
    HW_THERMAL,
    SW_POWER_CAP,
    SW_THERMAL,
)
from llmtop.model.ownership import other_user
from llmtop.model.snapshot import Snapshot
from llmtop.step_history.regimes import find_change

SLOWED = {
    SW_THERMAL: "too hot",
    HW_THERMAL: "too hot",
    HW_SLOWDOWN: "slowed by hardware",
    HW_POWER_BRAKE: "slowed by the power brake",
}
OFTEN = 0.05
"""Share of the window's seconds from which a reason is reported."""


def step_findings(window: MeasuredSteps) -> list[str]:
    """Reasons in the steps why the run is not steady."""
    change = find_change(window.step_seconds)
    if change is None:
        return []
    before, after = duration(change.before_seconds), duration(change.after_seconds)
    changed = f"({100 * (math.exp(change.log) - 1):+.0f} %)"
    if change.kind == "jump":
        return [
            f"two regimes: the geometric mean of a step is {before} up to step {change.step} of the window, and "
            f"{after} from then on {changed}"
        ]
    longer = "longer" if change.log > 0 else "shorter"
    return [f"a trend: steps get {longer} all along, from {before} to {after} {changed}"]


def gpu_findings(
    uuids: set[str], snapshots: Sequence[Snapshot], owns: Callable[[int], bool]
) -> tuple[list[str], list[str], frozenset[str]]:
    """Reasons in the GPU signals why the run is not steady.

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
            unsteady.append(f"throttling: a GPU was {word} ({name}) in {percent_text(100 * share)} of the window")
    capped = sum(SW_POWER_CAP in found for found in reasons) / max(len(reasons), 1)
    if capped >= OFTEN:
        notes.append(f"a GPU ran at its power limit in {percent_text(100 * capped)} of the window")
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
