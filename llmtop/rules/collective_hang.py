"""The rule for ranks that wait in a collective for one that does not come.

torch counts the collectives of each process group in each process. In a job that goes on the counts of its ranks
are the same or one apart; where it hangs, some have called one more than the rank that they wait for.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from llmtop import format as fmt
from llmtop.model.snapshot import CollectiveCount, CommunicatorRank, StuckCommunicator
from llmtop.model.stall_thresholds import COUNTS_STILL_S, QUIET_S, QUIET_STEPS
from llmtop.rules.hang import is_still_doing_other_work, seconds_without_step
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses, stack_advice
from llmtop.rules.state.communicator import CommunicatorState
from llmtop.rules.state.rank import JobState, RankState


class Hang(NamedTuple):
    """Ranks that wait in a collective, and the one that has not called it where that is known."""

    group: str
    waiting: list[RankState]
    number: int
    """Number of the collective that they wait in."""
    operation: str | None
    behind: RankState | None
    reached: int | None
    """The number of the last collective of that group that the one behind has called."""


def is_waiting(count: CollectiveCount) -> bool:
    """Return True if the process has called a collective of that group that has not ended."""
    return count.completed is not None and count.completed < count.enqueued


def find_hang(job: JobState) -> Hang | None:
    """Return the waiting ranks and the rank they wait for; None where no rank waits in a stuck collective.

    A rank may be behind because it waits itself, in another group for a third one: the one to name is behind and
    waits nowhere.
    """
    stuck = [(state, count) for state in job.ranks for count in _counts(state) if is_waiting(count)]
    if not stuck:
        return None
    hangs = [_in_group(job, group, stuck) for group in dict.fromkeys(count.group for _, count in stuck)]
    named = [hang for hang in hangs if hang.behind is not None]
    first = [hang for hang in named if hang.behind not in [state for state, _ in stuck]]
    return (first or named or hangs)[0]


def _counts(state: RankState) -> tuple[CollectiveCount, ...]:
    return state.rank.collectives if state.rank.state not in ("gone", "stopped") else ()


def _in_group(job: JobState, group: str, stuck: list[tuple[RankState, CollectiveCount]]) -> Hang:
    number = max(count.enqueued for _, count in stuck if count.group == group)
    waiting = [state for state, count in stuck if count.group == group and count.enqueued == number]
    operation = next((c.operation for s, c in stuck if s in waiting and c.group == group and c.operation), None)
    known = {id(s): c.enqueued for s in job.ranks for c in _counts(s) if c.group == group}
    late = [s for s in job.ranks if known.get(id(s), number) < number]
    behind = min(late, key=lambda state: known[id(state)], default=None)
    return Hang(group, waiting, number, operation, behind, None if behind is None else known[id(behind)])


def _is_hung(job: JobState, is_raised: bool) -> bool:
    hang = find_hang(job)
    if hang is None or any(state.rank.state in ("gone", "stopped") for state in job.ranks):
        return False  # `stalled` names those, and why
    seen = sum(bool(_counts(state)) for state in job.ranks)
    if hang.behind is None and seen < job.world_size:
        return False  # the missing rank may be on another node, or not attached yet
    # The first rank often validates or saves alone while the others wait for it.
    return hang.behind is None or not is_still_doing_other_work(hang.behind)


def has_known_culprit(job: JobState) -> bool:
    """Return True if the ranks' own counters show which rank is behind."""
    hang = find_hang(job)
    return hang is not None and hang.behind is not None


def _hang_alert(job: JobState) -> AlertText:
    hang = find_hang(job)
    named = hang.behind or hang.waiting[0] if hang else job.ranks[0]
    seconds = max(
        (s for state in job.ranks if (s := seconds_without_step(state, job.now)) is not None), default=None
    )
    return AlertText(
        severity="critical",
        summary=_hang_summary(hang, seconds) if hang else "",
        evidence={
            "rank": named.rank.rank,
            "host": named.rank.host,
            "process_group": hang.group if hang else None,
            "operation": hang.operation if hang else None,
            "collective": hang.number if hang else None,
            "last_called": hang.reached if hang else None,
            "behind_by": hang.number - hang.reached if hang and hang.reached is not None else None,
            "waiting_ranks": len(hang.waiting) if hang else None,
            "seconds_without_step": seconds,
        },
        next=_hang_next_step(hang, named),
        subject_rank=named,
        since=None if seconds is None else job.now - seconds,
        points=_hang_points(hang) if hang else (),
    )


def _hang_summary(hang: Hang, seconds: float | None) -> str:
    since = "No step yet" if seconds is None else f"No step for {fmt.duration(float(round(seconds)))}"
    what = f"{_collective_name(hang.operation)} #{hang.number} of process group {hang.group}"
    if hang.behind is None:
        return f"{since}: all {len(hang.waiting)} ranks wait in {what}, which does not complete."
    state = hang.behind
    where = f" ({state.location})" if state.location else ""
    return (
        f"{since}: {state.label}{where} never entered {what} (its last was #{hang.reached}); "
        f"{_waiting_text(hang)}."
    )


def _collective_name(operation: str | None) -> str:
    """Return the operation without the backend: "all_reduce" for "nccl:all_reduce"."""
    return (operation or "collective").rpartition(":")[2]


def _waiting_text(hang: Hang) -> str:
    return f"{fmt.counted(len(hang.waiting), 'rank')} {'are' if len(hang.waiting) != 1 else 'is'} waiting"


def _hang_points(hang: Hang) -> tuple[str, ...]:
    what, group = f"{_collective_name(hang.operation)} #{hang.number}", f"process group {hang.group}"
    if hang.behind is None:
        return complete_clauses(f"{what} does not complete", f"all {len(hang.waiting)} ranks are waiting", group)
    return complete_clauses(f"never entered {what}", _waiting_text(hang), f"its last was #{hang.reached}", group)


def _hang_next_step(hang: Hang | None, named: RankState) -> str:
    if hang is not None and hang.behind is None:
        return "check the network, and that all ranks pass equal shapes; set NCCL_DEBUG=INFO and restart the job"
    return stack_advice(named.label, named.rank.pid)


HUNG_COLLECTIVE: Final = Rule[JobState](
    id="hung_collective",
    holds=_is_hung,
    describe=_hang_alert,
    text=RuleText(
        meaning="Either one rank of the process group has not entered the collective, or the collective does not "
        "complete. The named rank has not entered it, and does not wait in another collective.",
        condition=f"no step ends for {QUIET_S:.0f} s and for {QUIET_STEPS:.0f} times the median step, and an "
        "entered collective "
        f"has not completed, while no rank enters another one for {COUNTS_STILL_S:.0f} s. "
        "Not while the rank that did not enter it does other work, such as a validation. "
        "If no rank is found this way: twice in a row, NCCL RAS reports ranks of a communicator that are behind "
        "the "
        "others or do not reply",
        source="the numbers of collectives in the PyTorch flight recorder (NCCL, gloo) and, from NCCL 2.24 on, "
        "NCCL RAS in "
        "all processes of the job; measured on 2 H100 with one rank outside an all-reduce: collectives 40 "
        "and 39",
        fields=("step_seconds", "util_pct", "power_watts"),
    ),
)


# ---- by NCCL RAS: attached and unattached ranks, on all nodes ----


def _is_communicator_stuck(state: CommunicatorState, is_raised: bool) -> bool:
    stuck = state.stuck
    return not state.known and bool(stuck.behind_count or stuck.missing_count)


def _communicator_alert(state: CommunicatorState) -> AlertText:
    stuck = state.stuck
    late = (*stuck.missing, *stuck.behind)
    seconds = max(
        (s for one in state.ranks if (s := seconds_without_step(one, state.now)) is not None), default=None
    )
    return AlertText(
        severity="critical",
        summary=_communicator_summary(state, seconds),
        evidence={
            "rank": late[0].rank,
            "host": late[0].host,
            "rank_pid": late[0].pid,
            "communicator": stuck.id,
            "communicator_size": stuck.size,
            "operation": stuck.operation,
            "collective": stuck.number,
            "last_called": late[0].called,
            "behind_by": None if late[0].called is None or stuck.number is None else stuck.number - late[0].called,
            "waiting_ranks": stuck.waiting_count,
            "behind_ranks": stuck.behind_count,
            "missing_ranks": stuck.missing_count,
            "seconds_without_step": seconds,
        },
        since=None if seconds is None else state.now - seconds,
        next=f"on {late[0].host}, run: py-spy dump --pid {late[0].pid}; read the log of that rank",
        points=_communicator_points(stuck),
    )


def _communicator_summary(state: CommunicatorState, seconds: float | None) -> str:
    stuck = state.stuck
    since = (
        "The job makes no progress" if seconds is None else f"No step for {fmt.duration(float(round(seconds)))}"
    )
    who = []
    if stuck.missing:
        who.append(f"{_rank_list(stuck.missing, stuck.missing_count)} not replying to NCCL")
    if stuck.behind:
        late = f"{_rank_list(stuck.behind, stuck.behind_count)} at {_collective_name(stuck.operation)}"
        who.append(f"{late} #{stuck.behind[0].called}, the other ranks at #{stuck.number}")
    return f"{since}: in an NCCL communicator of {stuck.size} ranks, {'; '.join(who)}."


def _communicator_points(stuck: StuckCommunicator) -> tuple[str, ...]:
    missing, behind = stuck.missing_count, stuck.behind_count
    named = (*stuck.missing, *stuck.behind)[0]
    others = missing + behind - 1
    entered = f"never entered {_collective_name(stuck.operation)} #{stuck.number}"
    how = "does not reply" if stuck.missing else entered
    more = f"and {fmt.counted(others, 'other rank')}" if others else ""
    return complete_clauses(
        f"rank {named.rank} {how}", more, f"on {named.host}", f"a communicator of {stuck.size} ranks"
    )


def _rank_list(ranks: tuple[CommunicatorRank, ...], count: int) -> str:
    first = ", ".join(f"{one.rank} ({one.host}, pid {one.pid})" for one in ranks[:2])
    more = f" and {count - 2} more" if count > 2 else ""
    return f"rank{'s' if count > 1 else ''} {first}{more} {'are' if count > 1 else 'is'}"


HUNG_COMMUNICATOR: Final = Rule[CommunicatorState](
    id="hung_collective",
    holds=_is_communicator_stuck,
    describe=_communicator_alert,
    text=HUNG_COLLECTIVE.text,
)
