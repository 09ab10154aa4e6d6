"""Which phase of one report is which of another: profilers name them differently.

torch.profiler adds ranges of its own (Optimizer.step#AdamW.step, enumerate(DataLoader)#…), which the other side
may lack, or have under a name with another class in it; and what nests in what depends on who made the ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from llmtop.compare.model import ComparedFigure
from llmtop.compare.step_times import time_change
from llmtop.naming.own_phases import OUTSIDE
from llmtop.naming.phase_names import is_optimizer_step, role_of, without_number
from llmtop.report.model import PhaseMean

_OF_OTHERS = "of other phases"
"""Time in no phase, where both sides have different phases."""


def pair_phases(
    before: Sequence[PhaseMean], after: Sequence[PhaseMean]
) -> list[tuple[PhaseMean | None, PhaseMean | None]]:
    """Pair each phase with the same one of the other side, in the order of a step; None where it has none.

    By its whole name; by its last part, where that is the only such one; by what it does (load data, step the
    optimizer), where it is the only one left on both sides that does that at the outermost level.
    """
    left = list(before), list(after)
    found: list[tuple[PhaseMean, PhaseMean]] = []
    keys: tuple[Callable[[PhaseMean], Hashable], ...] = (
        lambda phase: phase.name,
        lambda phase: without_number(phase.name.rpartition("/")[2]),
        _role,
    )
    for number, key in enumerate(keys):
        for value in dict.fromkeys(key(phase) for phase in left[0]):
            one, other = ([phase for phase in side if key(phase) == value] for side in left)
            if value == "optimizer" and key is _role:
                one, other = _its_step(one), _its_step(other)
            if value is not None and len(other) and (number == 0 or len(one) == len(other) == 1):
                found.append((one[0], other[0]))
                left[0].remove(one[0])
                left[1].remove(other[0])
    with_before = {id(one): (one, other) for one, other in found}
    rows: list[tuple[PhaseMean | None, PhaseMean | None]] = [
        with_before.get(id(phase), (phase, None)) for phase in before
    ]
    return [*rows, *((None, phase) for phase in left[1])]


def _role(phase: PhaseMean) -> Hashable:
    """Role of a phase of the outermost level; None where its name does not show it."""
    role = role_of(phase.name)
    return None if "/" in phase.name or phase.name == OUTSIDE or role in ("other", "step") else role


def _its_step(phases: list[PhaseMean]) -> list[PhaseMean]:
    """Return the step phase of an optimizer's phases, where there are others too (zeroing gradients)."""
    return [phase for phase in phases if is_optimizer_step(phase.name)] if len(phases) > 1 else phases


def phase_changes(
    before: Sequence[PhaseMean],
    after: Sequence[PhaseMean],
    relative: float,
    step_seconds: float | None,
    judged: tuple[bool, bool],
) -> tuple[ComparedFigure, ...]:
    """Return the phases of one device (or means over several) by both clocks.

    Args:
        before: of the first report, one row a name.
        after: of the second.
        relative: how uncertain the steps are, as a share of them.
        step_seconds: the longer of the two steps.
        judged: whether the host's times can be set against each other (two profilers slow it differently), and
            whether the device's can (not all of its work may be in the captures).
    """
    pairs = pair_phases(before, after)
    # What is in no phase is the same on both sides only if the phases are.
    alike = all(
        one is not None and two is not None for one, two in pairs if "/" not in (one or two or before[0]).name
    )
    rows = []
    for one, two in pairs:
        name = one.name if one is not None else two.name if two is not None else ""
        if one is not None and two is not None and one.name != two.name:
            name = f"{one.name} / {two.name}"
        for clock, field, told in (("host", "host_seconds", judged[0]), ("GPU", "gpu_seconds", judged[1])):
            old, new = (None if phase is None else getattr(phase, field) for phase in (one, two))
            if old is None and new is None:
                continue
            if name == OUTSIDE and not alike:
                rows.append(
                    ComparedFigure(name=f"{name}, {clock}", unit="s", before=old, after=new, told=_OF_OTHERS)
                )
                continue
            noise = None
            if old is not None and new is not None:
                noise = max(relative * max(step_seconds or 0.0, old, new), 0.05 * max(old, new))
            rows.append(time_change(f"{name}, {clock}", old, new, noise, told))
    return tuple(rows)


def mean_phases(rows: Sequence[PhaseMean]) -> list[PhaseMean]:
    """Return one row a name: means over the devices."""
    by_name: dict[str, list[PhaseMean]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    found = []
    for name, own in by_name.items():
        gpu = [row.gpu_seconds for row in own if row.gpu_seconds is not None]
        found.append(
            PhaseMean(
                name=name,
                pid=own[0].pid,
                host_seconds=sum(row.host_seconds for row in own) / len(own),
                gpu_seconds=sum(gpu) / len(gpu) if gpu else None,
            )
        )
    return found
