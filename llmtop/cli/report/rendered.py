"""Print a report or a comparison of any kind: as JSON, Markdown, a page, or text of the terminal's width."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmtop.cli.output import print_encoded, print_text, text_width
from llmtop.errors import NotPossibleHere

if TYPE_CHECKING:
    from llmtop.report_kinds.kind import Rendered

_COLORS = {"critical": "red", "warning": "yellow"}


markdown_option = click.option("--markdown", is_flag=True, help="Print the result as Markdown.")
html_option = click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write the result to FILE as one HTML page."
)


def refuse_both(*, as_json: bool, markdown: bool) -> None:
    """Raise a usage error if two forms are asked for on standard output."""
    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other: pass one of them")


def print_rendered(
    found: Rendered, *, as_json: bool, full: bool, markdown: bool = False, html: Path | None = None
) -> None:
    """Print what was read.

    Args:
        found: a report or a comparison.
        as_json: as one line of JSON.
        full: all of it; else what is to be read first.
        markdown: as Markdown.
        html: a file to write the page to; nothing else is printed then but what another option asks for.

    Raises:
        NotPossibleHere: the file cannot be written.
    """
    if html is not None:
        _write(html, found.html())
        print_text(f"written: {html}", err=True)
    if as_json:
        print_encoded(found.json())
    elif markdown:
        print_text(found.markdown(), nl=False)
    elif html is None:
        print_text(found.text(text_width(), _paint if _uses_color() else None, full=full), nl=False, styled=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotPossibleHere(f"{path} cannot be written: {error.strerror}") from None


def _uses_color() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _paint(text: str, role: str) -> str:
    return click.style(
        text, fg=_COLORS.get(role), bold=role in ("title", "critical") or None, dim=role == "dim" or None
    )
