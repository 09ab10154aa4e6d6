"""Parts of a document. Reports build documents; only the writers know widths, escapes and syntax.

Texts may come from strangers' files: each writer cleans and escapes all of them at one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llmtop.document.timeline import WholeTimeline
from llmtop.model.severity import Severity

Role = Literal["text", "title", "critical", "warning", "info", "dim"]
"""Weight of a text. A terminal and the screen show it as colour, never by colour alone."""


Cut = Literal["start", "middle", "end", "never"]


@dataclass(frozen=True)
class Heading:
    """Title of what follows."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """One sentence or several."""

    text: str
    role: Role = "text"
    is_lead: bool = False
    """True for the sentence that sums all up; it stands apart."""
    is_item: bool = False
    """True for one point of a list."""
    most_lines: int | None = None
    """Lines of text shown at most; None: all."""


@dataclass(frozen=True)
class Finding:
    """One finding. A part that is empty is left out."""

    severity: Severity
    summary: str
    name: str = ""
    saving: str = ""
    """Largest possible saving: "55.2 ms a step"."""
    evidence: str = ""
    todo: str = ""
    next: str = ""
    """A command."""
    confirm: str = ""
    share: str = ""
    """Shown where the finding is folded to one line."""
    most_lines: int | None = None
    """Lines of text of the summary shown at most, and of each other part one less; None: all."""


@dataclass(frozen=True)
class Column:
    """Head of one column of a table."""

    title: str
    is_text: bool = False
    """True for words, which stand at the left and may be cut; numbers stand at the right and are never cut."""
    cut: Cut = "end"
    """Where a text loses characters if it does not fit; "never": it is broken into lines instead."""
    is_optional: bool = False
    """True for a column that stands below the others where not all fit; a brief document leaves it out there."""


@dataclass(frozen=True)
class Table:
    """Rows of cells."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    most: int = 12
    """Rows shown in text and Markdown, which are the most important ones."""
    least: int = 3
    """Rows shown before other tables lose more of theirs, or the last tables are left out."""
    strong: Sequence[bool] = ()
    """Which rows stand out; empty: none."""


@dataclass(frozen=True)
class Listing:
    """Lines of a fixed layout, such as a tree of stack frames; a line that does not fit is cut."""

    title: str
    lines: Sequence[str]
    most: int = 1 << 30
    """Lines shown in text and Markdown."""
    least: int = 3
    """Fewest rows, as for a table."""


@dataclass(frozen=True)
class AreaChart:
    """Two quantities over time, the second on top of the first."""

    title: str
    lower: Sequence[int]
    upper: Sequence[int]
    """The sum at each instant: never less than `lower`."""
    names: tuple[str, str]
    format_value: Callable[[float], str]
    end: str
    """Label of the right end of the axis."""
    rows: int = 6
    """Lines of text."""


@dataclass(frozen=True)
class Point:
    """Circle in a scatter plot."""

    x: float
    y: float
    weight: float
    """The area of the circle is in proportion to it."""
    text: str


@dataclass(frozen=True)
class RooflinePlot:
    """Points under the roofs of a GPU, both axes logarithmic; only HTML draws it."""

    title: str
    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    """Peak rates by number format."""
    points: Sequence[Point]
    """x in FLOP a byte, y in FLOP/s."""


Block = Heading | Paragraph | Finding | Table | Listing | AreaChart | RooflinePlot | WholeTimeline


@dataclass(frozen=True)
class Document:
    """Content of one report, in reading order."""

    title: str
    """Heading of the page and of the Markdown file. Text has none: its first sentences say it."""
    blocks: Sequence[Block]
    warning: str = ""
    """Sentence before all else: what the report lacks."""
    most_lines: int | None = None
    """Lines of text at most: tables and listings lose rows until it fits; None: all is shown."""


BRIEF_FINDINGS = 3
"""The findings that a brief report has."""
BRIEF_LINES = 60
"""A screen and a half: what is read before the next command is typed."""


def columns(words: Sequence[str], numbers: Sequence[str] = (), cut: Cut = "end") -> tuple[Column, ...]:
    """Return columns of words, then columns of numbers.

    Args:
        words: titles of the former.
        numbers: titles of the latter.
        cut: of the first column; "never": of all.
    """
    texts = [
        Column(title, is_text=True, cut=cut if place == 0 or cut == "never" else "end")
        for place, title in enumerate(words)
    ]
    return (*texts, *map(Column, numbers))
