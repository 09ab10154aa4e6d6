"""The rule for one rank that makes the others wait.

Ranks that train synchronously share the step time, so a slow one does not show by its steps: it shows by
waiting least. What a rank does not spend on work of its own (computing, loading, copying) it waits for others,
in backward, in a collective or wherever its next synchronisation lies. The rank whose wait is shortest, by a good
part of the step, holds the others up.
"""

from __future__ import annotations

from statistics import median
from typing import Final, NamedTuple

from llmtop import format as fmt
from llmtop.diagnosis.rank_state import JobState, RankState
from llmtop.diagnosis.rules.base import Rule, RuleText, Told
from llmtop.diagnosis.rules.steps import timed
from llmtop.diagnosis.step_costs import Role, StepCosts

BEHIND_PCT: Final = (10.0, 7.0)
"""(Others' median wait - this rank's wait) / step: to raise, and to stay raised."""
HOST_RATIO: Final = (0.75, 0.8)
HOST_PCT: Final = (3.0, 2.0)
"""By the host's clock alone, which sees how long launching takes but not the work: the others need less than so
much of this rank's time, and it is at least that much of the step."""
CRITICAL_PCT: Final = 20.0
WINDOW_STEPS: Final = 12
SAME_STEP_PCT: Final = 15.0
"""Ranks whose steps differ by more are not in step with each other, and nothing follows from their waits."""
_OWN: Final[tuple[Role, ...]] = ("input", "h2d", "compute")


class Late(NamedTuple):
    """The rank that waits least, and by how much."""

    state: RankState
    share_pct: float
    role: Role
    """What it does longer than the others."""
    own_seconds: float
    others_seconds: float
    step_seconds: float
    clock: str


def _own_roles(ranks: list[RankState], by_gpu: bool) -> tuple[Role, ...]:
    """What counts as a rank's own work. On a GPU the host may sit out the previous step's kernels in "loading"."""
    return _OWN if by_gpu or all(state.gpu is None for state in ranks) else ("h2d", "compute")


def _mean_own(steps: list[StepCosts], roles: tuple[Role, ...], by_gpu: bool) -> dict[Role, float]:
    means: dict[Role, float] = dict.fromkeys(roles, 0.0)
    for step in steps:
        spent = step.gpu if by_gpu else step.host
        for role in roles:
            means[role] += (spent or {}).get(role, 0.0) / len(steps)
    return means


def _window(state: RankState, by_gpu: bool) -> list[StepCosts]:
    if by_gpu:
        return timed(state, 2)
    steps = state.recent(WINDOW_STEPS)
    return steps if len(steps) >= WINDOW_STEPS // 2 and state.steps else []


def find(job: JobState) -> Late | None:
    """The rank that waits least, whatever the distance; None where the ranks cannot be compared."""
    ranks = [state for state in job.ranks if state.stepping]
    if len(ranks) < 2:
        return None
    by_gpu = all(timed(state) for state in ranks)
    windows = [_window(state, by_gpu) for state in ranks]
    if not all(windows) or not all(any(step.named for step in steps) for steps in windows):
        return None
    lengths = [sum(step.total for step in steps) / len(steps) for steps in windows]
    if min(lengths) <= 0 or 100 * (max(lengths) / min(lengths) - 1) > SAME_STEP_PCT:
        return None
    roles = _own_roles(ranks, by_gpu)
    own = [_mean_own(steps, roles, by_gpu) for steps in windows]
    sums = [sum(one.values()) for one in own]
    place = max(range(len(ranks)), key=sums.__getitem__)
    others = [one for index, one in enumerate(own) if index != place]
    step = median(lengths)
    typical = median(sum(one.values()) for one in others)
    excess: dict[Role, float] = {role: own[place][role] - median(one[role] for one in others) for role in roles}
    role = max(excess, key=excess.__getitem__)
    return Late(
        state=ranks[place],
        share_pct=100 * (sums[place] - typical) / step,
        role=role,
        own_seconds=own[place][role],
        others_seconds=own[place][role] - excess[role],
        step_seconds=step,
        clock="GPU" if by_gpu else "host",
    )


def _is_late(job: JobState, up: bool) -> bool:
    late = find(job)
    if late is None:
        return False
    job.memo = late
    if late.share_pct >= BEHIND_PCT[up]:
        return True
    far = late.others_seconds <= HOST_RATIO[up] * late.own_seconds
    return late.clock == "host" and far and late.share_pct >= HOST_PCT[up]


def _tell(job: JobState) -> Told:
    late = job.memo  # of the last look: the alert stays a little longer than the ranks can be compared
    assert isinstance(late, Late), "told only after it held"
    work = {"input": "loading data", "h2d": "copying to the GPU", "compute": "computing"}[late.role]
    label = late.state.label[0].upper() + late.state.label[1:]
    where = f" ({late.state.where})" if late.state.where else ""
    return Told(
        severity="critical" if late.share_pct >= CRITICAL_PCT else "warning",
        summary=f"{label}{where} waits least: {work} takes it {fmt.duration(late.own_seconds)} a step, the others "
        f"{fmt.duration(late.others_seconds)} ({late.clock}'s clock), and they wait for it.",
        evidence={
            "rank": late.state.rank.rank,
            "share_of_step_pct": late.share_pct,
            "own_seconds": late.own_seconds,
            "others_median_seconds": late.others_seconds,
            "step_seconds": late.step_seconds,
            "ranks_compared": len(job.ranks),
        },
        next="press c to capture it beside another rank; look at its GPU's clocks, its data and its host",
        about=late.state,
    )


STRAGGLER: Final = Rule[JobState](
    id="straggler",
    holds=_is_late,
    tell=_tell,
    covered_by=frozenset({"stalled"}),
    text=RuleText(
        title="one rank holds the others up",
        meaning="All ranks of a synchronous training take as long as the slowest. It is the one that waits least.",
        condition=f"a rank spends {BEHIND_PCT[0]:.0f} % of the step more than the others' median on its own work "
        "(computing, loading, copying), by CUDA events where all ranks have them, else by the host's clock over "
        f"the last {WINDOW_STEPS} steps; there also {HOST_PCT[0]:.0f} % of the step if the others need under "
        f"{HOST_RATIO[0]:.0%} of its time; critical from {CRITICAL_PCT:.0f} % on",
        source="two H200s with one rank 40 % slower: its forward took 5.2 ms against 3.4, while both backward "
        "looked alike and its own exposed NCCL time was 1.3 % against 13.5",
        hold_seconds=0.5,
        clear_seconds=5.0,
        fields=("step_seconds", "gpu_idle_pct"),
    ),
)
