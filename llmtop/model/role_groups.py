"""Ranks of a job in groups with one coordinate of a parallel dimension: a pipeline stage, a data-parallel rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from llmtop import format as fmt
from llmtop.model.phase_costs import own_roles, seconds_by_role
from llmtop.model.snapshot import Rank
from llmtop.naming.phase_names import Role


class GroupFigure(NamedTuple):
    """One figure of the ranks of a group."""

    median: float
    spread_pct: float | None
    """Spread from the smallest to the largest, in percent of the median; None of one rank."""


class RoleGroup(NamedTuple):
    """The ranks of a job with one coordinate."""

    job: str
    role: str
    coordinate: int | None
    """None for ranks without that role."""
    ranks: tuple[Rank, ...]
    step_seconds: GroupFigure | None
    """Median step of the ranks."""
    work_seconds: GroupFigure | None
    """Work of the ranks themselves in a step: phases without waits, means of the headline window. None where
    one of the job's ranks has no phases."""
    work_clock: str
    """"GPU" (CUDA events) if all ranks of the job have these, else "host"."""

    @property
    def name(self) -> str:
        """The group in words: "pp 1"."""
        role = fmt.printable(self.role, 24)
        return f"no {role}" if self.coordinate is None else f"{role} {self.coordinate}"


def roles_text(roles: Mapping[str, int]) -> str:
    """Return coordinates in words: "pp 1, tp 1"."""
    return ", ".join(fmt.printable(f"{name} {at}", 24) for name, at in roles.items())


def roles_of(ranks: Iterable[Rank]) -> list[str]:
    """Return the roles that any of the ranks has, in the order in which their groups were made."""
    return list(dict.fromkeys(name for rank in ranks for name in rank.roles))


def grouped(ranks: Sequence[Rank], role: str) -> list[RoleGroup]:
    """Return the groups of the ranks of one job, by coordinate.

    Args:
        ranks: of one job, in their order; those that have ended are in no figure.
        role: "tp", "pp", ...
    """
    living = [rank for rank in ranks if rank.state != "gone"]
    work, clock = _own_work(living)
    members: dict[int | None, list[Rank]] = {}
    for rank in ranks:
        members.setdefault(rank.roles.get(role), []).append(rank)
    found = []
    for at in sorted(members, key=lambda at: (at is None, at or 0)):
        figures = [rank for rank in members[at] if rank.state != "gone"]
        found.append(
            RoleGroup(
                job=ranks[0].job,
                role=role,
                coordinate=at,
                ranks=tuple(members[at]),
                step_seconds=_figure(figures, lambda rank: rank.step_seconds_p50),
                work_seconds=_figure(figures, lambda rank: work.get(rank.pid)),
                work_clock=clock,
            )
        )
    return found


def _own_work(ranks: Sequence[Rank]) -> tuple[dict[int, float], str]:
    """Return own work per step by pid, and its clock; nothing where the ranks cannot be compared."""
    costs = [seconds_by_role(rank.phases) for rank in ranks]
    if not all(rank.phases for rank in ranks):
        return {}, "host"
    timed = [one.gpu for one in costs if one.gpu is not None]
    by_gpu = len(timed) == len(costs)
    seconds: list[dict[Role, float]] = timed if by_gpu else [one.host for one in costs]
    roles = own_roles(waits_are_apart=all("comm" in one for one in seconds))
    work = {rank.pid: sum(one.get(role, 0.0) for role in roles) for rank, one in zip(ranks, seconds, strict=True)}
    return work, "GPU" if by_gpu else "host"


def _figure(ranks: Sequence[Rank], value: Callable[[Rank], float | None]) -> GroupFigure | None:
    known = [one for rank in ranks if (one := value(rank)) is not None]
    if not known or len(known) < len(ranks):
        return None
    middle = median(known)
    is_spread = len(known) > 1 and middle > 0
    return GroupFigure(middle, 100 * (max(known) - min(known)) / middle if is_spread else None)
