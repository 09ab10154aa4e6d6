"""What a bench came to as Markdown, for the summary of a CI job or a comment."""

from __future__ import annotations

from llmtop.bench.model.results import Bench
from llmtop.bench.output.comparison_tables import (
    comparison_sentences,
    comparison_table,
    headline,
    ranking_table,
    runs_table,
)
from llmtop.document.markdown import escape
from llmtop.format import duration, printable
from llmtop.report.render.text_table import TextTable

_MARKS = {"regression": "❌", "undecidable": "❔", "failed": "❌", "interrupted": "❔", "running": "❔"}


def render_summary(found: Bench) -> str:
    """All of it, the decision first."""
    word, sentence = headline(found)
    parts = [f"## {_MARKS.get(word, '✅')} llmtop bench: {word}", f"**{escape(printable(sentence, 600))}**"]
    if found.comparison is not None and found.comparison.changes:
        parts.append(_table(comparison_table(found.comparison)))
    elif found.ranking is not None:
        parts.append(_table(ranking_table(found.ranking)))
    elif found.figures:
        parts.append(_table(runs_table(found)))
    lines = comparison_sentences(found.comparison) if found.comparison is not None else []
    lines += [
        f"run {run.number}: {printable(one, 300)}" for run in found.runs for one in (*run.unsteady, *run.notes)
    ]
    lines += [printable(note, 300) for note in found.notes]
    lines.append(_settings_text(found))
    parts.append("\n".join(f"- {escape(line)}" for line in lines))
    return "\n\n".join(parts) + "\n"


def _settings_text(found: Bench) -> str:
    asked = found.settings
    window = f"{asked.steps} steps" if asked.steps is not None else duration(asked.seconds)
    facts = ", ".join(f"{name} {printable(value, 80)}" for name, value in found.environment.items())
    about = f"{asked.runs} runs of {window} after {asked.warmup} to warm up"
    return f"{about}: {printable(' '.join(found.command), 200)}{f' ({facts})' if facts else ''}"


def _table(table: TextTable) -> str:
    """As GitHub and GitLab draw it."""
    rows = [table.header, *table.shown]
    lines = ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
    sides = ["---" if place < table.text_columns else "---:" for place in range(len(table.header))]
    lines.insert(1, "| " + " | ".join(sides) + " |")
    return "\n".join(lines)
