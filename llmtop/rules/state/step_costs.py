"""Time of steps by role, by both clocks; the role of a phase follows from its name.

An unknown name counts as computing, since a script usually names its own work.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from llmtop.model.snapshot import Phase, Step
from llmtop.naming.phase_names import Role, role_of
from llmtop.rules.state.windows import finite_or_none

_WHOLE: Final = frozenset({"input", "h2d", "comm", "sync"})
"""Phases that are one thing as a whole, whatever is nested in them."""

LAUNCHING: Final[tuple[Role, ...]] = ("compute", "backward", "optimizer")
"""What a host does to give a GPU its work."""


def work_role(name: str) -> Role:
    """The role of a phase as a part of the step; what its name does not say is computing."""
    role = role_of(name)
    return "compute" if role in ("other", "step") else role


@lru_cache(maxsize=1024)
def _role_change(name: str) -> tuple[Role | None, Role | None]:
    """Which role a phase's time belongs to, and which it has to be taken from since phases nest; None: neither.

    Every phase's time includes what is nested in it, so a nested phase counts only where it changes the role.
    """
    parts = name.split("/")
    role, within = work_role(parts[0]), None
    for part in parts[1:]:
        inner = work_role(part)
        role, within = (role if role in _WHOLE or inner == "compute" else inner), role
    return (None, None) if within == role else (role, within)


class StepCosts:
    """What one step took, in seconds, by the roles of its phases."""

    __slots__ = ("gap", "gpu", "host", "idle", "index", "named", "phases", "total")

    def __init__(self, step: Step, gap: float) -> None:
        self.index = step.index
        self.gap = gap
        """Between the end of the previous step and the start of this one."""
        self.total = step.seconds + gap
        self.named = bool(step.phases)
        """Whether the steps have phases."""
        self.phases = step.phases
        self.host: dict[Role, float] = {}
        self.gpu: dict[Role, float] | None = None
        """None where CUDA events did not time this step."""
        self.idle = finite_or_none(step.gpu_idle_seconds)
        _sum_up(step.phases, self)


def _sum_up(phases: Iterable[Phase], costs: StepCosts) -> None:
    for phase in phases:
        role, within = _role_change(phase.name)
        if role is None:
            continue
        host, gpu = costs.host, phase.gpu_seconds
        host[role] = host.get(role, 0.0) + phase.host_seconds
        if within is not None:
            host[within] = host.get(within, 0.0) - phase.host_seconds
        if gpu is not None:
            timed = costs.gpu = costs.gpu or {}
            timed[role] = timed.get(role, 0.0) + gpu
            if within is not None:
                timed[within] = timed.get(within, 0.0) - gpu


def host_share_pct(costs: Iterable[StepCosts], roles: Iterable[Role]) -> float:
    """What these roles took of the steps' whole time, gaps included, by the host's clock."""
    roles, spent, total = tuple(roles), 0.0, 0.0
    for cost in costs:
        total += cost.total
        for role in roles:
            spent += cost.host.get(role, 0.0)
    return 100.0 * spent / total if total > 0 else 0.0


def gpu_share_pct(costs: Iterable[StepCosts], role: Role) -> float | None:
    """What a role took of the timed steps' whole time by CUDA events; None without a timed step."""
    spent, total = 0.0, 0.0
    for cost in costs:
        if cost.gpu is not None and role in cost.gpu:
            spent += cost.gpu[role]
            total += cost.total
    return 100.0 * spent / total if total > 0 else None


def idle_share_pct(costs: Iterable[StepCosts]) -> float | None:
    """The share of the timed steps' whole time in which the stream was empty; None without a timed step."""
    idle, total = 0.0, 0.0
    for cost in costs:
        if cost.idle is not None:
            idle += cost.idle
            total += cost.total
    return 100.0 * idle / total if total > 0 else None
