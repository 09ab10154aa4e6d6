"""The characters that the screen draws with: one set for UTF-8 terminals, one of plain ASCII.

Only characters that every monospaced font has at width one: box drawing, block elements, and braille in the large
charts alone (a key changes it). No sextants, no emoji.
"""

from __future__ import annotations

from msgspec import Struct

from tui.paint.text_width import cell_len


class Box(Struct, frozen=True):
    """The eight parts of a frame."""

    top_left: str
    top_right: str
    bottom_left: str
    bottom_right: str
    across: str
    down: str


class Glyphs(Struct, frozen=True):
    """One set of characters; every string index is a level, every other member one cell wide."""

    ascii: bool
    levels: str
    """Nothing, then eight rising levels."""
    thin: Box
    heavy: Box
    """The frame for what needs attention: another shape, not only another colour."""
    bar: str
    """The edge of a compact entry."""
    critical: str
    warning: str
    info: str
    fills: str
    """Patterns that distinguish the parts of a bar without colour."""
    shade: str
    selected: str
    more: str
    less: str
    arrow: str
    dot: str
    times: str
    gauge_full: str
    gauge_empty: str
    axis: str
    corner: str
    tick: str
    capture: str
    """A capture on the time line."""
    above: str
    """Glyph between the end of an axis and a value beyond it."""
    to: str
    """Glyph between the ends of a range."""


UNICODE = Glyphs(
    ascii=False,
    levels=" ▁▂▃▄▅▆▇█",
    thin=Box("╭", "╮", "╰", "╯", "─", "│"),
    heavy=Box("┏", "┓", "┗", "┛", "━", "┃"),
    bar="│",
    critical="■",
    warning="▲",
    info="•",
    fills="█▓▒░▚▞▦▤",
    shade="░",
    selected="▸",
    more="▾",
    less="▴",
    arrow="→",
    dot="·",
    times="×",
    gauge_full="━",
    gauge_empty="─",
    axis="│",
    corner="└",
    tick="┤",
    capture="◆",
    above="↑",
    to="–",
)

ASCII = Glyphs(
    ascii=True,
    levels=" _.-=+*%#",
    thin=Box("+", "+", "+", "+", "-", "|"),
    heavy=Box("#", "#", "#", "#", "=", "#"),
    bar="|",
    critical="#",
    warning="!",
    info="i",
    fills="#=+:%o*~",
    shade=".",
    selected=">",
    more="v",
    less="^",
    arrow=">",
    dot="-",
    times="x",
    gauge_full="=",
    gauge_empty="-",
    axis="|",
    corner="+",
    tick="+",
    capture="*",
    above="^",
    to="-",
)

_PLAIN = {
    "–": "-", "—": "-", "…": "~", "µ": "u", "·": "-", "×": "x", "°": " ", "→": ">", "←": "<", "≥": ">", "≤": "<",
    "▲": "!", "■": "#", "↑": "^", "▾": "v", "▴": "^", "▸": ">", "•": "*", "′": "'", "’": "'", "“": '"', "”": '"',
    "◆": "*", "━": "=", "─": "-",
}  # fmt: skip


def to_ascii(text: str) -> str:
    """`text` in ASCII at the same width in cells; a character without a likeness becomes "?"."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() else _PLAIN.get(char, "?" * cell_len(char)) for char in text)
