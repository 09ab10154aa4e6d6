"""Answer from the facts of all ranks: who failed first, who only waited, and the missing evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from llmtop.format import counted, printable
from llmtop.postmortem.answer.collectives import CollectiveFacts, Wait, examine, group_key, is_world, waiting_order
from llmtop.postmortem.answer.missing import missing_evidence, next_steps
from llmtop.postmortem.answer.reasons import RankCase, Reason, class_of_error, collect_cases
from llmtop.postmortem.answer.unwritten_ends import add_unwritten_ends, unwritten_ends_text, without_end
from llmtop.postmortem.evidence import CodeLine, Mark, ProcessEnd, PythonError
from llmtop.postmortem.input_files import read_evidence
from llmtop.postmortem.job import JobFacts, build_job
from llmtop.postmortem.model import (
    Confidence,
    Culprit,
    EvidenceItem,
    FailureClass,
    PostmortemReport,
    WaitingRanks,
)
from llmtop.postmortem.place_facts import unplaced_failure
from llmtop.postmortem.rank_text import rank_list

_LEAST_WEIGHT = 50
_APART = 3
"""Two ranks whose weights differ by less are equally suspect."""
_OWN_FAILURE = 84
_MOST_EVIDENCE = 8
_MOST_CANDIDATES = 16
_GENERAL = ("unknown", "stall")

CLASS_WORDS: dict[FailureClass, str] = {
    "exception": "exception",
    "out_of_memory": "out of memory",
    "killed": "killed by a signal",
    "stopped": "process stopped",
    "gpu_fault": "GPU fault",
    "different_collective": "different collective",
    "shape_or_dtype": "wrong shape or dtype",
    "stall": "GIL, lock or CPU stall",
    "storage": "storage",
    "network": "network",
    "data": "input data",
    "exited": "exited early",
    "unknown": "reason unknown",
}
_ALIVE: frozenset[FailureClass] = frozenset({"stopped", "stall", "storage", "data"})
"""Classes of a rank that has not ended: it keeps the others waiting."""


def find_culprits(paths: Sequence[Path]) -> PostmortemReport:
    """Read all files and name the rank that failed first.

    Raises:
        UnusableInput: a path is not there, or no file of it can be used.
    """
    job = build_job(read_evidence(paths))
    return decide(job, ", ".join(map(str, paths)))


def decide(job: JobFacts, source: str) -> PostmortemReport:
    """Name the rank that failed first.

    Args:
        job: the facts of all ranks.
        source: what the report calls its input.
    """
    shared = examine(job)
    cases = collect_cases(job, shared)
    _infer_stopped(cases)
    add_unwritten_ends(cases)
    chosen, tied = _choose(cases)
    culprits = tuple(_culprit(cases[rank], shared) for rank in chosen)
    waiting = _waiting(cases, shared, chosen)
    verdict: FailureClass = culprits[0].failure if culprits else _verdict_without_culprit(job, shared)
    return PostmortemReport(
        source=source,
        verdict=verdict,
        summary=_summary(culprits, waiting, job, shared, tied),
        confidence=culprits[0].confidence if culprits else None,
        culprits=culprits,
        waiting=waiting,
        victims=tuple(
            rank for rank, case in cases.items() if case.is_victim and rank not in chosen and not case.is_waiting
        ),
        next=next_steps(verdict, culprits),
        missing=missing_evidence(job, culprits, verdict),
        candidates=() if chosen else tuple(tied[:_MOST_CANDIDATES]),
        ranks=job.world,
        files=dict(Counter(file.kind for file in job.evidence.files)),
        notes=_notes(job),
    )


def _infer_stopped(cases: dict[int, RankCase]) -> None:
    """A rank that writes neither stacks nor a dump where the others write them, and has a log, runs nothing.

    faulthandler's timer needs no GIL, so a rank that only holds the GIL writes stacks.
    """
    with_stacks = [case for case in cases.values() if any(one.reason == "timeout" for one in case.facts.stacks)]
    if len(with_stacks) < 2 or len(with_stacks) * 2 < len(cases):
        return
    with_dumps = sum(case.facts.dump is not None for case in cases.values())
    for case in cases.values():
        facts = case.facts
        died = any(one.failure in ("killed", "out_of_memory", "exception", "exited") for one in case.reasons)
        if facts.stacks or facts.dump is not None or died or case.is_waiting or facts.is_absent:
            if facts.stacks and facts.dump is None and with_dumps >= 2 and case.reasons and not case.is_waiting:
                text = "wrote stacks but no dump: none of its Python threads ran, as while C code holds the GIL"
                case.reasons.append(Reason(60, "stall", text, is_direct=False))
            continue
        text = "wrote neither stacks nor a dump while other ranks did: the process ran nothing"
        case.reasons.append(Reason(66, "stopped", text, is_direct=False))
        case.reasons.sort(key=lambda one: -one.weight)


def _choose(cases: dict[int, RankCase]) -> tuple[list[int], list[int]]:
    """Return the culprits, and the ranks that are equally suspect where none is named."""
    ranked = sorted(
        (rank for rank, case in cases.items() if case.weight >= _LEAST_WEIGHT),
        key=lambda rank: (-cases[rank].weight, _first_time(cases[rank]), rank),
    )
    if not ranked:
        return [], [rank for rank, case in cases.items() if not case.is_waiting and not case.is_victim]
    top = cases[ranked[0]]
    tied = [rank for rank in ranked if cases[rank].weight > top.weight - _APART]
    if len(tied) == 1:
        return tied, []
    if top.reasons[0].is_direct and top.weight >= _OWN_FAILURE:
        earliest = _first_time(top)
        others = [_first_time(cases[rank]) for rank in tied[1:]]
        return (tied[:1] if all(time > earliest + 0.5 for time in others) else tied), []
    hosts = {cases[rank].facts.host for rank in tied}
    on_host = [rank for rank, case in cases.items() if case.facts.host in hosts]
    if len(hosts) == 1 and "" not in hosts and set(on_host) == set(tied):
        return tied, []
    return [], tied


def _first_time(case: RankCase) -> float:
    times = [error.time for error in case.facts.errors if error.time is not None and error.kind == "own"]
    return min(times, default=float("inf"))


def _failure_of(case: RankCase) -> FailureClass:
    """Return the class of the strongest reason that has one: "stall" only where no reason is more specific."""
    strong = [one for one in case.reasons if one.weight >= _LEAST_WEIGHT]
    specific = [one.failure for one in strong if one.failure not in _GENERAL]
    if specific:
        return specific[0]
    return "stall" if any(one.failure == "stall" for one in strong) else "unknown"


def _confidence(case: RankCase) -> Confidence:
    strong = [one for one in case.reasons if one.weight >= 70]
    if case.weight >= _OWN_FAILURE or len(strong) > 1:
        return "high"
    return "medium" if strong else "low"


def _culprit(case: RankCase, shared: CollectiveFacts) -> Culprit:
    facts = case.facts
    failure = _failure_of(case)
    leading = next((one for one in case.reasons if one.failure == failure), case.reasons[0])
    line = next((one.line for one in case.reasons if one.line is not None), None)
    call = shared.behind.get(facts.rank) or next(
        (one.call for one in shared.deviations if one.rank == facts.rank), None
    )
    steps = [mark.number for mark in facts.marks if mark.kind == "step"]
    return Culprit(
        rank=facts.rank,
        failure=failure,
        confidence=_confidence(case),
        summary=printable(leading.text, 400),
        evidence=tuple(
            EvidenceItem(text=printable(one.text, 400), source=printable(one.place.text, 200))
            for one in case.reasons[:_MOST_EVIDENCE]
            if one.weight >= 40
        ),
        host=facts.host or None,
        pid=facts.pid or next((end.pid for end in facts.ends if end.pid), None),
        gpu=facts.gpu or None,
        role=_role(case),
        line=line.text if line is not None else None,
        step=max(steps, default=None),
        phase=next((mark.text for mark in facts.marks if mark.kind == "phase"), None),
        operation=call.operation if call is not None else None,
        process_group=group_key(call) if call is not None else None,
        number=call.seq if call is not None else None,
    )


def _role(case: RankCase) -> str | None:
    if case.facts.dump is None:
        return None
    groups = dict.fromkeys(group_key(call) for call in case.facts.dump.calls if not is_world(call))
    return ", ".join(list(groups)[:6]) or None


# ---- who only waited ----


def _waiting(
    cases: dict[int, RankCase], shared: CollectiveFacts, chosen: Sequence[int]
) -> tuple[WaitingRanks, ...]:
    """Ranks that only waited, grouped by what they wait in, those that wait for the culprit first."""
    waits = {case.facts.rank: case.wait for case in cases.values() if case.wait is not None}
    ordered = [wait.rank for wait in waiting_order(waits.values(), chosen)]
    ranks = [*ordered, *(rank for rank, case in cases.items() if case.is_waiting and rank not in waits)]
    groups: dict[tuple[str, int | None, str, tuple[int, ...], str], list[int]] = {}
    for rank in ranks:
        if rank in chosen:
            continue
        case = cases[rank]
        line = _text_of(case.wait_line)
        key = _wait_key(case.wait, line) if case.wait is not None else (case.waits_in, None, "", (), line)
        groups.setdefault(key, []).append(rank)
    return tuple(
        WaitingRanks(
            ranks=tuple(sorted(members)),
            operation=operation,
            number=number,
            process_group=group,
            waits_for=awaited,
            line=line,
        )
        for (operation, number, group, awaited, line), members in groups.items()
    )


def _wait_key(wait: Wait, line: str) -> tuple[str, int | None, str, tuple[int, ...], str]:
    awaited = wait.missing or wait.blocked
    return wait.call.operation, wait.call.seq, group_key(wait.call), awaited[:64], line


def _text_of(line: CodeLine | None) -> str:
    return line.text if line is not None else ""


# ---- sentences ----


def _summary(
    culprits: Sequence[Culprit],
    waiting: Sequence[WaitingRanks],
    job: JobFacts,
    shared: CollectiveFacts,
    tied: Sequence[int],
) -> str:
    if not culprits:
        return _summary_without_culprit(job, shared, tied)
    first = culprits[0]
    who = f"Rank {first.rank}" + (f" on {first.host}" if first.host else "")
    deed = "holds up the job" if first.failure in _ALIVE else "failed first"
    text = f"{who} {deed} ({CLASS_WORDS[first.failure]}): {first.summary}."
    if len(culprits) > 1:
        text += f" The same holds for {rank_list([one.rank for one in culprits[1:]])}."
    waited = sorted({rank for one in waiting for rank in one.ranks})
    if waited:
        text += f" {rank_list(waited).capitalize()} only waited."
    return text


def _verdict_without_culprit(job: JobFacts, shared: CollectiveFacts) -> FailureClass:
    if shared.stuck is not None or any(mark.kind == "network" for mark in job.evidence.marks):
        return "network"
    if _mismatch(job) is not None:
        return "shape_or_dtype"
    failure = unplaced_failure(job.evidence)
    if failure is not None:
        return _class_of_unplaced(failure)
    return "killed" if without_end(job.ranks.values()) else "unknown"


def _class_of_unplaced(failure: Mark | PythonError | ProcessEnd) -> FailureClass:
    if isinstance(failure, PythonError):
        return class_of_error(failure)
    if isinstance(failure, ProcessEnd):
        return "killed"
    return "out_of_memory" if failure.kind == "oom_kill" else "gpu_fault" if failure.kind == "xid" else "storage"


def _text_of_unplaced(failure: Mark | PythonError | ProcessEnd) -> str:
    if isinstance(failure, ProcessEnd):
        text = f"a process was ended by signal {failure.signal}"
    elif isinstance(failure, Mark) and failure.gpu:
        text = f"GPU {failure.gpu}: {failure.text}"
    else:
        text = failure.text.strip().rstrip(".")
    return f"{printable(text, 160)} ({printable(failure.place.text, 120)})"


def _mismatch(job: JobFacts) -> PythonError | None:
    """Return the first error about arguments that differ between ranks; None without one."""
    errors = (error for facts in job.ranks.values() for error in facts.errors)
    return next((error for error in errors if error.kind == "mismatch"), None)


def _summary_without_culprit(job: JobFacts, shared: CollectiveFacts, tied: Sequence[int]) -> str:
    cancelled = next((mark for mark in job.evidence.marks if mark.kind == "slurm_cancelled"), None)
    if shared.stuck is not None:
        call = shared.stuck
        return (
            f"No culprit: all ranks of {group_key(call)} have entered {call.operation} #{call.seq} with equal "
            "arguments, and it does not complete. Check the network between their nodes."
        )
    names = {error.name for facts in job.ranks.values() for error in facts.errors}
    if names == {"KeyboardInterrupt"}:
        return "No culprit: the job was interrupted (Ctrl+C, SIGINT)."
    if cancelled is not None:
        return f"No culprit: SLURM cancelled the job ({printable(cancelled.text, 60)})."
    differs = _mismatch(job)
    failure = unplaced_failure(job.evidence)
    if differs is not None:
        return (
            f"No culprit is certain: rank {differs.rank} or one of its peers passed another shape or dtype "
            f"({printable(differs.message.rpartition(']')[2].strip(), 120)}). A dump of each rank shows which."
        )
    if failure is not None:
        return f"No rank is named for what failed: {_text_of_unplaced(failure)}."
    return _summary_of_ties(job, tied)


def _summary_of_ties(job: JobFacts, tied: Sequence[int]) -> str:
    errors = [error for facts in job.ranks.values() for error in facts.errors]
    if killed := unwritten_ends_text(job):
        return f"No culprit is certain: {killed}."
    if tied and len(tied) < len(job.ranks):
        return f"No culprit is certain: the evidence clears all ranks but {rank_list(tied)}."
    kinds = {mark.kind for mark in job.evidence.marks}
    if errors or kinds & {"watchdog", "aborted", "joined"}:
        return "No culprit is certain: each rank with files waited for others or lost a peer."
    network = next((mark for mark in job.evidence.marks if mark.kind == "network"), None)
    if network is not None:
        where = f" on {network.host}" if network.host else ""
        text = printable(network.text, 160)
        return (
            f"No rank is named for an error of the network{where}: {text} ({printable(network.place.text, 120)})."
        )
    if not job.ranks:
        return "No culprit: the files show no failure and no rank."
    return f"No culprit: the files show no failure of {counted(len(job.ranks), 'rank')}."


def _notes(job: JobFacts) -> tuple[str, ...]:
    notes = [printable(one, 300) for one in job.evidence.problems[:20]]
    if job.unplaced_dumps:
        names = ", ".join(printable(one.file, 60) for one in job.unplaced_dumps[:4])
        notes.append(f"{counted(len(job.unplaced_dumps), 'dump')} name no rank and were left out: {names}")
    left = sum(dump.left_out for dump in job.evidence.dumps)
    if left:
        notes.append(f"{left:,} older entries of dumps were not read")
    return tuple(notes)
