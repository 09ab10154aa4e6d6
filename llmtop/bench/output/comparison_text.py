"""A comparison or a ranking for a terminal."""

from __future__ import annotations

import textwrap

from llmtop.bench.model.results import Bench
from llmtop.bench.output.comparison_tables import comparison_sentences, comparison_table, headline, ranking_table
from llmtop.format import printable
from llmtop.report.render.text_table import TextTable


def render_outcome(found: Bench, width: int = 100) -> str:
    """What runs were held to, and what that came to; "" where they were held to nothing.

    Args:
        found: all runs, judged.
        width: of the terminal; sentences are broken into lines of that.
    """
    if found.comparison is None and found.ranking is None:
        return ""
    word, sentence = headline(found)
    title = "" if found.ranking is not None and found.comparison is None else f"decision: {word}\n"
    if found.comparison is not None and found.comparison.decision == "none":
        title = ""
    blocks = [title + _wrap(f"{printable(sentence, 600)}.", width)]
    if found.comparison is not None:
        if found.comparison.changes:
            blocks.append(_draw_table(comparison_table(found.comparison)))
        blocks.append("\n".join(_wrap(one, width) for one in comparison_sentences(found.comparison)))
    elif found.ranking is not None:
        blocks.append(_draw_table(ranking_table(found.ranking)))
    return "\n\n".join(block for block in blocks if block)


def _draw_table(table: TextTable) -> str:
    return "\n".join("  ".join(row).rstrip() for row in table.lines())


def _wrap(sentence: str, width: int) -> str:
    return "\n".join(textwrap.wrap(sentence, max(40, width), break_long_words=False, break_on_hyphens=False))
