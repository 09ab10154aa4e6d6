"""Facts by rank: which rank a file, a pid or a dump belongs to, and how many ranks the job has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from llmtop.postmortem.evidence import (
    MAIN_GROUP,
    Evidence,
    FlightDump,
    GroupRecord,
    Mark,
    ProcessEnd,
    PythonError,
    StackDump,
)
from llmtop.postmortem.place_facts import (
    keep_earliest_failures,
    place_errors,
    place_gpus,
    place_host_ranks,
    place_single_process,
)
from llmtop.postmortem.place_files import place_local_ranks

_MOST_RANKS = 1 << 17


@dataclass
class RankFacts:
    """All that is known of one rank."""

    rank: int
    host: str = ""
    pid: int | None = None
    gpu: str = ""
    dump: FlightDump | None = None
    errors: list[PythonError] = field(default_factory=list)
    """One of each text, by time where the files have one."""
    ends: list[ProcessEnd] = field(default_factory=list)
    stacks: list[StackDump] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """Its own files that are not empty."""

    @property
    def has_facts(self) -> bool:
        """True if any file shows an error, an end, a stack or a mark of it."""
        return bool(self.errors or self.ends or self.stacks or self.marks)

    @property
    def is_absent(self) -> bool:
        """True if no file of its own has anything of it."""
        return not (self.dump or self.errors or self.stacks or self.files)


@dataclass
class JobFacts:
    """All ranks of a job, and what belongs to none of them."""

    ranks: dict[int, RankFacts] = field(default_factory=dict)
    world: int | None = None
    """Number of ranks; None: no file has it."""
    others: list[Mark] = field(default_factory=list)
    unplaced_dumps: list[FlightDump] = field(default_factory=list)
    evidence: Evidence = field(default_factory=Evidence)

    def rank_facts(self, rank: int) -> RankFacts:
        """Return the facts of a rank, which may be the first of it."""
        found = self.ranks.get(rank)
        if found is None:
            found = self.ranks[rank] = RankFacts(rank)
        return found


def build_job(evidence: Evidence) -> JobFacts:
    """Return the facts of all files by rank."""
    job = JobFacts(evidence=evidence)
    written = _written_world(evidence)
    place_local_ranks(evidence)
    ranks_of_pids = _ranks_of_pids(evidence)
    _place_dumps(evidence)
    for facts in (evidence.errors, evidence.stacks, evidence.ends, evidence.marks):
        for fact in facts:
            if fact.pid in ranks_of_pids and (fact.rank is None or isinstance(fact, StackDump)):
                fact.rank = ranks_of_pids[fact.pid]
    place_host_ranks(evidence)
    place_gpus(evidence)
    keep_earliest_failures(evidence)
    place_single_process(evidence)
    place_errors(evidence)
    for dump in evidence.dumps:
        _add_dump(job, dump)
    if written:  # a number in a name beyond the written number of ranks is none
        for file in evidence.files:
            file.rank = file.rank if file.rank is None or file.rank < written else None
        for facts in (evidence.errors, evidence.stacks, evidence.marks):
            for fact in facts:
                fact.rank = fact.rank if fact.rank is None or fact.rank < written else None
    _add_facts(job)
    _set_world(job)
    _mark_escalations(job)
    for facts_of in job.ranks.values():
        facts_of.errors.sort(key=lambda error: error.time or 0.0)
    return job


def _add_facts(job: JobFacts) -> None:
    """Assign the facts that have a rank to that rank."""
    evidence = job.evidence
    for error in evidence.errors:
        if (rank := _valid(error.rank)) is not None:
            _add_error(job.rank_facts(rank), error)
    for stack in evidence.stacks:
        if (rank := _valid(stack.rank)) is not None and stack.threads:
            job.rank_facts(rank).stacks.append(stack)
    for end in evidence.ends:
        if (rank := _valid(end.rank)) is not None:
            job.rank_facts(rank).ends.append(end)
    for mark in evidence.marks:
        _add_mark(job, mark)
    for file in evidence.files:
        if (rank := _valid(file.rank)) is not None and file.kind != "empty":
            job.rank_facts(rank).files.append(file.path)


def _valid(rank: int | None) -> int | None:
    return rank if rank is not None and 0 <= rank < _MOST_RANKS else None


def _ranks_of_pids(evidence: Evidence) -> dict[int, int]:
    """Ranks by pid; a local rank counts only where nothing names the global one."""
    found: dict[int, int] = {}
    local: dict[int, int] = {}
    worlds = [mark.number for mark in evidence.marks if mark.kind == "process" and mark.number]
    largest = max(worlds, default=0)
    for mark in evidence.marks:
        if mark.kind != "process" or mark.pid is None or mark.rank is None:
            continue
        if mark.text == "local":
            local[mark.pid] = mark.rank
        elif not mark.number or mark.number == largest:  # a rank of a smaller communicator is no global rank
            found[mark.pid] = mark.rank
    sampled = {stack.pid: stack.rank for stack in evidence.stacks if stack.pid and stack.rank is not None}
    return {**sampled, **local, **found}


def _place_dumps(evidence: Evidence) -> None:
    """Give dumps without a rank that of the log with a thread of the same id."""
    threads = {
        trace.thread: stack.rank
        for stack in evidence.stacks
        if stack.rank is not None
        for trace in stack.threads
        if trace.thread > 1 << 32  # pthread ids are addresses; what the kernel numbers is small, and repeats
    }
    for dump in evidence.dumps:
        ids = Counter(threads[call.thread] for call in dump.calls if call.thread in threads)
        if ids:
            dump.rank = ids.most_common(1)[0][0]


def _add_dump(job: JobFacts, dump: FlightDump) -> None:
    if _valid(dump.rank) is None or dump.rank is None:
        job.unplaced_dumps.append(dump)
        return
    facts = job.rank_facts(dump.rank)
    if facts.dump is None or _weight(dump) > _weight(facts.dump):
        facts.dump = dump
        facts.host = facts.host or dump.host


def _weight(dump: FlightDump) -> tuple[int, int, int]:
    has_counts = any(group.enqueued is not None for group in dump.groups.values())
    last = max((call.time or 0.0 for call in dump.calls), default=0.0)
    return int(last), int(has_counts), len(dump.calls)


def _add_error(facts: RankFacts, error: PythonError) -> None:
    for place, known in enumerate(facts.errors):
        if known.name != error.name:
            continue
        is_bare = _is_bare(known)
        if is_bare or _is_bare(error) or known.message[:120] == error.message[:120]:
            whole, other = (error, known) if is_bare else (known, error)
            whole.time = whole.time or other.time
            whole.frames = whole.frames or other.frames
            whole.code = whole.code or other.code
            facts.errors[place] = whole
            return
    facts.errors.append(error)


def _is_bare(error: PythonError) -> bool:
    """True for an error of a run file, which keeps the class alone."""
    return not error.message and not error.frames


def _add_mark(job: JobFacts, mark: Mark) -> None:
    if _valid(mark.rank) is None or mark.rank is None:
        job.others.append(mark)
        return
    if mark.kind == "process" and mark.number and mark.number < _largest_world(job):
        return
    facts = job.rank_facts(mark.rank)
    facts.marks.append(mark)
    if mark.kind in ("process", "ras_behind", "ras_dead"):
        facts.host = facts.host or mark.host
        facts.pid = facts.pid or mark.pid
        facts.gpu = facts.gpu or mark.gpu


def _written_world(evidence: Evidence) -> int | None:
    """Return the number of ranks that logs write; None where none does."""
    numbers = [mark.number for mark in evidence.marks if mark.kind in ("world", "process") and mark.number > 1]
    return max(numbers, default=None)


def _largest_world(job: JobFacts) -> int:
    return max((mark.number for mark in job.evidence.marks if mark.kind == "process"), default=0)


def _set_world(job: JobFacts) -> None:
    """The number of ranks: as files have it, and never less than the ranks that were found."""
    least = max(job.ranks, default=-1) + 1
    written = Counter(
        mark.number for mark in job.evidence.marks if mark.kind == "world" and mark.number < _MOST_RANKS
    )
    of_groups = [max(group.ranks) + 1 for facts in job.ranks.values() for group in _groups(facts) if group.ranks]
    of_groups.append(least + _unseen_ranks(job))
    known = [number for number, _ in written.most_common(1)] + of_groups + [_largest_world(job)]
    largest = min(max(known, default=0), _MOST_RANKS)
    world = max(least, largest)
    job.world = world or None
    for rank in range(world):
        job.rank_facts(rank)
    job.ranks = dict(sorted(job.ranks.items()))


def _unseen_ranks(job: JobFacts) -> int:
    """Ranks without any file, by groups of one description of which some have fewer members that were seen.

    gloo's dumps do not list the members of a group; groups of a mesh's dimension all have the same size.
    """
    members: dict[str, dict[str, set[int]]] = {}
    for rank, facts in job.ranks.items():
        for call in facts.dump.calls if facts.dump is not None else ():
            if call.group_text not in ("", "undefined", MAIN_GROUP):
                members.setdefault(call.group_text, {}).setdefault(call.group, set()).add(rank)
    lacks: set[int] = set()
    for groups in members.values():
        sizes = [len(ranks) for ranks in groups.values()]
        if max(sizes) > 1:
            lacks.add(sum(max(sizes) - size for size in sizes))
    without = max(job.ranks, default=-1) + 1 - sum(facts.dump is not None for facts in job.ranks.values())
    return max(0, lacks.pop() - without) if len(lacks) == 1 else 0


def _groups(facts: RankFacts) -> Iterable[GroupRecord]:
    return facts.dump.groups.values() if facts.dump is not None else ()


def _mark_escalations(job: JobFacts) -> None:
    """Ends by SIGKILL that the launcher sent because SIGTERM had no effect."""
    unable = {mark.pid for mark in job.evidence.marks if mark.kind == "launcher_kill"}
    closed = {end.pid for end in job.evidence.ends if end.is_by_launcher and end.signal == 15}
    for facts in job.ranks.values():
        for end in facts.ends:
            if end.signal == 9 and end.pid is not None and (end.pid in unable or (end.pid in closed)):
                end.is_escalated = True
