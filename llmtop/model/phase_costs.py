"""Time of phases by role, by both clocks; the role of a phase follows from its name.

An unknown name counts as computing, since a script usually names its own work.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from llmtop.model.snapshot import Phase
from llmtop.naming.phase_names import Role, role_of

_WHOLE: Final = frozenset({"input", "h2d", "comm", "sync"})
"""Phases that are one thing as a whole, whatever is nested in them."""
_OWN: Final[tuple[Role, ...]] = ("input", "h2d", "compute", "optimizer")


class RoleSeconds(NamedTuple):
    """Seconds by role."""

    host: dict[Role, float]
    gpu: dict[Role, float] | None
    """None where CUDA events timed none of the phases."""


def work_role(name: str) -> Role:
    """Return the role of a phase as a part of the step; what its name does not say is computing."""
    role = role_of(name)
    return "compute" if role in ("other", "step") else role


@lru_cache(maxsize=1024)
def _role_change(name: str) -> tuple[Role | None, Role | None]:
    """Return which role a phase's time belongs to, and which it has to be taken from since phases nest; None:
    neither.

    Every phase's time includes what is nested in it, so a nested phase counts only where it changes the role.
    """
    parts = name.split("/")
    role, within = work_role(parts[0]), None
    for part in parts[1:]:
        inner = work_role(part)
        role, within = (role if role in _WHOLE or inner == "compute" else inner), role
    return (None, None) if within == role else (role, within)


def seconds_by_role(phases: Iterable[Phase]) -> RoleSeconds:
    """Return what each role took; a nested phase is not counted twice."""
    host: dict[Role, float] = {}
    gpu: dict[Role, float] | None = None
    for phase in phases:
        role, within = _role_change(phase.name)
        if role is None:
            continue
        host[role] = host.get(role, 0.0) + phase.host_seconds
        if within is not None:
            host[within] = host.get(within, 0.0) - phase.host_seconds
        if phase.gpu_seconds is not None:
            gpu = gpu if gpu is not None else {}
            gpu[role] = gpu.get(role, 0.0) + phase.gpu_seconds
            if within is not None:
                gpu[within] = gpu.get(within, 0.0) - phase.gpu_seconds
    return RoleSeconds(host, gpu)


def own_roles(*, waits_are_apart: bool) -> tuple[Role, ...]:
    """Return the roles that are a rank's own work.

    Args:
        waits_are_apart: whether the wait for other ranks has phases of its own; backward holds it otherwise.
    """
    return (*_OWN, "backward") if waits_are_apart else _OWN
