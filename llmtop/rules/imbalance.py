"""The rule for ranks that have more to do than others: a stage of a pipeline, an expert, longer sequences.

A straggler is one rank that is slower than those with the same role. Here all ranks of one coordinate take
longer, and those of the other coordinates do not; or a rank has as much more work as it has more tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist, fmean, median, stdev
from typing import Final, NamedTuple

from llmtop import format as fmt
from llmtop.model.phase_costs import own_roles
from llmtop.naming.phase_names import Role
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.rank import JobState, RankState
from llmtop.rules.state.step_costs import StepCosts
from llmtop.rules.state.windows import finite_or_none
from llmtop.rules.step_bound import timed_steps

MORE_PCT: Final = (5.0, 3.5)
"""Percent of the step. Stages of equal work differ by up to 3 %, since no two layers take the same time."""
LEAST_RANKS: Final = 2
"""Ranks of one coordinate: one rank alone may be slow itself."""
STEPS: Final = 12
LASTING_STEPS: Final = (24, 48)
"""Steps that show whether a difference lasts: at least, and at most."""
LASTING_ERRORS: Final = (4.0, 2.5)
"""Multiples of its standard error that the difference must reach, to raise and to stay raised: batches of
unequal length that are equal on average differ by any amount over a dozen steps. These are for one group of ranks
given beforehand: the largest of many groups differs by chance, so their number raises the limit (Bonferroni)."""
QUICK_PART: Final = 16
"""Part of the steps, the quickest ones, in which the work by the host's clock must differ too. Waits for a CPU
are in it and only lengthen a step: on two cores with a load of 13, forward of the first of two equal stages took
96 ms, of the second one 86 ms, for a minute, and 82 and 81 ms in the quickest steps (docs/measurements.md)."""
TOKENS_FACTOR: Final = 1.05
STAGE: Final = "pp"


class RankWork(NamedTuple):
    """A rank's own work in a step."""

    state: RankState
    seconds: float
    step_seconds: float
    by_gpu: bool
    roles: tuple[Role, ...]
    """Roles that count as work."""


class Imbalance(NamedTuple):
    """Ranks that have more to do."""

    role: str | None
    """The parallel dimension; None where only the tokens differ."""
    coordinates: tuple[int, ...]
    heavy: tuple[RankState, ...]
    seconds: float
    """Median work per step of these ranks."""
    other_seconds: float
    step_seconds: float
    ranks: int
    choices: int
    """Groups of which these ranks are the one with the most work."""

    @property
    def share_pct(self) -> float:
        """Return the additional work as a share of the step."""
        return 100.0 * (self.seconds - self.other_seconds) / self.step_seconds


def work_of(job: JobState) -> list[RankWork]:
    """Return the median own work of each rank that trains; empty where the ranks cannot be compared.

    The same for all rules of a round.
    """
    if not isinstance(job.works, list):
        job.works = _find_work(job)
    return job.works


def _find_work(job: JobState) -> list[RankWork]:
    ranks = [state for state in job.ranks if state.is_stepping]
    if len(ranks) < 2:
        return []
    by_gpu = all(timed_steps(state) for state in ranks)
    windows: list[list[StepCosts]] = []
    waits = True
    for state in ranks:
        steps = [step for step in state.recent(STEPS) if step.named and (step.gpu is not None or not by_gpu)]
        if len(steps) < 3:
            return []
        waits = waits and any("comm" in _seconds(step, by_gpu) for step in steps)
        windows.append(steps)
    roles = own_roles(waits_are_apart=waits)
    return [
        RankWork(
            state,
            median([_work_in(step, by_gpu, roles) for step in steps]),
            median([step.total for step in steps]),
            by_gpu,
            roles,
        )
        for state, steps in zip(ranks, windows, strict=True)
    ]


def _work_in(step: StepCosts, by_gpu: bool, roles: tuple[Role, ...]) -> float:
    """Seconds of a step that went into these roles."""
    spent = _seconds(step, by_gpu)
    return sum([spent.get(role, 0.0) for role in roles])


def _seconds(step: StepCosts, by_gpu: bool) -> dict[Role, float]:
    return (step.gpu if by_gpu else step.host) or {}


def find_imbalance(job: JobState, is_raised: bool = False) -> Imbalance | None:
    """Return the ranks that have more to do than the others; None where none have, or that cannot be decided."""
    works = work_of(job)
    return next((one for one in _candidates(works, is_raised) if _is_lasting(one, works, is_raised)), None)


def find_unequal(job: JobState) -> Imbalance | None:
    """Return the ranks that have more to do now, be it by chance: no slow rank is among them for that."""
    return next(_candidates(work_of(job), False), None)


def _candidates(works: Sequence[RankWork], is_raised: bool) -> Iterator[Imbalance]:
    """Yield ranks that had more to do in the last steps, by a dimension of the mesh first."""
    step = median([one.step_seconds for one in works]) if works else 0.0
    if step <= 0:
        return
    least = MORE_PCT[is_raised] / 100 * step
    names = [name for name in works[0].state.rank.roles if all(name in one.state.rank.roles for one in works)]
    found = [one for name in names if (one := _by_role(name, works, least, step)) is not None]
    yield from sorted(found, key=lambda one: -one.share_pct)
    by_tokens = _by_tokens(works, least, step)
    if by_tokens is not None:
        yield by_tokens


def _is_lasting(found: Imbalance, works: Sequence[RankWork], is_raised: bool) -> bool:
    """Return whether the ranks with more work have it in step after step, and not by chance."""
    heavy = {id(state) for state in found.heavy}
    series = [(id(one.state) in heavy, _work_by_step(one)) for one in works]
    common = set.intersection(*(set(steps) for _, steps in series))
    if len(common) < LASTING_STEPS[0]:
        return False
    latest = sorted(common)[-LASTING_STEPS[1] :]
    more = [
        median([steps[index] for is_heavy, steps in series if is_heavy])
        - median([steps[index] for is_heavy, steps in series if not is_heavy])
        for index in latest
    ]
    if not is_beyond_chance(more, found.choices, is_raised):
        return False
    if works[0].by_gpu:
        return True
    quick = [(is_heavy, quick_step([steps[index] for index in latest])) for is_heavy, steps in series]
    work = median([seconds for is_heavy, seconds in quick if is_heavy])
    others = median([seconds for is_heavy, seconds in quick if not is_heavy])
    return work - others >= MORE_PCT[is_raised] / 100 * found.step_seconds


def quick_step(seconds: Sequence[float]) -> float:
    """Return the work in a step in which the rank hardly waited for a CPU."""
    return sorted(seconds)[len(seconds) // QUICK_PART]


def is_beyond_chance(more: Sequence[float], choices: int, is_raised: bool) -> bool:
    """Return whether the longest of some ranks or groups is so by more than chance.

    Args:
        more: of each step the seconds by which it takes longer than the others; at least two steps.
        choices: number of ranks or groups of which it is the longest.
        is_raised: whether the alert is up.
    """
    normal = NormalDist()
    errors = normal.inv_cdf(1.0 - normal.cdf(-LASTING_ERRORS[is_raised]) / choices)
    return fmean(more) >= errors * stdev(more) / math.sqrt(len(more))


def _work_by_step(one: RankWork) -> dict[int, float]:
    return {
        step.index: _work_in(step, one.by_gpu, one.roles)
        for step in one.state.recent(LASTING_STEPS[1] + STEPS)
        if step.named and (step.gpu is not None or not one.by_gpu)
    }


def _by_role(name: str, works: Sequence[RankWork], least: float, step: float) -> Imbalance | None:
    groups: dict[int, list[float]] = {}
    for one in works:
        groups.setdefault(one.state.rank.roles[name], []).append(one.seconds)
    if len(groups) < 2 or min(map(len, groups.values())) < LEAST_RANKS:
        return None
    middles = sorted((median(seconds), at) for at, seconds in groups.items())
    gap, place = max((middles[i + 1][0] - middles[i][0], i) for i in range(len(middles) - 1))
    if gap < least:
        return None
    border = (middles[place][0] + middles[place + 1][0]) / 2
    heavy = tuple(sorted(at for _, at in middles[place + 1 :]))
    light = [at for _, at in middles[: place + 1]]
    # One slow rank moves a group of two by half of what it is slower: then the other of the two is below.
    if min(min(groups[at]) for at in heavy) < border:
        return None
    above = sum(seconds > border for at in light for seconds in groups[at])
    if above > 1:
        return None
    return Imbalance(
        role=name,
        coordinates=heavy,
        heavy=tuple(one.state for one in works if one.state.rank.roles[name] in heavy),
        seconds=median([seconds for at in heavy for seconds in groups[at]]),
        other_seconds=median([seconds for at in light for seconds in groups[at]]),
        step_seconds=step,
        ranks=len(works),
        choices=len(groups),
    )


def _by_tokens(works: Sequence[RankWork], least: float, step: float) -> Imbalance | None:
    """Return the one rank that has as much more work as it has more tokens."""
    tokens = [_tokens_per_step(one.state) for one in works]
    place = max(range(len(works)), key=lambda index: works[index].seconds)
    others = [one.seconds for index, one in enumerate(works) if index != place]
    own, theirs = tokens[place], [one for index, one in enumerate(tokens) if index != place and one is not None]
    if own is None or len(theirs) < len(others) or not median(theirs):
        return None
    factor, usual = own / median(theirs), median(others)
    more = works[place].seconds - usual
    if factor < TOKENS_FACTOR or more < least or works[place].seconds > usual * factor * TOKENS_FACTOR:
        return None
    state = works[place].state
    return Imbalance(None, (), (state,), works[place].seconds, usual, step, len(works), len(works))


def _tokens_per_step(state: RankState) -> float | None:
    tokens, steps = finite_or_none(state.rank.tokens_per_s), finite_or_none(state.rank.steps_per_s)
    return tokens / steps if tokens is not None and steps else None


def peers(job: JobState) -> list[list[RankState]]:
    """Return the ranks of a job in groups with the same work: of one stage, and of one side of an imbalance."""
    found = find_unequal(job)
    groups: dict[tuple[int | bool | None, ...], list[RankState]] = {}
    for state in job.ranks:
        heavy = found is not None and any(state is one for one in found.heavy)
        roles = state.rank.roles
        own = None if found is None or found.role is None else roles.get(found.role)
        groups.setdefault((roles.get(STAGE), own, heavy), []).append(state)
    return list(groups.values())


def _is_unequal(job: JobState, is_raised: bool) -> bool:
    found = find_imbalance(job, is_raised)
    job.imbalance = found or job.imbalance
    return found is not None


def _imbalance_alert(job: JobState) -> AlertText:
    found = job.imbalance
    assert isinstance(found, Imbalance), "called only while the rule holds"
    first = found.heavy[0]
    if found.role is None:
        who, name, verb = first.role_label, first.label, "has"
    else:
        name = f"{fmt.printable(found.role, 12)} {', '.join(map(str, found.coordinates[:4]))}"
        who, verb = f"the {len(found.heavy)} ranks of {name} (of {found.ranks} ranks)", "have"
    own, others = fmt.duration(found.seconds), fmt.duration(found.other_seconds)
    own_tokens = _tokens_per_step(first)
    rest = [state for state in job.ranks if all(state is not one for one in found.heavy)]
    tokens = [one for state in rest if (one := _tokens_per_step(state)) is not None]
    return AlertText(
        severity="warning" if found.share_pct >= 10.0 else "info",
        summary=f"{who[0].upper() + who[1:]} {verb} more work: {own} per step, {others} on the other ranks, "
        f"which wait {fmt.percent_text(found.share_pct)} of the step.",
        evidence={
            "role": found.role,
            "coordinates": ", ".join(map(str, found.coordinates)) or None,
            "ranks": ", ".join(str(one.rank.rank) for one in found.heavy[:16]),
            "own_seconds": found.seconds,
            "others_median_seconds": found.other_seconds,
            "share_of_step_pct": found.share_pct,
            "tokens_per_step": own_tokens,
            "others_tokens_per_step": median(tokens) if tokens else None,
        },
        next="move layers from this pipeline stage to another one"
        if found.role == STAGE
        else "give each rank equally many tokens or experts",
        subject_rank=first,
        points=complete_clauses(
            f"{fmt.shorten_middle(name, 12)}: {own}, others {others}",
            f"the others wait {fmt.percent_text(found.share_pct)} of the step",
        ),
    )


IMBALANCE: Final = Rule[JobState](
    id="imbalance",
    holds=_is_unequal,
    describe=_imbalance_alert,
    covered_by=frozenset({"stalled", "hung_collective"}),
    text=RuleText(
        meaning="No rank is slow: some ranks have more work per step, and the other ranks wait for them.",
        condition="all ranks of one part of a parallel dimension, such as a pipeline stage, work "
        f"{MORE_PCT[0]:g} % of the "
        f"step longer than the other ranks, at least {LEAST_RANKS} ranks each; or one rank works longer in "
        "proportion "
        f"to its larger number of tokens; the difference is {LASTING_ERRORS[0]:g} standard errors over "
        f"{LASTING_STEPS[0]} to {LASTING_STEPS[1]} steps; by the host clock the quickest steps differ as much",
        source="measured: pipeline stages of equal work differ by up to 3 %. The work of a rank is the time of "
        "its phases without waits: by CUDA events if all ranks have them, else by the host clock, whose times "
        "include waits for a CPU",
        hold_seconds=2.0,
        clear_seconds=5.0,
        fields=("step_seconds",),
    ),
)
