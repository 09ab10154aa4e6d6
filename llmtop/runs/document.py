"""One run as a document."""

from __future__ import annotations

from llmtop.document.model import Block, Document, Paragraph, Table, columns
from llmtop.format import counted, duration, figure, number, percent_text
from llmtop.runs import notes_document
from llmtop.runs.ledger import CLASSES, GOODPUT_WORDS
from llmtop.runs.notes_document import moment
from llmtop.runs.report import AttemptReport, RunReport
from llmtop.runs.store import ENDED, FAILED, INTERRUPT


def how_it_ended(how: str, error: str = "", signal: str = "") -> str:
    """Return the end of a run in a few words."""
    if signal:
        return f"killed by {signal}"
    if how == ENDED and error == INTERRUPT:
        return "ended by bench"
    if how == FAILED and error == INTERRUPT:
        return "interrupted (Ctrl+C)"
    if how == "failed" and error:
        return f"failed: {error}"
    return how


def _end_in_full(attempt: AttemptReport) -> str:
    """Return the end of a start with the message of its exception and the line."""
    text = how_it_ended(attempt.how, attempt.error, attempt.signal)
    if attempt.signal:
        return text
    if attempt.how == "killed":
        return f"{text}: its files have no end, as after SIGKILL, SIGTERM or a crash"
    if attempt.how != "failed" or attempt.error == INTERRUPT:
        return text
    message, line = attempt.message.rstrip(". "), attempt.line
    return text + (f": {message}" if message else "") + (f" at {line}" if line else "")


def document_of(report: RunReport) -> Document:
    """Return what `llmtop runs show` prints."""
    blocks: list[Block] = [Paragraph(_lead(report), is_lead=True)]
    if report.step_seconds_p50 is not None:
        rate = "" if report.tokens_per_second is None else f", {number(report.tokens_per_second)} tokens/s"
        blocks.append(
            Paragraph(
                f"{counted(report.steps, 'step')}: p50 {duration(report.step_seconds_p50)}, "
                f"p95 {duration(report.step_seconds_p95)} from start to start{rate}."
            )
        )
    whole = sum(report.ledger_seconds.values())
    rows = [
        (CLASSES[name], duration(seconds), percent_text(100 * seconds / whole, 1))
        for name, seconds in report.ledger_seconds.items()
        if seconds > 0 and whole > 0 and seconds >= _LEAST_SHARE * whole
    ]
    if rows:
        blocks.append(
            Table(
                "Where the time of all ranks went",
                columns(("what",), ("rank time", "share")),
                rows,
                most=len(rows),
            )
        )
        blocks.append(Paragraph(f"{GOODPUT_WORDS} {percent_text(report.goodput_pct, 1)}."))
    if len(report.attempts) > 1:
        blocks.append(_attempts(report.attempts))
    blocks += notes_document.blocks(report)
    if report.values:
        values = ", ".join(f"{name} {figure(value)}" for name, value in sorted(report.values.items()))
        blocks.append(Paragraph(f"Last logged values: {values}."))
    blocks += [Paragraph(sentence, role="warning") for sentence in _gaps(report)]
    if report.command:
        blocks.append(Paragraph(f"Command: {report.command}", role="dim"))
    return Document(f"Run {report.id}", blocks)


_LEAST_SHARE = 0.0005


def _lead(report: RunReport) -> str:
    called = f" ({report.name})" if report.name else ""
    ranks = counted(report.ranks, "rank")
    if report.world_size is not None and report.world_size > report.ranks:
        ranks += f" of {report.world_size}, those whose files are on this node"
    program = (
        f"{report.program} on {report.host}" if report.program or report.host else "files that cannot be read"
    )
    return (
        f"Run {report.id}{called}: {program}, {ranks}, "
        f"from {moment(report.started)} for {duration(report.wall_seconds)}; {_end_in_full(report.attempts[-1])}."
    )


def _attempts(attempts: list[AttemptReport]) -> Table:
    rows = [
        (moment(one.started), how_it_ended(one.how, one.error, one.signal), str(one.ranks), str(one.steps),
         duration(max(0.0, one.ended - one.started)))
        for one in attempts
    ]  # fmt: skip
    return Table("Starts", columns(("started", "end"), ("ranks", "steps", "lasted")), rows)


def _gaps(report: RunReport) -> list[str]:
    found = []
    if report.steps_unread:
        found.append(f"{counted(report.steps_unread, 'step')} ended before the writer read them: in no figure.")
    if report.records_dropped:
        found.append(f"The disk did not take {counted(report.records_dropped, 'record')}; check its free space.")
    if report.bytes_damaged:
        found.append(f"{counted(report.bytes_damaged, 'byte')} of the files cannot be read.")
    return found
