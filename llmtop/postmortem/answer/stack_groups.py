"""Stacks of all ranks at one moment, grouped by equality: "7 ranks in all_reduce #1979; rank 5 in next_batch"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llmtop.postmortem.answer.decide import decide
from llmtop.postmortem.evidence import SAMPLED, CodeLine, Evidence, Mark, Place, StackDump, ThreadTrace
from llmtop.postmortem.job import build_job
from llmtop.postmortem.model import PostmortemReport
from llmtop.postmortem.rank_text import rank_list
from llmtop.postmortem.stack_meaning import collective_of, own_line, without_own

_LIVE = Place("live stacks")


@dataclass(frozen=True)
class RankStack:
    """Stack of the main thread of one rank."""

    rank: int
    frames: tuple[CodeLine, ...]
    """Innermost first; empty: it could not be read."""
    number: int | None = None
    """Number of the last collective that the rank has called and that has not ended."""
    error: str = ""
    """Why there is no stack."""
    pid: int | None = None
    host: str = ""


@dataclass(frozen=True)
class StackGroup:
    """Ranks whose stacks are equal."""

    ranks: tuple[int, ...]
    what: str
    """"all_reduce #1979, train.py:88 in step"; why there is none."""
    frames: tuple[CodeLine, ...]
    is_waiting: bool
    """True if they are in a collective."""


def group_ranks(stacks: Sequence[RankStack]) -> list[StackGroup]:
    """Return the groups of equal stacks: those that are in no collective first, then the largest."""
    stacks = [replace(one, frames=without_own(one.frames)) for one in stacks]
    numbers: dict[tuple[object, ...], set[int]] = {}
    for one in stacks:
        if one.frames and one.number is not None:
            numbers.setdefault(_lines(one), set()).add(one.number)
    members: dict[tuple[object, ...], list[RankStack]] = {}
    for one in stacks:
        lines = _lines(one)
        known = numbers.get(lines, set())
        # Of a rank on another node the number is not known: it is that of the ranks with the same stack.
        number = next(iter(known)) if one.number is None and len(known) == 1 else one.number
        key = (collective_of(one.frames), number, *lines) if one.frames else (one.error,)
        members.setdefault(key, []).append(replace(one, number=number) if number != one.number else one)
    groups = [
        StackGroup(
            ranks=tuple(sorted(one.rank for one in alike)),
            what=place_text(alike[0]),
            frames=alike[0].frames,
            is_waiting=collective_of(alike[0].frames) is not None,
        )
        for alike in members.values()
    ]
    return sorted(groups, key=lambda group: (group.is_waiting, not group.frames, -len(group.ranks), group.ranks))


def _lines(one: RankStack) -> tuple[object, ...]:
    """Return the key by which stacks are equal: py-spy leaves classes out, and folders differ by node."""
    return tuple(
        (frame.function.rpartition(".")[2], frame.file.replace("\\", "/").rpartition("/")[2], frame.line)
        for frame in one.frames
    )


def place_text(one: RankStack) -> str:
    """Return where a rank is: the collective with its number, or the call of the script, and the line."""
    if not one.frames:
        return one.error or "no stack"
    line = own_line(one.frames)
    where = line.text.partition(" in ")[0] if line is not None else ""
    collective = collective_of(one.frames)
    if collective is not None:
        number = f" #{one.number}" if one.number is not None else ""
        return f"{collective}{number}, {where}"
    place = one.frames.index(line) if line is not None else 0
    called = one.frames[place - 1] if place else one.frames[0]
    return f"{called.function}, {where}"


def groups_text(groups: Sequence[StackGroup]) -> str:
    """Return all groups in one line: "7 ranks in all_reduce #1979; rank 5 in DataLoader.__next__, train.py:88"."""
    ordered = sorted(groups, key=lambda group: (not group.is_waiting, -len(group.ranks)))
    return "; ".join(
        f"{rank_list(group.ranks) if len(group.ranks) == 1 else f'{len(group.ranks)} ranks'} in "
        + (group.what.partition(",")[0] if group.is_waiting else group.what)
        for group in ordered
    )


def judge_live(
    stacks: Sequence[RankStack], world: int, steps: Mapping[int, int] | None = None
) -> PostmortemReport:
    """Name the culprit of a hang by the stacks of all ranks, with the logic of `llmtop postmortem`.

    Args:
        stacks: one of each rank that could be read.
        world: number of ranks of the job.
        steps: last step by rank, where known.
    """
    evidence = Evidence(marks=[Mark("world", _LIVE, number=world)])
    for one in stacks:
        evidence.marks.append(Mark("process", _LIVE, rank=one.rank, pid=one.pid, host=one.host))
        if one.frames:
            trace = ThreadTrace(one.frames, "MainThread", is_main=True)
            evidence.stacks.append(StackDump(_LIVE, SAMPLED, one.rank, one.pid, [trace]))
    for rank, step in (steps or {}).items():
        evidence.marks.append(Mark("step", _LIVE, rank=rank, number=step))
    return decide(build_job(evidence), "live stacks")
