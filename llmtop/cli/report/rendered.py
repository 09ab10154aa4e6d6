"""Print a report or a comparison of any kind, as JSON or as text with the terminal's width and colours."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from llmtop.cli.output import print_encoded, print_text

if TYPE_CHECKING:
    from llmtop.report_kinds.kind import Rendered

_COLORS = {"critical": "red", "warning": "yellow"}


def print_rendered(found: Rendered, *, as_json: bool, full: bool) -> None:
    """Print what was read.

    Args:
        found: a report or a comparison.
        as_json: as one line of JSON.
        full: all of it; else what is to be read first.
    """
    if as_json:
        print_encoded(found.json())
    else:
        width = shutil.get_terminal_size((100, 40)).columns
        print_text(found.text(width, _paint if _colored() else None, full=full), nl=False, styled=True)


def _colored() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _paint(text: str, role: str) -> str:
    return click.style(
        text, fg=_COLORS.get(role), bold=role in ("title", "critical") or None, dim=role == "dim" or None
    )
