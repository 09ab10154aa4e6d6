"""The answer about a dead or hung job as a document."""

from __future__ import annotations

from llmtop.document.model import BRIEF_LINES, Block, Document, Finding, Heading, Paragraph, Table, columns
from llmtop.format import DASH, count, counted
from llmtop.postmortem.answer.decide import CLASS_WORDS
from llmtop.postmortem.model import Culprit, PostmortemReport
from llmtop.postmortem.rank_text import rank_list

_TITLE = "Postmortem"


def postmortem_document(report: PostmortemReport, *, full: bool) -> Document:
    """Return a report as a document.

    Args:
        report: the answer.
        full: all evidence, waiting ranks and files; else what is to be read first.
    """
    blocks: list[Block] = [
        Paragraph(" · ".join(_head(report)), "dim"),
        Paragraph(report.summary, "title", is_lead=True),
    ]
    for culprit in report.culprits if full else report.culprits[:3]:
        blocks += _culprit(culprit, full=full)
    if report.waiting:
        blocks.append(_waiting(report, full=full))
    if report.victims:
        text = f"Failed because a peer had gone, or ended by the launcher: {rank_list(report.victims)}."
        blocks.append(Paragraph(text))
    blocks += _item_blocks("What to do", report.next)
    blocks += _item_blocks("Missing evidence", report.missing)
    blocks += _item_blocks("Not read", report.notes if full else report.notes[:3])
    return Document(_TITLE, blocks, most_lines=None if full else BRIEF_LINES)


def _head(report: PostmortemReport) -> list[str]:
    parts = [report.source, "postmortem"]
    if report.ranks is not None:
        parts.append(counted(report.ranks, "rank"))
    parts += [f"{kind}: {count(number)}" for kind, number in sorted(report.files.items()) if kind != "empty"]
    return parts


def _culprit(culprit: Culprit, *, full: bool) -> list[Block]:
    rows = [(one.text, one.source or DASH) for one in culprit.evidence]
    found: list[Block] = [
        Finding(
            severity="critical",
            summary=f"Rank {culprit.rank}: {CLASS_WORDS[culprit.failure]}, confidence {culprit.confidence}",
            name=culprit.failure,
            evidence=" · ".join(_facts(culprit)),
        ),
        Table("Evidence", columns(("evidence", "source"), cut="never"), rows, most=8 if full else 4),
    ]
    return found


def _facts(culprit: Culprit) -> list[str]:
    facts = [
        ("host", culprit.host),
        ("pid", culprit.pid),
        ("GPU", culprit.gpu),
        ("groups", culprit.role),
        ("line", culprit.line),
        ("phase", culprit.phase),
        ("step", culprit.step),
    ]
    texts = [f"{name} {value}" for name, value in facts if value is not None]
    if culprit.operation:
        texts.append(f"collective {culprit.operation} #{culprit.number} of {culprit.process_group}")
    return texts


def _waiting(report: PostmortemReport, *, full: bool) -> Table:
    rows = [
        (
            rank_list(one.ranks),
            one.operation + (f" #{one.number}" if one.number is not None else ""),
            one.process_group or DASH,
            rank_list(one.waits_for) if one.waits_for else DASH,
            one.line or DASH,
        )
        for one in report.waiting
    ]
    titles = ("only waited", "in", "process group", "for", "line")
    return Table("Ranks that only waited", columns(titles, cut="end"), rows, most=1 << 20 if full else 6)


def _item_blocks(title: str, texts: tuple[str, ...]) -> list[Block]:
    return [Heading(title), *(Paragraph(text, is_item=True) for text in texts)] if texts else []
