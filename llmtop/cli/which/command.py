"""llmtop which: the first tool and its command for a symptom; the table is `llmtop.report.advice.symptoms`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from llmtop.cli.output import print_json, print_text, text_width
from llmtop.errors import EXIT_DONE, UnusableInput

if TYPE_CHECKING:
    from llmtop.report.advice.symptoms import Symptom


@click.command()
@click.argument("words", metavar="[SYMPTOM...]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def which(*, words: tuple[str, ...], as_json: bool) -> int:
    """Print the first tool for a symptom, and its command.

    SYMPTOM is the id of an alert (input_bound) or words (GPU memory grows). Without it all symptoms are listed.
    docs/symptoms.md has the same table.
    """
    from llmtop.report.advice.symptoms import SYMPTOMS, find_symptoms, nearest_symptoms

    query = " ".join(words)
    found = find_symptoms(query) if words else list(SYMPTOMS)
    if not found:
        near = ", ".join(f"{one.id} ({one.title})" for one in nearest_symptoms(query))
        raise UnusableInput(
            f"no symptom has the words {query!r}. The nearest are: {near}. llmtop which lists all symptoms"
        )
    if as_json:
        print_json(_as_json(query or None, found))
    elif not words:
        for one in found:
            print_text(f"{one.id:<20} {one.title}")
    else:
        print_text("\n\n".join(_text(one, text_width()) for one in found))
    return EXIT_DONE


def _as_json(query: str | None, found: list[Symptom]) -> object:
    from llmtop.cli.printed import SymptomEntry, SymptomList

    return SymptomList(
        query=query,
        symptoms=[
            SymptomEntry(
                id=one.id,
                symptom=one.title,
                tool=one.tool,
                command=one.command,
                answer=one.answer,
                alert=one.alert,
                fix=one.advice.fix or None if one.advice else None,
                confirm=one.advice.confirm if one.advice else None,
            )
            for one in found
        ],
    )


def _text(one: Symptom, width: int) -> str:
    """Return one symptom as lines; the command stays on one line, so that it can be copied."""
    rows = [("first tool", one.tool), ("answers", one.answer)]
    if one.advice is not None:
        rows += [("usual fix", one.advice.fix), ("confirmed", one.advice.confirm)]
    lines = [f"{one.id}: {one.title}", f"  command     {one.command}"]
    for name, text in rows:
        if text:
            lines += textwrap.wrap(f"  {name:<11} {text}", max(width, 40), subsequent_indent=" " * 14)
    return "\n".join(lines)
