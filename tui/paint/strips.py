"""Rows as the terminal gets them, in few bytes: a monitor is often watched over a slow connection."""

from __future__ import annotations

from collections.abc import Iterable

from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from tui.paint.terminal_text import harmless
from tui.terminal.textual_private import cache_render, cached_render, segments_of

_SYSTEMS = {"truecolor": ColorSystem.TRUECOLOR, "256": ColorSystem.EIGHT_BIT, "standard": ColorSystem.STANDARD}


class CompactStrip(Strip):
    """A strip that writes only style changes between segments.

    Textual writes foreground, background and a reset for each segment; with a hundred short histories that is most
    of what a frame sends.
    """

    __slots__ = ()

    def render(self, console: Console) -> str:
        """Return the row as text with escape sequences, in the terminal's plain state before and after."""
        cached = cached_render(self)
        return cache_render(self, rendered(segments_of(self), console)) if cached is None else cached


_changes: dict[tuple[int, int, int], tuple[Style | None, Style, str]] = {}
"""Results of `_change` by the styles' ids: a style's own hash is a call of Python. It keeps the styles too, so
that no other style gets the same id."""
_MOST_CHANGES = 4096


def rendered(segments: Iterable[Segment], console: Console) -> str:
    """Return a row as text with escape sequences, in the terminal's plain state before and after."""
    system = _SYSTEMS.get(console.color_system or "", ColorSystem.TRUECOLOR)
    parts: list[str] = []
    before: Style | None = None
    for text, style, _ in segments:
        if style is not None and style is not before:
            key = id(before), id(style), system
            known = _changes.get(key)
            if known is None:
                if len(_changes) >= _MOST_CHANGES:
                    _changes.clear()
                known = _changes[key] = before, style, _change(before, style, system)
            parts.append(known[2])
            before = style
        parts.append(text if text.isprintable() else harmless(text))
    parts.append("\x1b[0m")
    return "".join(parts)


def _change(before: Style | None, style: Style, system: ColorSystem) -> str:
    """Return the escape sequence that leads from one style to another."""
    if before == style:
        return ""
    if before is not None and _same_but_for_color(before, style):
        return f"\x1b[{Strip.render_ansi(Style(color=style.color), system)}m"
    codes = Strip.render_ansi(style, system)
    return f"\x1b[0;{codes}m" if codes else "\x1b[0m"


def _same_but_for_color(one: Style, other: Style) -> bool:
    return other.color is not None and one + Style(color=other.color) == other
