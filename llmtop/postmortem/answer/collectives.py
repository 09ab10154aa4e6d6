"""Collectives of all ranks: which rank waits for which across groups, and whose calls differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from llmtop.postmortem.evidence import MAIN_GROUP, CodeLine, CollectiveCall, FlightDump
from llmtop.postmortem.job import JobFacts
from llmtop.postmortem.stack_meaning import own_line

_EQUAL_SIZES = frozenset({
    "all_reduce", "broadcast", "reduce", "all_gather", "_all_gather_base", "gather", "_reduce_scatter_base",
    "reduce_scatter", "allreduce_coalesced", "all_gather_into_tensor", "reduce_scatter_tensor", "allreduce",
    "allgather",
})  # fmt: skip
"""Operations whose input has the same number of elements on all ranks."""
_WINDOW = 64
"""Newest collectives of a group that are compared."""

Difference = Literal["different_collective", "shape_or_dtype"]


@dataclass(frozen=True)
class Wait:
    """One rank in a collective that does not complete."""

    rank: int
    call: CollectiveCall
    missing: tuple[int, ...]
    """Ranks that have not entered it, as far as dumps show, or have no dump."""
    blocked: tuple[int, ...] = ()
    """Ranks that have entered it and still wait in an earlier one of another group."""


@dataclass(frozen=True)
class Deviation:
    """A rank whose call differs from those of the others at the same point."""

    rank: int
    kind: Difference
    call: CollectiveCall
    expected: CollectiveCall
    """Call of another rank."""
    is_sure: bool = True
    """False where the two sides are equally many and only the history decides."""


@dataclass
class CollectiveFacts:
    """Facts from the dumps of all ranks together."""

    waits: list[Wait] = field(default_factory=list)
    deviations: list[Deviation] = field(default_factory=list)
    sinks: list[int] = field(default_factory=list)
    """Ranks that others wait for, directly or not, and that wait for no rank themselves."""
    behind: dict[int, CollectiveCall] = field(default_factory=dict)
    """The collective that each of the sinks has not entered."""
    stuck: CollectiveCall | None = None
    """A collective that all of its ranks have entered with equal arguments and that does not complete."""


def group_key(call: CollectiveCall) -> str:
    """Return the name of a group for sentences: its description, where the training gave one."""
    text = call.group_text
    return text if text and text != "undefined" else call.group


def is_world(call: CollectiveCall) -> bool:
    """Return True for a collective of the default process group."""
    return call.group_text == MAIN_GROUP or (call.group == "0" and call.group_text in ("", "undefined"))


def examine(job: JobFacts) -> CollectiveFacts:
    """Return what the dumps of a job show together."""
    dumps = {rank: facts.dump for rank, facts in job.ranks.items() if facts.dump is not None and facts.dump.calls}
    if not dumps:
        return CollectiveFacts()
    members = _members(job, dumps)
    found = CollectiveFacts()
    for rank, dump in dumps.items():
        wait = _wait_of(rank, dump, dumps, members, job)
        if wait is not None:
            found.waits.append(wait)
    found.deviations = _deviations(dumps)
    _find_sinks(found, dumps)
    if not found.sinks and not found.deviations:
        complete = [wait for wait in found.waits if not wait.missing and not wait.blocked]
        found.stuck = complete[0].call if complete else None
    return found


def _members(job: JobFacts, dumps: dict[int, FlightDump]) -> dict[str, set[int]]:
    """Global ranks of each group: as the dumps have them, else the ranks that have called a collective of it."""
    found: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        for call in dump.calls[-2000:]:
            found.setdefault(call.group, set()).add(rank)
            if is_world(call):
                found[call.group] |= set(job.ranks)
        for name, group in dump.groups.items():
            if group.ranks and rank in group.ranks:
                found.setdefault(name, set()).update(group.ranks)
    return found


def _pending(dump: FlightDump) -> CollectiveCall | None:
    """Return the oldest call that has not completed."""
    return next((call for call in dump.calls if not call.is_done), None)


def _last_called(dump: FlightDump, group: str) -> int:
    record = dump.groups.get(group)
    counted = record.enqueued if record is not None and record.enqueued is not None else 0
    return max((call.seq for call in dump.calls if call.group == group and not call.is_p2p), default=counted)


def _wait_of(
    rank: int,
    dump: FlightDump,
    dumps: dict[int, FlightDump],
    members: dict[str, set[int]],
    job: JobFacts,
) -> Wait | None:
    call = _pending(dump)
    last = dump.calls[-1] if dump.calls else None
    is_open = call is not None
    if call is None:
        if last is None or last.is_certain:
            return None
        call = last
    if call.is_p2p:
        peer = _peer(call, sorted(members.get(call.group, ())))
        return Wait(rank, call, () if peer is None or peer == rank else (peer,))
    missing, blocked = [], []
    others = members.get(call.group, set()) - {rank}
    for other in sorted(others):
        its = dumps.get(other)
        if its is None or _last_called(its, call.group) < call.seq:
            missing.append(other)
        elif (first := _pending(its)) is not None and first.group != call.group:
            blocked.append(other)
    record = dump.groups.get(call.group)
    if not is_world(call) and not (record is not None and record.ranks):
        missing += _unlisted_ranks(call, others | {rank}, members, dumps, job)
    if not is_open and not missing:
        return None
    return Wait(rank, call, tuple(missing), tuple(blocked))


def _unlisted_ranks(
    call: CollectiveCall,
    seen: set[int],
    members: dict[str, set[int]],
    dumps: dict[int, FlightDump],
    job: JobFacts,
) -> list[int]:
    """Ranks without a dump that may be in a group: gloo's dumps do not list its members.

    Groups of one description have the same size; one with fewer members than another lacks a rank.
    """
    texts = {one.group: one.group_text for dump in dumps.values() for one in dump.calls}
    alike = [len(ranks) for name, ranks in members.items() if texts.get(name) == call.group_text]
    if len(seen) >= max([2, *alike]):
        return []
    return [other for other in job.ranks if other not in dumps]


def _peer(call: CollectiveCall, members: list[int]) -> int | None:
    """Return the other side of a p2p operation: "recv 3<-0", "send 1->2", by ranks in the group."""
    _, _, ends = call.operation.partition(" ")
    _, _, other = ends.partition("<-") if "<-" in ends else ends.partition("->")
    if not other.isdigit():
        return None
    return members[int(other)] if int(other) < len(members) else None


# ---- calls that differ ----


def _signature(call: CollectiveCall) -> tuple[object, ...]:
    sizes = sum(prod(size) for size in call.input_sizes) if call.operation in _EQUAL_SIZES else None
    return call.operation, sizes, call.input_dtypes


def _difference(one: CollectiveCall, other: CollectiveCall) -> Difference | None:
    if one.operation != other.operation:
        return "different_collective"
    return "shape_or_dtype" if _signature(one) != _signature(other) else None


def _deviations(dumps: dict[int, FlightDump]) -> list[Deviation]:
    """Ranks that called something else than the others: in one group at one number, or in the program's order."""
    in_order = _deviation_in_order(dumps)
    if in_order:
        return in_order
    found: list[Deviation] = []
    for group in dict.fromkeys(call.group for dump in dumps.values() for call in dump.calls):
        rows = {
            rank: {call.seq: call for call in dump.calls if call.group == group and not call.is_p2p}
            for rank, dump in dumps.items()
        }
        rows = {rank: calls for rank, calls in rows.items() if calls}
        last = max((max(calls) for calls in rows.values()), default=0)
        for seq in range(max(0, last - _WINDOW), last + 1):
            calls = {rank: row[seq] for rank, row in rows.items() if seq in row}
            if len(calls) > 1 and len({_signature(call) for call in calls.values()}) > 1:
                found += _minority(calls, dumps)
                break
    return sorted(found, key=lambda one: one.call.time or 0.0)[:8]


def _minority(calls: dict[int, CollectiveCall], dumps: dict[int, FlightDump]) -> list[Deviation]:
    """Return the ranks whose call differs from what most ranks called."""
    counts = Counter(_signature(call) for call in calls.values()).most_common()
    is_majority = len(counts) == 1 or counts[0][1] > counts[1][1]
    if is_majority:
        odd = [rank for rank, call in calls.items() if _signature(call) != counts[0][0]]
    else:
        # Equally many on each side: a rank that made such a call at this line before is not the one that changed.
        odd = [rank for rank, call in calls.items() if not _was_called_before(call, dumps[rank])]
        if not odd or len(odd) == len(calls):
            return []
    usual = next(call for rank, call in calls.items() if rank not in odd)
    return [
        Deviation(rank, kind, calls[rank], usual, is_sure=is_majority)
        for rank in odd
        if (kind := _difference(calls[rank], usual)) is not None
    ]


def _was_called_before(call: CollectiveCall, dump: FlightDump) -> bool:
    return any(
        one.group == call.group and one.seq < call.seq and _signature(one) == _signature(call)
        for one in dump.calls
    )


def _symbol(call: CollectiveCall) -> tuple[object, ...]:
    """Return one call in the program's order, so that ranks of different groups can be compared."""
    line = own_line(call.frames) or CodeLine("", "", 0)
    return (*_signature(call), is_world(call), line.file, line.line)


def _deviation_in_order(dumps: dict[int, FlightDump]) -> list[Deviation]:
    """Compare the order of calls of all ranks after the last collective that all have completed.

    The stretch before it must be equal on all ranks: only then do they run the same program.
    """
    if len(dumps) < 3:
        return []
    rows = {rank: [call for call in dump.calls if not call.is_p2p] for rank, dump in dumps.items()}
    anchors = {
        rank: {call.seq: place for place, call in enumerate(calls) if is_world(call) and call.is_done}
        for rank, calls in rows.items()
    }
    shared = set.intersection(*(set(one) for one in anchors.values())) if anchors else set()
    if len(shared) < 2:
        return []
    last, before = sorted(shared)[-1], sorted(shared)[-2]
    stretch = {rank: rows[rank][anchors[rank][before] : anchors[rank][last] + 1] for rank in rows}
    if len({tuple(map(_symbol, calls)) for calls in stretch.values()}) > 1:
        return _deviation_at(stretch, must_be_single=True)
    after = {rank: rows[rank][anchors[rank][last] + 1 :] for rank in rows}
    return _deviation_at(after, must_be_single=True)


def _deviation_at(rows: dict[int, list[CollectiveCall]], *, must_be_single: bool) -> list[Deviation]:
    longest = max((len(calls) for calls in rows.values()), default=0)
    for place in range(longest):
        calls = {rank: row[place] for rank, row in rows.items() if place < len(row)}
        counts = Counter(map(_symbol, calls.values())).most_common()
        if len(counts) == 1:
            continue
        odd = [rank for rank, call in calls.items() if _symbol(call) != counts[0][0]]
        if counts[0][1] < 2 or counts[0][1] <= len(odd) or (must_be_single and len(odd) > 1):
            return []
        usual = next(call for rank, call in calls.items() if rank not in odd)
        return [Deviation(rank, _kind_in_order(calls[rank], usual), calls[rank], usual) for rank in odd]
    return []


def _kind_in_order(call: CollectiveCall, usual: CollectiveCall) -> Difference:
    """A call at another line or in another kind of group is another collective, whatever its shape."""
    if is_world(call) != is_world(usual) or own_line(call.frames) != own_line(usual.frames):
        return "different_collective"
    return _difference(call, usual) or "different_collective"


# ---- which rank waits for which ----


def _find_sinks(found: CollectiveFacts, dumps: dict[int, FlightDump]) -> None:
    """Ranks that are waited for and wait for none."""
    waits = {wait.rank: wait for wait in found.waits}
    awaited: dict[int, CollectiveCall] = {}
    for wait in found.waits:
        for other in (*wait.missing, *wait.blocked):
            awaited.setdefault(other, wait.call)
    sinks = [rank for rank in awaited if rank not in waits or not _waits_for_any(waits[rank])]
    # A rank that has a dump and waits nowhere has not entered the collective; one without a dump may have.
    found.sinks = sorted(sinks, key=lambda rank: (rank not in dumps, rank))
    found.behind = {rank: awaited[rank] for rank in sinks}


def _waits_for_any(wait: Wait) -> bool:
    return bool(wait.missing or wait.blocked)


def waiting_order(waits: Iterable[Wait], first: Sequence[int]) -> list[Wait]:
    """Return waits by distance from the ranks that are waited for: first those that wait for them directly."""
    rows, known, ordered = list(waits), set(first), []
    while rows:
        direct = [wait for wait in rows if known & {*wait.missing, *wait.blocked}] or rows
        ordered += direct
        known |= {wait.rank for wait in direct}
        rows = [wait for wait in rows if wait not in direct]
    return ordered
