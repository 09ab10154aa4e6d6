"""The last two minutes of each rank as a document."""

from __future__ import annotations

import time

from llmtop.document.model import Block, Document, Heading, Listing, Paragraph, Table, columns
from llmtop.format import DASH, counted, duration
from llmtop.postmortem.last_minutes import RankTail, StackSeen, StepSeen, TailReport
from llmtop.postmortem.rank_text import rank_list
from llmtop.postmortem.stack_meaning import collective_of, own_line

_MOST_STACKS = 3


def tail_document(report: TailReport, *, slowest: bool) -> Document:
    """Return the last minutes of a run as a document.

    Args:
        report: the last minutes.
        slowest: the slowest step of each rank with its phases and stacks, instead of what each does last.
    """
    blocks: list[Block] = [
        Paragraph(f"run {report.run} · {report.folder} · last two minutes", "dim"),
        Paragraph(_summary(report, slowest=slowest), "title", is_lead=True),
    ]
    if slowest:
        for one in sorted(report.ranks, key=lambda one: -_slowest_seconds(one))[:8]:
            if one.slowest is not None:
                blocks += _slow_step(one, one.slowest)
    else:
        titles = ("rank", "how", "last record", "doing")
        numbers = ("steps", "last step", "p50", "slowest", "idle")
        blocks.append(Table("Ranks", columns(titles, numbers), [_row(one) for one in report.ranks], most=64))
        blocks += [block for one in report.ranks if one.running for block in _running(one)][:16]
    return Document("Last minutes", blocks)


def _slowest_seconds(one: RankTail) -> float:
    return one.slowest.seconds if one.slowest is not None else 0.0


def _summary(report: TailReport, *, slowest: bool) -> str:
    if slowest:
        first = max(report.ranks, key=_slowest_seconds, default=None)
        if first is None or first.slowest is None:
            return "No step in the last two minutes."
        step = first.slowest
        longest = max(step.phases.items(), key=lambda item: item[1], default=None)
        where = f", {longest[0]} {duration(longest[1])}" if longest is not None else ""
        return f"The slowest step: {step.number} of {_name(first)}, {duration(step.seconds)}{where}."
    dead = [one.rank for one in report.ranks if one.how in ("killed", "failed") and one.rank is not None]
    text = f"{counted(len(report.ranks), 'rank')} with files."
    return f"{text} {rank_list(dead).capitalize()} ended without order." if dead else text


def _name(one: RankTail) -> str:
    return f"rank {one.rank}" if one.rank is not None else f"pid {one.pid}"


def _row(one: RankTail) -> tuple[str, ...]:
    doing = one.phase or DASH
    if one.running:
        doing = stack_text(one.running[-1])
    return (
        _name(one),
        one.how + (f" ({one.error})" if one.error else ""),
        time.strftime("%H:%M:%S", time.localtime(one.last_sign)),
        doing,
        str(one.steps),
        DASH if one.last_step is None else str(one.last_step),
        duration(one.median_seconds),
        duration(one.slowest.seconds if one.slowest is not None else None),
        duration(one.idle_seconds),
    )


def stack_text(stack: StackSeen) -> str:
    """Return a stack in a few words: the collective it waits in, and the script's line."""
    line = own_line(stack.frames)
    where = line.text if line is not None else ""
    collective = collective_of(stack.frames)
    return f"{collective}, {where}" if collective else where


def _slow_step(one: RankTail, step: StepSeen) -> list[Block]:
    at = time.strftime("%H:%M:%S", time.localtime(step.at))
    rows = [(name, duration(seconds)) for name, seconds in sorted(step.phases.items(), key=lambda item: -item[1])]
    median = f", p50 {duration(one.median_seconds)}" if one.median_seconds is not None else ""
    title = f"{_name(one).capitalize()}: step {step.number} at {at} took {duration(step.seconds)}{median}"
    blocks: list[Block] = [Heading(title)]
    if rows:
        blocks.append(Table("Phases (host time)", columns(("phase",), ("time",)), rows))
    return [*blocks, *_listings(step.stacks)]


def _running(one: RankTail) -> list[Block]:
    return [Heading(f"{_name(one).capitalize()}: stacks of the step that did not end"), *_listings(one.running)]


def _listings(stacks: tuple[StackSeen, ...]) -> list[Block]:
    shown = stacks[-_MOST_STACKS:]
    return [
        Listing(f"{duration(one.into_seconds)} into the step", [frame.text for frame in one.frames], most=12)
        for one in shown
    ]
