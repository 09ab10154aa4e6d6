"""The rule for one rank that makes the others wait.

Where ranks stamp when they come to the collectives of their steps, it is the one that comes last in nearly all of
them, by a good part of the step; nothing else is asked then. Where they do not (a training without
torch.distributed), it is told by phases:

Ranks that train synchronously share the step time, so a slow one does not show by its steps: it shows by
waiting least. What a rank does not spend on work of its own (computing, loading, copying) it waits for others,
in backward, in a collective or wherever its next synchronisation lies. The rank whose wait is shortest, by a good
part of the step, holds the others up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from llmtop import format as fmt
from llmtop.config import STRAGGLER_CRITICAL_PCT, STRAGGLER_PCT
from llmtop.model.phase_costs import work_role
from llmtop.model.snapshot import GRADIENT_POINTS, Arrival, Cause
from llmtop.naming.own_phases import OUTSIDE
from llmtop.naming.phase_names import Role
from llmtop.rules import limits
from llmtop.rules.imbalance import LASTING_STEPS, find_unequal, is_beyond_chance, peers, quick_step
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.rank import JobState, RankState
from llmtop.rules.state.step_costs import StepCosts
from llmtop.rules.state.windows import finite_or_none
from llmtop.rules.step_bound import timed_steps

BEHIND_PCT: Final = limits.threshold_pair(limits.CONFIGURED.straggler.step_pct, (STRAGGLER_PCT, 7.0))
"""(Others' median wait - this rank's wait) / step: to raise, and to stay raised."""
RATIO: Final = (0.83, 0.88)
RATIO_PCT: Final = limits.threshold_pair(0.3 * BEHIND_PCT[0], (3.0, 2.0))
"""Where the others need less than so much of this rank's time, that much of the step is enough. Backward hides its
own part of a slowdown, since the others wait there: 30 % more computing shows in forward alone, as 7 % of the
step, and by the host's clock, which sees launching and not the work, as 4 %. Equal H200s differ by 0.2 %."""
SM_MORE_PCT: Final = 1.0
"""Percent by which more of its SMs must be active, where that is known, by the host clock on a GPU: launching
may be slow there without harm, but SM activity does not wait. 83 against 74 when one of two ranks had 40 %
more to compute."""
CRITICAL_PCT: Final = limits.CONFIGURED.straggler.critical_pct or max(STRAGGLER_CRITICAL_PCT, 2 * BEHIND_PCT[0])
"""A configured threshold above 20 % leaves warnings, too: critical is then from twice that on."""
WINDOW_STEPS: Final = 12
SAME_STEP_PCT: Final = 15.0
"""Ranks whose steps differ by more are not in step with each other, and nothing follows from their waits."""
LAST_PCT: Final = (90.0, 75.0)
"""Percent of the steps in which a rank must come last: to raise, and to stay raised. Among equal ranks on two
H100s one was last in up to 86 %, since chance is not alike for all; a planted one was in 100."""
LATE_PCT: Final[Mapping[str, tuple[float, float]]] = {"GPU": (2.0, 1.5), "host": (4.0, 3.0)}
"""Percent of the step by which it must come after the last of the others. Chance and communication stayed under
2 % by CUDA events and under some 4 % by the host clock, planted ranks were at 8 to 43 %."""
LATE_AT_PHASE_PCT: Final = (10.0, 7.0)
"""The same where a phase's beginning is what is stamped (FSDP). Equal ranks under FSDP2 on two H100s, with little
but communication in a step, were up to 6 % apart there for seconds on end, a rank that slept 57 %."""
LATE_ERRORS: Final = (6.0, 3.0)
"""Multiples of its standard error that the delay must reach. Equal CPU ranks beside other programs differed by
a fifth of a step, by chance; in some hours of that, resampled, six was reached once, and four every few
minutes."""
FREE_PACED_PCT: Final = 25.0
"""Percent of the time in which the GPU of one of the ranks waits for its host. Hosts that launch too slowly do
not wait for each other: one may be ahead by any distance, at no cost, while its GPU stands in a collective.
Two equal ranks under FSDP2 on H100s were 6 and 11 ms of a step apart for seconds, now the one and now the
other ahead. The one behind waited for its host in 38 to 71 % of the time; or its GPU stood in collectives,
and the other's waited for its host in 74 to 92."""
OWN_MORE_PCT: Final = (5.0, 3.5)
"""Percent of the step by which the host of such a rank must be longer at one phase than the others' hosts,
which are slow as well. Those two differed by 0.9 % at most; planted ranks by 40 and more."""
AWAITED_SHARE: Final = 0.5
"""Share of the longer work that the others must spend more in communication: less is noise of another phase."""
_OWN: Final[tuple[Role, ...]] = ("input", "h2d", "compute")


class PhaseTimes(NamedTuple):
    """A phase of the straggler, with its median seconds per step there and on the other ranks."""

    name: str
    own_seconds: float
    others_seconds: float


class Straggler(NamedTuple):
    """The rank that the others wait for: it waits least itself. And by how much."""

    state: RankState
    share_pct: float
    role: Role
    """Role that takes longer than on the other ranks."""
    is_distinct: bool
    """True if it is behind in nearly every step, and not once: a checkpoint, an evaluation."""
    own_seconds: float
    others_seconds: float
    step_seconds: float
    clock: str
    roles: tuple[Role, ...]
    """Roles that count as its own work."""
    own_steps: list[StepCosts]
    other_steps: list[list[StepCosts]]
    """The steps by which that was judged: its own, and those of each of the others."""

    def longest_phase(self) -> PhaseTimes:
        """Return the phase of that role which differs most; computed only for a raised alert, since it is slow."""
        found = _longest_phase(self.own_steps, self.other_steps, self.role, self.clock == "GPU")
        return found or PhaseTimes(self.role, self.own_seconds, self.others_seconds)


class LastRank(NamedTuple):
    """The rank that comes last to the collectives, and by how much."""

    state: RankState
    arrival: Arrival
    late_seconds: float
    step_seconds: float

    @property
    def share_pct(self) -> float:
        """Return the others' wait for it as a share of the step."""
        return 100 * self.late_seconds / self.step_seconds


def _is_stamped(job: JobState) -> bool:
    return any(state.rank.arrivals is not None for state in job.ranks)


def find_last_rank(job: JobState, is_raised: bool) -> LastRank | None:
    """Return the rank that comes last in nearly all steps and by enough; None without one.

    The easier thresholds are for the rank that the alert names already; no other is accused by them.
    """
    named = job.memo.state.key if is_raised and isinstance(job.memo, LastRank) else None
    again = [state for state in job.ranks if state.key == named]
    return _latest(job.ranks, again, True) or _latest(job.ranks, job.ranks, False)


def _latest(states: Sequence[RankState], judged: Iterable[RankState], is_raised: bool) -> LastRank | None:
    found: list[LastRank] = []
    for state in judged:
        step = finite_or_none(state.rank.step_seconds_p50) or finite_or_none(state.rank.step_seconds)
        if step is None or step <= 0 or not state.is_stepping:
            continue
        for arrival in state.rank.arrivals or ():
            late = _late_seconds(arrival, step, is_raised)
            if late is not None and not _is_host_paced(state, states, arrival, step, is_raised):
                found.append(LastRank(state, arrival, late, step))
    return max(found, key=lambda last: last.late_seconds / last.arrival.error_seconds, default=None)


def _late_seconds(arrival: Arrival, step: float, is_raised: bool) -> float | None:
    """Return the time by which a rank comes last, if that is enough and in nearly all steps; else None."""
    by_pct = LATE_PCT[arrival.clock] if arrival.point in GRADIENT_POINTS else LATE_AT_PHASE_PCT
    least = max(by_pct[is_raised] / 100 * step, LATE_ERRORS[is_raised] * arrival.error_seconds)
    return (
        arrival.late_seconds if arrival.last_pct >= LAST_PCT[is_raised] and arrival.late_seconds >= least else None
    )


def _is_host_paced(
    state: RankState, states: Sequence[RankState], arrival: Arrival, step: float, is_raised: bool
) -> bool:
    """Return True if a rank is behind by the GPU's clock only because its host launches as slowly as the others'
    do.

    Its own GPU may stand in a collective meanwhile, and so not wait for its host: the other's does.
    """
    paced = (finite_or_none(one.rank.gpu_host_paced_pct) for one in states if one.is_stepping)
    if arrival.clock != "GPU" or max((pct for pct in paced if pct is not None), default=0.0) < FREE_PACED_PCT:
        return False
    others = [_host_parts(other) for other in states if other is not state and other.is_stepping]
    excess = (
        seconds - median([one.get(name, 0.0) for one in others])
        for name, seconds in _host_parts(state).items()
        if others
    )
    return max(excess, default=0.0) < OWN_MORE_PCT[is_raised] / 100 * step


def _host_parts(state: RankState) -> dict[str, float]:
    """Return the mean host seconds of a rank's step: each phase, and the time outside of phases."""
    parts = {phase.name: phase.host_seconds for phase in state.rank.phases if "/" not in phase.name}
    return parts | {OUTSIDE: finite_or_none(state.rank.outside_seconds) or 0.0}


def _own_roles(ranks: list[RankState], by_gpu: bool) -> tuple[Role, ...]:
    """Return the roles that count as a rank's own work. On a GPU the host may wait for the previous step's
    kernels in "loading"."""
    return _OWN if by_gpu or all(state.gpu is None for state in ranks) else ("h2d", "compute")


def _seconds_by_role(step: StepCosts, by_gpu: bool) -> dict[Role, float]:
    return (step.gpu if by_gpu else step.host) or {}


def _spent_by_role(
    windows: list[list[StepCosts]], roles: tuple[Role, ...], by_gpu: bool
) -> list[dict[Role, list[float]]]:
    """Return the seconds of each role for each rank, step by step."""
    found = []
    for steps in windows:
        spent = [_seconds_by_role(step, by_gpu) for step in steps]
        found.append({role: [one.get(role, 0.0) for one in spent] for role in roles})
    return found


def _own_work(spent: dict[Role, list[float]], roles: tuple[Role, ...]) -> tuple[dict[Role, float], list[float]]:
    """Return the median over steps of each role's seconds, and a rank's own work in each step, the least first."""
    usual = {role: median(spent[role]) for role in roles}
    return usual, sorted(map(sum, zip(*(spent[role] for role in roles), strict=True)))


def _is_distinct(own_steps: list[float], others: list[list[float]]) -> bool:
    """Return True if the lower quartile of one rank's steps is above the upper quartile of every other's."""
    return all(own_steps[len(own_steps) // 4] > sums[-1 - len(sums) // 4] for sums in others)


def _longest_phase(
    own_steps: list[StepCosts], others: list[list[StepCosts]], role: Role, by_gpu: bool
) -> PhaseTimes | None:
    """Return the phase of that role in which one rank differs most from the others; None if that clock timed
    none."""

    def usual(steps: list[StepCosts]) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for step in steps:
            for phase in step.phases:
                seconds = phase.gpu_seconds if by_gpu else phase.host_seconds
                if seconds is not None and work_role(phase.name) == role:
                    found.setdefault(phase.name, []).append(seconds)
        return {name: median(values) for name, values in found.items()}

    own, theirs = usual(own_steps), [usual(steps) for steps in others]
    found = [PhaseTimes(name, own[name], median([one.get(name, 0.0) for one in theirs])) for name in own]
    return max(found, key=lambda phase: phase.own_seconds - phase.others_seconds, default=None)


def _window(state: RankState, by_gpu: bool) -> list[StepCosts]:
    if by_gpu:
        known = [step for step in state.recent(WINDOW_STEPS) if step.gpu is not None]
        return known if len(known) > 2 else timed_steps(state, 2)
    steps = state.recent(WINDOW_STEPS)
    return steps if len(steps) >= WINDOW_STEPS // 2 and state.steps else []


def find_straggler(job: JobState) -> Straggler | None:
    """Return the rank that waits least among those with the same work, whatever the distance; None where none
    can be compared."""
    found = [late for group in peers(job) if (late := _find_among(group)) is not None]
    return max(found, key=lambda late: (late.is_distinct, late.share_pct), default=None)


def _find_among(states: Sequence[RankState]) -> Straggler | None:
    ranks = [state for state in states if state.is_stepping]
    if len(ranks) < 2:
        return None
    by_gpu = all(timed_steps(state) for state in ranks)
    windows = [_window(state, by_gpu) for state in ranks]
    if not all(windows) or not all(any(step.named for step in steps) for steps in windows):
        return None
    lengths = [median([step.total for step in steps]) for steps in windows]
    if min(lengths) <= 0 or 100 * (max(lengths) / min(lengths) - 1) > SAME_STEP_PCT:
        return None
    roles = _own_roles(ranks, by_gpu)
    spent = _spent_by_role(windows, (*roles, "backward"), by_gpu)
    found = _longest_worker(ranks, windows, lengths, spent, roles, by_gpu=by_gpu)
    # A backward pass that exchanges gradients holds the wait for the last rank. It is a rank's own work only where
    # that wait has a phase of its own, and there the rank waits least.
    with_backward = _longest_worker(ranks, windows, lengths, spent, (*roles, "backward"), by_gpu=by_gpu)
    is_larger = with_backward.share_pct > found.share_pct
    return with_backward if is_larger and _is_awaited(with_backward, by_gpu) else found


def _is_awaited(late: Straggler, by_gpu: bool) -> bool:
    """Return True if the others wait in communication for at least half of what the rank takes longer."""

    def waited(steps: list[StepCosts]) -> float:
        return median([_seconds_by_role(step, by_gpu).get("comm", 0.0) for step in steps])

    others = [waited(steps) for steps in late.other_steps]
    longer = late.share_pct / 100 * late.step_seconds
    return median(others) - waited(late.own_steps) >= AWAITED_SHARE * longer and min(others) > 0


def _longest_worker(
    ranks: list[RankState],
    windows: list[list[StepCosts]],
    lengths: list[float],
    spent: list[dict[Role, list[float]]],
    roles: tuple[Role, ...],
    *,
    by_gpu: bool,
) -> Straggler:
    """Return the rank with the most work of these roles, against the median of the others.

    Args:
        ranks: at least two.
        windows: the steps of each rank.
        lengths: the median step of each rank, in seconds.
        spent: of each rank the seconds of each role, step by step.
        roles: what counts as work.
        by_gpu: whether by CUDA events; else by the host's clock.
    """
    own, each = zip(*(_own_work(one, roles) for one in spent), strict=True)
    sums = [sum(one.values()) for one in own]
    place = max(range(len(ranks)), key=sums.__getitem__)
    others = [one for index, one in enumerate(own) if index != place]
    step = median(lengths)
    typical = median([sum(one.values()) for one in others])
    excess: dict[Role, float] = {role: own[place][role] - median([one[role] for one in others]) for role in roles}
    role = max(excess, key=excess.__getitem__)
    other_windows = [steps for index, steps in enumerate(windows) if index != place]
    return Straggler(
        state=ranks[place],
        share_pct=100 * (sums[place] - typical) / step,
        role=role,
        is_distinct=_is_distinct(each[place], [sums for index, sums in enumerate(each) if index != place]),
        own_seconds=own[place][role],
        others_seconds=own[place][role] - excess[role],
        step_seconds=step,
        clock="GPU" if by_gpu else "host",
        roles=roles,
        own_steps=windows[place],
        other_steps=other_windows,
    )


def _is_straggling(job: JobState, is_raised: bool) -> bool:
    if _is_stamped(job):
        last = find_last_rank(job, is_raised)
        unequal = None if last is None else find_unequal(job)
        if last is not None and unequal is not None and any(last.state is one for one in unequal.heavy):
            return False  # it has more to do: `imbalance`
        job.memo = last or job.memo
        return last is not None
    late = find_straggler(job)
    if late is None or not late.is_distinct or not _is_lasting(job, late, is_raised):
        return False
    far = late.others_seconds <= RATIO[is_raised] * late.own_seconds and late.share_pct >= RATIO_PCT[is_raised]
    visible = late.share_pct >= BEHIND_PCT[is_raised]
    if not visible and not (far and (late.clock == "GPU" or _is_longer_by_host(job, late, is_raised))):
        return False
    job.memo = late
    return True


def _is_lasting(job: JobState, late: Straggler, is_raised: bool) -> bool:
    """Return whether a rank takes longer by the host's clock in more steps than were looked at to find it.

    On a machine with far more to run than CPUs, one of two equal ranks was longer in nearly all of 12 steps, by
    7 % of the step, and by 1 standard error in 24. A rank that slept twice as long was longer by 8 and more.
    """
    if late.clock == "GPU":
        return True
    own, *others = _host_works(job, late)
    more = [seconds - median(theirs) for seconds, *theirs in zip(own, *others, strict=True)] if others else []
    return len(more) >= 2 and is_beyond_chance(more, len(others) + 1, is_raised)


def _is_longer_by_host(job: JobState, late: Straggler, is_raised: bool) -> bool:
    """Return whether a small difference by the host's clock is work: waits for a CPU are in it.

    Of two equal ranks of a stage one took 6.2 ms, the other one 4.6 ms of a step of 70 ms, for five seconds, on
    two cores with a load of 8.
    """
    own, *others = map(quick_step, _host_works(job, late))
    least = RATIO_PCT[is_raised] / 100 * late.step_seconds
    return own - median(others) >= least and not _is_refuted_by_gpus(job, late.state)


def _host_works(job: JobState, late: Straggler) -> list[list[float]]:
    """Return the work by the host's clock in the last common steps, of the rank first and then of its peers."""
    group = next((one for one in peers(job) if any(state is late.state for state in one)), [])
    ranks = [late.state, *(state for state in group if state is not late.state and state.is_stepping)]
    works = [_host_work(state, late.roles) for state in ranks]
    common = sorted(set(works[0]).intersection(*works[1:]))[-LASTING_STEPS[0] :]
    return [[work[index] for index in common] for work in works]


def _host_work(state: RankState, roles: tuple[Role, ...]) -> dict[int, float]:
    """Return the seconds of these roles in each of the last steps, by the host's clock."""
    return {
        step.index: sum((step.host or {}).get(role, 0.0) for role in roles)
        for step in state.recent(LASTING_STEPS[0] + WINDOW_STEPS)
        if step.named
    }


def _is_refuted_by_gpus(job: JobState, late: RankState) -> bool:
    """Return True if GPU activity contradicts a rank that is late by the host's clock."""
    own_steps = late.gpu.mean("sm_active_pct") if late.gpu else None
    theirs = [
        sm
        for state in job.ranks
        if state is not late and state.gpu and (sm := state.gpu.mean("sm_active_pct")) is not None
    ]
    return own_steps is not None and bool(theirs) and own_steps < median(theirs) + SM_MORE_PCT


_DEFAULT_ADVICE: Final = "press c to profile it beside another rank; check its GPU clocks, its data and its host"
_POINT_TEXTS: Final = {
    "forward": "forward",
    "backward": "backward",
    "first_gradient": "its first gradient",
    "last_gradient": "its last gradient",
}


def _clock_name(clock: str) -> str:
    """Return what measured the times: not "GPU clock", which is a frequency too."""
    return "CUDA events" if clock == "GPU" else f"{clock} clock"


def _last_rank_summary(last: LastRank) -> str:
    arrival, late = last.arrival, fmt.duration(last.late_seconds)
    step = f"in a step of {fmt.duration(last.step_seconds)} ({_clock_name(arrival.clock)})"
    if arrival.point == "waits":
        return f"is the straggler: the other ranks wait {late} for it {step}"
    point = _POINT_TEXTS.get(arrival.point, arrival.point)
    return f"is the straggler: it reaches {point} {late} later than all other ranks, {step}"


def _last_rank_points(last: LastRank) -> tuple[str, ...]:
    arrival, late = last.arrival, fmt.duration(last.late_seconds)
    added, step = f"adds {late} per step", f"step {fmt.duration(last.step_seconds)}"
    clock = _clock_name(arrival.clock)
    if arrival.point == "waits":
        return complete_clauses(added, f"{step} ({clock})", "the other ranks wait for it")
    point = _POINT_TEXTS.get(arrival.point, fmt.printable(arrival.point, 40))
    return complete_clauses(
        f"{late} later than other ranks", step, f"reaches {point} last ({clock})", "the other ranks wait"
    )


def _own_outside_work(job: JobState, last: LastRank) -> Cause | None:
    """Return the activity outside of all phases that only the late rank has, if it explains most of the delay."""
    enough = last.late_seconds / 2
    own_steps, cause = (
        finite_or_none(last.state.rank.outside_seconds),
        next(iter(last.state.rank.outside_causes), None),
    )
    theirs = [finite_or_none(state.rank.outside_seconds) for state in job.ranks if state is not last.state]
    known = [seconds for seconds in theirs if seconds is not None]
    if cause is None or own_steps is None or not known or len(known) < len(theirs):
        return None
    return cause if cause.seconds >= enough and own_steps - max(known) >= enough else None


def _last_rank_alert(job: JobState, last: LastRank) -> AlertText:
    arrival, state = last.arrival, last.state
    label = state.label[0].upper() + state.label[1:]
    where = f" ({state.location})" if state.location else ""
    cause = _own_outside_work(job, last)
    return AlertText(
        severity="critical" if last.share_pct >= CRITICAL_PCT else "warning",
        summary=f"{label}{where} {_last_rank_summary(last)}.",
        evidence={
            "rank": state.rank.rank,
            "point": fmt.printable(arrival.point, 80),
            "clock": arrival.clock,
            "late_seconds": last.late_seconds,
            "late_error_seconds": arrival.error_seconds,
            "share_of_step_pct": last.share_pct,
            "last_in_steps_pct": arrival.last_pct,
            "steps_compared": arrival.steps,
            "step_seconds": last.step_seconds,
            "ranks_compared": arrival.ranks,
            "cause": None if cause is None else fmt.printable(cause.what, 160),
            "cause_seconds": None if cause is None else cause.seconds,
        },
        next=_DEFAULT_ADVICE if cause is None else f"check {fmt.printable(cause.what, 80)}; {_DEFAULT_ADVICE}",
        subject_rank=state,
        points=_last_rank_points(last),
    )


def _straggler_alert(job: JobState) -> AlertText:
    late = job.memo  # of the last evaluation: the alert stays a little longer than the ranks can be compared
    if isinstance(late, LastRank):
        return _last_rank_alert(job, late)
    assert isinstance(late, Straggler), "told only after it held"
    phase = late.longest_phase()
    name, own, others = fmt.printable(phase.name, 40), phase.own_seconds, phase.others_seconds
    label = late.state.label[0].upper() + late.state.label[1:]
    where = f" ({late.state.location})" if late.state.location else ""
    return AlertText(
        severity="critical" if late.share_pct >= CRITICAL_PCT else "warning",
        summary=f"{label}{where} is the straggler: {name} takes {fmt.duration(own)} per step, "
        f"{fmt.duration(others)} on the other ranks ({_clock_name(late.clock)}).",
        evidence={
            "rank": late.state.rank.rank,
            "phase": fmt.printable(phase.name, 80),
            "share_of_step_pct": late.share_pct,
            "own_seconds": late.own_seconds,
            "others_median_seconds": late.others_seconds,
            "step_seconds": late.step_seconds,
            "ranks_compared": len(job.ranks),
        },
        next=_DEFAULT_ADVICE,
        subject_rank=late.state,
        points=complete_clauses(
            f"{fmt.shorten_middle(name, 14)} {fmt.duration(own)}, other ranks {fmt.duration(others)}",
            f"adds {fmt.duration(late.share_pct / 100 * late.step_seconds)} per step",
            "the other ranks wait for it",
        ),
    )


STRAGGLER: Final = Rule[JobState](
    id="straggler",
    holds=_is_straggling,
    describe=_straggler_alert,
    covered_by=frozenset({"stalled", "hung_collective"}),
    text=RuleText(
        meaning="All ranks of a synchronous training take as long as the slowest rank.",
        condition=f"in {LAST_PCT[0]:.0f} % of the steps this rank is the last to reach its gradients, "
        f"{LATE_PCT['GPU'][0]:.0f} % of the step or more after the others by CUDA events, or "
        f"{LATE_PCT['host'][0]:.0f} % by the host clock. Without these timestamps: "
        f"its own work (computing, loading, copying) takes {BEHIND_PCT[0]:.0f} % of the step longer than the "
        "median of the other ranks, in nearly every of the last "
        f"{WINDOW_STEPS} steps, and by the host clock beyond chance in {LASTING_STEPS[0]}; "
        f"{RATIO_PCT[0]:.0f} % is enough if the work of the other ranks takes under "
        f"{100 * RATIO[0]:.0f} % of its time, by the host clock in the quickest steps too. "
        f"Critical from {CRITICAL_PCT:.0f} % of the step",
        source="two H200 with one rank 40 % slower: its forward took 5.2 ms, 3.4 ms on the other rank; both "
        "backward times were equal, and exposed communication was 1.3 % and 13.5 %; the arrival "
        "times were checked on two H100 with four planted causes",
        clear_seconds=5.0,
        fields=("step_seconds", "gpu_idle_pct"),
    ),
)
