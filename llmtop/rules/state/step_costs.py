"""Time of steps by role, by both clocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from llmtop.model.phase_costs import RoleSeconds, seconds_by_role
from llmtop.model.snapshot import Step
from llmtop.naming.phase_names import Role
from llmtop.rules.state.windows import finite_or_none

LAUNCHING: Final[tuple[Role, ...]] = ("compute", "backward", "optimizer")
"""Roles in which a host launches work on a GPU."""


class StepCosts:
    """Times of one step, in seconds, by the roles of its phases."""

    __slots__ = ("gap", "gpu", "host", "idle", "index", "named", "phases", "roles", "total")

    def __init__(self, step: Step, gap: float, before: StepCosts | None = None) -> None:
        """Compute the times of a step.

        Args:
            step: the step.
            gap: seconds between the end of the previous step and the start of this one.
            before: costs of the previous step, which has the same phases if both stand for the mean of a minute.
        """
        self.index = step.index
        self.gap = gap
        """Time between the end of the previous step and the start of this one."""
        self.total = step.seconds + gap
        self.named = bool(step.phases)
        """True if the steps have phases."""
        self.phases = step.phases
        is_same = before is not None and before.phases is step.phases
        self.roles: RoleSeconds = before.roles if before and is_same else seconds_by_role(step.phases)
        self.host, self.gpu = self.roles
        """Seconds by role; by the GPU's clock None where CUDA events did not time this step."""
        self.idle = finite_or_none(step.gpu_idle_seconds)


def host_share_pct(costs: Iterable[StepCosts], roles: Iterable[Role]) -> float:
    """Return the share of these roles in the steps' whole time, gaps included, by the host clock."""
    roles, spent, total = tuple(roles), 0.0, 0.0
    for cost in costs:
        total += cost.total
        for role in roles:
            spent += cost.host.get(role, 0.0)
    return 100.0 * spent / total if total > 0 else 0.0


def gpu_share_pct(costs: Iterable[StepCosts], role: Role) -> float | None:
    """Return the share of a role in the timed steps' whole time by CUDA events; None without a timed step."""
    spent, total = 0.0, 0.0
    for cost in costs:
        if cost.gpu is not None and role in cost.gpu:
            spent += cost.gpu[role]
            total += cost.total
    return 100.0 * spent / total if total > 0 else None


def idle_share_pct(costs: Iterable[StepCosts]) -> float | None:
    """Return the share of the timed steps' whole time in which the stream was empty; None without a timed step."""
    idle, total = 0.0, 0.0
    for cost in costs:
        if cost.idle is not None:
            idle += cost.idle
            total += cost.total
    return 100.0 * idle / total if total > 0 else None
