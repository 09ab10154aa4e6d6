"""Reasons to suspect a rank, each with its class, its weight and where it was read."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from llmtop.format import duration, printable
from llmtop.hardware.gpu_errors import XIDS, is_program_error, xid_text
from llmtop.naming.phase_names import role_of
from llmtop.postmortem.answer.collectives import CollectiveFacts, Wait, group_key
from llmtop.postmortem.error_kinds import is_data, is_gpu, is_network, is_out_of_memory, is_storage
from llmtop.postmortem.evidence import (
    RUN_FILE,
    SAMPLED,
    CodeLine,
    CollectiveCall,
    Mark,
    Place,
    ProcessEnd,
    PythonError,
    StackDump,
)
from llmtop.postmortem.job import JobFacts, RankFacts
from llmtop.postmortem.log_marks import Fingerprint, fingerprints
from llmtop.postmortem.model import FailureClass
from llmtop.postmortem.stack_meaning import activity_of, collective_of, main_thread, own_line

_CRASHES: dict[int, str] = {
    signal.SIGSEGV: "SIGSEGV", signal.SIGBUS: "SIGBUS", signal.SIGFPE: "SIGFPE", signal.SIGILL: "SIGILL",
    signal.SIGABRT: "SIGABRT",
}  # fmt: skip
_FATAL: dict[str, str] = {
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Floating": "SIGFPE",
    "Illegal": "SIGILL",
}


_OF_PEERS = ("timed_out", "peer_lost", "mismatch")
"""Kinds of errors that show a failure of another rank."""
SIGNS_APART_SECONDS = 8.0
"""A live rank writes at least every five seconds (`llmtop.instrument.run_log`)."""


class Reason(NamedTuple):
    """Why one rank may be the culprit."""

    weight: int
    """How strong it is, 0 to 100: 85 and more is proof of a failure of its own, under 50 is none."""
    failure: FailureClass
    text: str
    place: Place = Place("")
    line: CodeLine | None = None
    is_direct: bool = True
    """False for what only the behaviour of others shows: a rank that waits itself is cleared of it."""


@dataclass
class RankCase:
    """One rank with all reasons to suspect it, and whether it only waited."""

    facts: RankFacts
    reasons: list[Reason] = field(default_factory=list)
    wait: Wait | None = None
    waits_in: str = ""
    """The collective that its stack, its dump or its error shows it in; "": none."""
    wait_line: CodeLine | None = None
    is_victim: bool = False
    """True if it failed because a peer had gone, or its launcher ended it."""

    @property
    def is_waiting(self) -> bool:
        """True if it is known to have waited for others."""
        return bool(self.waits_in) or self.wait is not None

    @property
    def weight(self) -> int:
        """Weight of the strongest reason; a second independent one adds a little."""
        weights = sorted((one.weight for one in self.reasons), reverse=True)
        return 0 if not weights else weights[0] + (2 if len(weights) > 1 and weights[1] >= 60 else 0)


class _Whole(NamedTuple):
    """Summary of the errors of all ranks."""

    aborting: frozenset[str]
    """Files with an error that another rank's failure causes."""
    unplaced: frozenset[str]
    """Entries where no line names the rank: the first that ended may be one of them."""
    root_causes: dict[str, int]
    """Rank by log of a launcher: its end by a signal is the root cause there. SIGTERM may be its own, and
    SIGABRT may follow the failure of a peer."""
    earliest: tuple[tuple[float, int], ...]
    """Time and rank of the earliest errors of ranks' own, of two ranks at most."""


def _whole(job: JobFacts) -> _Whole:
    of_peers = [error for error in job.evidence.errors if error.kind in _OF_PEERS]
    times: dict[int, float] = {}
    for rank, facts in job.ranks.items():
        own = [error.time for error in facts.errors if error.kind == "own" and error.time is not None]
        if own:
            times[rank] = min(own)
    return _Whole(
        frozenset(error.place.file for error in of_peers),
        frozenset(error.place.file for error in of_peers if error.rank is None),
        {
            end.place.file: end.rank
            for end in job.evidence.ends
            if end.is_first and end.rank is not None and end.signal not in (None, signal.SIGTERM, signal.SIGABRT)
        },
        tuple(sorted((time, rank) for rank, time in times.items())[:2]),
    )


def collect_cases(job: JobFacts, shared: CollectiveFacts) -> dict[int, RankCase]:
    """Return all ranks with what speaks for and against each."""
    cases = {rank: RankCase(facts) for rank, facts in job.ranks.items()}
    for wait in shared.waits:
        cases[wait.rank].wait, cases[wait.rank].waits_in = wait, wait.call.operation
        cases[wait.rank].wait_line = own_line(wait.call.frames)
    whole = _whole(job)
    # A file name may name rank 99,999: most of so many ranks have no facts.
    known = [case for case in cases.values() if case.facts.has_facts]
    for case in known:
        _find_waiting(case)
    for case in known:
        case.reasons += _of_errors(case, whole)
        case.reasons += _of_ends(case, whole)
        case.reasons += _of_fatal_errors(case)
        case.reasons += _of_marks(case)
    _add_collectives(cases, shared)
    _add_exits(cases, job)
    _add_links(cases, job)
    _add_last_signs(cases)
    _add_stacks(cases)
    _add_silence(cases)
    deviating = {one.rank for one in shared.deviations}
    for rank, case in cases.items():
        if case.is_waiting and rank not in deviating:
            case.reasons = [one for one in case.reasons if one.is_direct]
        case.reasons.sort(key=lambda one: -one.weight)
    return cases


def _find_waiting(case: RankCase) -> None:
    for error in case.facts.errors:
        collective = collective_of(error.frames)
        if error.kind in ("timed_out", "peer_lost"):
            if error.kind == "timed_out" or collective:
                case.waits_in = case.waits_in or collective or "a collective"
                case.wait_line = case.wait_line or own_line(error.frames)
            case.is_victim = True
        elif error.kind == "mismatch":
            case.is_victim = True
    stack = case.facts.stacks[-1] if case.facts.stacks else None
    thread = main_thread(stack) if stack is not None else None
    if thread is not None and (collective := collective_of(thread.frames)) is not None:
        case.waits_in = case.waits_in or collective
        case.wait_line = case.wait_line or own_line(thread.frames)
    for mark in case.facts.marks:
        if mark.kind in ("watchdog", "joined"):
            case.waits_in = case.waits_in or mark.text.partition(" ")[0] or "a collective"
    if any(end.is_by_launcher for end in case.facts.ends) and not case.facts.errors:
        case.is_victim = True


# ---- what the rank's own files show ----


def class_of_error(error: PythonError) -> FailureClass:
    """Return the class of a rank's own error."""
    text = error.text
    if is_out_of_memory(text):
        return "out_of_memory"
    if is_gpu(text):
        return "gpu_fault"
    if is_storage(text):
        return "storage"
    if is_network(text):
        return "network"
    if is_data(text, tuple(frame.file for frame in error.frames)):
        return "data"
    return "exception"


def _of_errors(case: RankCase, whole: _Whole) -> Iterator[Reason]:
    own = [error for error in case.facts.errors if error.kind == "own"]
    if not own:
        return
    first = own[0]
    limit = (first.time or 0.0) - 0.5
    is_later = first.time is not None and any(
        time < limit and rank != case.facts.rank for time, rank in whole.earliest
    )
    is_named = any(end.is_first for end in case.facts.ends)
    logs = {first.place.file, *(end.place.file for end in case.facts.ends)}
    is_later |= not is_named and any(
        whole.root_causes.get(file, case.facts.rank) != case.facts.rank for file in logs
    )
    weight = (70 if is_later else 92) + (4 if is_named else 0)
    line = own_line(first.frames)
    where = f" at {line.text}" if line is not None else ""
    code = f": {printable(first.code, 100)}" if first.code else ""
    yield Reason(
        weight,
        class_of_error(first),
        f"raised {printable(first.text, 200)}{where}{code}",
        first.place,
        line,
    )


def _of_ends(case: RankCase, whole: _Whole) -> Iterator[Reason]:
    lost = any(error.kind != "own" for error in case.facts.errors) or any(
        mark.kind in ("aborted", "watchdog") for mark in case.facts.marks
    )
    for end in case.facts.ends:
        if end.signal in _CRASHES:
            if (lost or end.place.file in whole.aborting) and end.signal == signal.SIGABRT:
                continue  # NCCL's watchdog and gloo abort the process after a peer has failed
            weight = (86 if not case.is_waiting else 76 if end.is_first else 40) + (4 if end.is_first else 0)
            yield Reason(weight, "killed", f"ended by {_CRASHES[end.signal]}", end.place)
        elif end.signal == signal.SIGKILL:
            yield _of_sigkill(end, is_waiting=case.is_waiting)
        elif end.code and not case.facts.errors and not case.is_waiting:
            weight = 40 if end.place.file in whole.unplaced else 80 if end.is_first else 55
            text = f"exited with code {end.code} and no traceback"
            if end.code == 1:  # Python's code after an exception that nothing caught
                text = "exited with code 1, as after an exception; no file has a whole traceback of it"
            yield Reason(weight, "exception" if end.code == 1 else "exited", text, end.place)


def _of_sigkill(end: ProcessEnd, *, is_waiting: bool) -> Reason:
    if end.is_escalated:
        text = "did not end at SIGTERM, so the launcher sent SIGKILL: the process was stopped or blocked"
        return Reason(20 if is_waiting else 66, "stopped", text, end.place, is_direct=False)
    return Reason(88 if end.is_first else 84, "killed", "ended by SIGKILL", end.place)


def _of_fatal_errors(case: RankCase) -> Iterator[Reason]:
    for stack in case.facts.stacks:
        named = next((name for word, name in _FATAL.items() if stack.reason.startswith(word)), None)
        if named is None or (case.is_waiting and _waits_in_stack(stack)):
            continue
        thread = main_thread(stack)
        line = own_line(thread.frames) if thread is not None else None
        where = f" at {line.text}" if line is not None else ""
        yield Reason(87 if not case.is_waiting else 45, "killed", f"ended by {named}{where}", stack.place, line)


def _waits_in_stack(stack: StackDump) -> bool:
    thread = main_thread(stack)
    return thread is not None and collective_of(thread.frames) is not None


def _of_marks(case: RankCase) -> Iterator[Reason]:
    for mark in case.facts.marks:
        text = printable(mark.text, 200)
        if mark.kind == "oom_kill" and mark.pid is not None:
            yield Reason(97, "out_of_memory", f"the kernel's OOM killer ended pid {mark.pid}", mark.place)
        elif mark.kind == "segfault":
            yield Reason(88, "killed", f"segmentation fault in the kernel log: {text}", mark.place)
        elif mark.kind == "xid" and mark.number != 45:
            is_own = is_program_error(xid_text(mark.number))
            weight = 60 if is_own or mark.number not in XIDS else 96
            yield Reason(weight, "gpu_fault", text, mark.place)
        elif mark.kind == "gpu_error":
            yield Reason(86, "gpu_fault", f"its watchdog met {text}", mark.place)
        elif mark.kind == "named_rank":
            failure: FailureClass = "exception"
            if text.startswith("fr_trace"):
                failure = "shape_or_dtype" if re.search("SIZE|DTYPE", text) else "different_collective"
            yield Reason(88, failure, f"named by a log: {text}", mark.place)
        elif mark.kind == "blocked_task":
            yield Reason(80, "storage", f"blocked in the kernel: {text}", mark.place)
        elif mark.kind == "process_state":
            yield from _of_state(mark)
        elif mark.kind == "not_joined":
            yield Reason(78, "unknown", f"did not join the collective: {text}", mark.place)
        elif mark.kind == "ras_dead":
            yield Reason(76, "unknown", f"NCCL RAS: {text}", mark.place)
        elif mark.kind == "ras_behind":
            yield Reason(70, "unknown", f"NCCL RAS: {text}", mark.place, is_direct=False)


def _of_state(mark: Mark) -> Iterator[Reason]:
    """Yield a process state of ps: stopped, or in a call of the kernel that no signal ends."""
    state = mark.text.removeprefix("state ")[:1]
    if state in ("T", "t"):
        yield Reason(90, "stopped", f"ps: stopped by a signal ({mark.text})", mark.place)
    elif state == "D":
        yield Reason(86, "storage", f"ps: blocked in the kernel ({mark.text})", mark.place)
    elif state == "R":
        yield Reason(55, "stall", f"ps: on a CPU ({mark.text})", mark.place, is_direct=False)


def _add_links(cases: dict[int, RankCase], job: JobFacts) -> None:
    """Ranks with a network error on a host whose kernel lost a link."""
    down = [mark for mark in job.evidence.marks if mark.kind == "link_down"]
    for case in cases.values():
        failed = next((mark for mark in case.facts.marks if mark.kind == "network"), None)
        host = case.facts.host
        if failed is None or not host:
            continue
        for mark in down:
            if mark.host == host:
                text = f"the kernel of {host} lost a link: {printable(mark.text, 160)}"
                case.reasons.append(Reason(92, "network", text, mark.place))
                case.reasons.append(Reason(70, "network", printable(failed.text, 200), failed.place))


def _add_last_signs(cases: dict[int, RankCase]) -> None:
    """Ranks whose run file ends well before those of most ranks: killed, stopped, or their node is lost."""
    signs = {
        rank: mark
        for rank, case in cases.items()
        for mark in case.facts.marks
        if mark.kind == "last_sign" and mark.time is not None
    }
    times = [mark.time or 0.0 for mark in signs.values()]
    if len(times) < 2:
        return
    usual = median(times)
    for rank, mark in signs.items():
        early = usual - (mark.time or 0.0)
        if early > SIGNS_APART_SECONDS and mark.text != "ended":
            text = f"its run file ends {duration(early)} before those of other ranks: it ran nothing from then on"
            cases[rank].reasons.append(Reason(75, "unknown", text, mark.place))


# ---- what the ranks show together ----


def _add_collectives(cases: dict[int, RankCase], shared: CollectiveFacts) -> None:
    for one in shared.deviations:
        call, usual = one.call, one.expected
        if one.kind == "shape_or_dtype":
            text = (
                f"called {call.operation} #{call.seq} of {group_key(call)} with {_arguments(call)}, "
                f"other ranks with {_arguments(usual)}"
            )
        else:
            text = (
                f"called {call.operation} #{call.seq} of {group_key(call)} where other ranks call "
                f"{usual.operation} #{usual.seq} of {group_key(usual)}"
            )
        line = own_line(call.frames)
        where = f" at {line.text}" if line is not None else ""
        weight = 88 if one.is_sure else 72
        cases[one.rank].reasons.append(Reason(weight, one.kind, text + where, Place(""), line))
    for rank in shared.sinks:
        call, facts = shared.behind[rank], cases[rank].facts
        what = f"{call.operation} #{call.seq} of {group_key(call)}"
        if facts.dump is not None and facts.dump.calls:
            last = facts.dump.calls[-1]
            text = f"never entered {what}; last: {last.operation} #{last.seq} of {group_key(last)}"
            reason = Reason(78, "unknown", text, Place(facts.dump.file), is_direct=False)
        elif any(error.kind != "own" for error in facts.errors):
            continue
        else:
            text = f"wrote no dump, and other ranks wait in {what}"
            reason = Reason(64, "unknown", text, Place(""), is_direct=False)
        cases[rank].reasons.append(reason)
    _add_work_counts(cases)
    _add_other_operation(cases)
    _add_fingerprints(cases)
    _add_other_place(cases, shared)


def _add_fingerprints(cases: dict[int, RankCase]) -> None:
    """The rank whose collective differs from that of most ranks, as torch's debug mode compares them."""
    named: dict[int, Fingerprint] = {}
    places: dict[int, Place] = {}
    for case in cases.values():
        for error in case.facts.errors:
            for one in fingerprints(error.message):
                named.setdefault(one.rank, one)
                places.setdefault(one.rank, error.place)
    kinds = Counter((one.operation, one.shape, one.dtype) for one in named.values()).most_common(2)
    if len(kinds) < 2 or kinds[0][1] <= kinds[1][1]:
        return
    usual = kinds[0][0]
    for rank, one in named.items():
        own = (one.operation, one.shape, one.dtype)
        if own == usual or rank not in cases:
            continue
        failure: FailureClass = "shape_or_dtype" if one.operation == usual[0] else "different_collective"
        text = (
            f"ran {one.operation} #{one.number} with [{one.shape}] {one.dtype}, most ranks "
            f"{usual[0]} with [{usual[1]}] {usual[2]}"
        )
        cases[rank].reasons.append(Reason(90, failure, text, places[rank]))


def _add_other_place(cases: dict[int, RankCase], shared: CollectiveFacts) -> None:
    """The one rank that others wait for, and that waits at another line than those who wait for it directly."""
    if len(shared.sinks) != 1:
        return
    case = cases[shared.sinks[0]]
    waits = [one for one in case.facts.errors if one.kind == "timed_out"]
    direct = [one.call for one in shared.waits if one.missing == (case.facts.rank,)]
    line = own_line(waits[0].frames) if waits else None
    awaited = own_line(direct[0].frames) if direct else None
    if case.facts.dump is not None or line is None or awaited is None or line == awaited:
        return
    call = direct[0]
    text = f"waits at {line.text} while {call.operation} #{call.seq} of {group_key(call)} waits for it"
    case.reasons.append(Reason(70, "different_collective", text, waits[0].place, line))


def _add_other_operation(cases: dict[int, RankCase]) -> None:
    """One rank that waits in another operation of the default group than all others, by their tracebacks.

    A rank may rightly be in a collective of a smaller group, so a line that passes a group is no sign.
    """
    inside: dict[int, PythonError] = {}
    for rank, case in cases.items():
        waits = [one for one in case.facts.errors if one.kind in ("timed_out", "peer_lost")]
        if waits and collective_of(waits[0].frames) and waits[0].code and "group" not in waits[0].code:
            inside[rank] = waits[0]
    operations = {rank: collective_of(error.frames) for rank, error in inside.items()}
    counts = Counter(operations.values()).most_common(2)
    if len(counts) < 2 or counts[0][1] < 2 or counts[1][1] != 1 or len(operations) < len(cases) - 1:
        return
    rank = next(rank for rank, operation in operations.items() if operation == counts[1][0])
    error = inside[rank]
    line = own_line(error.frames)
    where = f" at {line.text}" if line is not None else ""
    text = f"waits in {counts[1][0]} while the other ranks wait in {counts[0][0]}{where}"
    cases[rank].reasons.append(Reason(74, "different_collective", text, error.place, line))


def _arguments(call: CollectiveCall) -> str:
    sizes = "×".join(map(str, call.input_sizes[0])) if call.input_sizes else "no"
    return f"{sizes or 'scalar'} {call.input_dtypes[0] if call.input_dtypes else 'elements'}"


def _add_work_counts(cases: dict[int, RankCase]) -> None:
    """NCCL's watchdog writes how many collectives a rank has enqueued in each group."""
    counts: dict[str, dict[int, int]] = {}
    for rank, case in cases.items():
        for mark in case.facts.marks:
            if mark.kind == "work_status":
                counts.setdefault(mark.group, {})[rank] = mark.number
    for group, known in counts.items():
        most = max(known.values())
        behind = [rank for rank, number in known.items() if number < most]
        if behind and len(behind) * 2 < len(known):
            for rank in behind:
                text = f"enqueued {known[rank]} collectives of {group}, other ranks {most}"
                cases[rank].reasons.append(Reason(68, "unknown", text, is_direct=False))


def _add_exits(cases: dict[int, RankCase], job: JobFacts) -> None:
    """A rank that torchrun's table of failures leaves out has exited with code 0."""
    tables = {end.place.file for end in job.evidence.ends if end.time is not None}
    listed = {rank for rank, case in cases.items() if any(end.time is not None for end in case.facts.ends)}
    if not tables or not listed:
        return
    absent = [rank for rank in cases if rank not in listed and not cases[rank].is_waiting]
    if len(absent) == 1 and len(listed) == len(cases) - 1:
        text = "is not in torchrun's table of failures: it exited with code 0 while other ranks went on"
        place = Place(sorted(tables)[0])
        cases[absent[0]].reasons.append(Reason(74, "exited", text, place, is_direct=False))


def _add_stacks(cases: dict[int, RankCase]) -> None:
    """Ranks whose main thread is in no collective while others wait in one."""
    if not any(case.is_waiting for case in cases.values()):
        return
    for case in cases.values():
        stack = next((one for one in reversed(case.facts.stacks) if one.reason not in _FATAL), None)
        thread = main_thread(stack) if stack is not None else None
        if stack is None or thread is None or not thread.frames or case.is_waiting:
            continue
        failure = activity_of(thread.frames)
        phases = (mark.text for mark in case.facts.marks if mark.kind == "phase")
        if failure == "stall" and any(role_of(phase) == "input" for phase in phases):
            failure = "data"
        line = own_line(thread.frames)
        where = line.text if line is not None else thread.frames[0].text
        inner = thread.frames[0]
        more = f" ({inner.text})" if line is not None and inner != line else ""
        text = f"its main thread is at {where}{more} while other ranks wait"
        weight = 76 if not case.is_victim or stack.reason in ("timeout", SAMPLED, RUN_FILE) else 52
        case.reasons.append(Reason(weight, failure, text, stack.place, line, is_direct=False))


def _add_silence(cases: dict[int, RankCase]) -> None:
    """The one rank without an error or a wait, where all others are known to have waited or lost a peer."""
    silent = [rank for rank, case in cases.items() if not case.is_waiting and not case.facts.errors]
    others = [case for case in cases.values() if case.is_waiting or case.facts.errors]
    if len(silent) != 1 or len(others) < 2 or not all(one.is_waiting or one.is_victim for one in others):
        return
    case = cases[silent[0]]
    was_ended = any(end.is_by_launcher for end in case.facts.ends)
    text = "no file of it" if case.facts.is_absent else "its files have no error of its own and no wait"
    if was_ended:
        text += " until its launcher ended it"
    text += ", and all other ranks waited or lost a peer"
    case.reasons.append(Reason(56 if was_ended else 62, "unknown", text, is_direct=False))
