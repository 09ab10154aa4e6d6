"""Rows as the terminal gets them, in few bytes: a monitor is often watched over a slow connection."""

from __future__ import annotations

from functools import lru_cache

from rich.color import ColorSystem
from rich.console import Console
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
        """The row as text with escape sequences, in the terminal's plain state before and after."""
        cached = cached_render(self)
        if cached is None:
            system = _SYSTEMS.get(console.color_system or "", ColorSystem.TRUECOLOR)
            parts: list[str] = []
            before: Style | None = None
            for text, style, _ in segments_of(self):
                if style is not None and style is not before:
                    parts.append(_change(before, style, system))
                    before = style
                parts.append(text if text.isprintable() else harmless(text))
            parts.append("\x1b[0m")
            cached = cache_render(self, "".join(parts))
        return cached


@lru_cache(maxsize=4096)
def _change(before: Style | None, style: Style, system: ColorSystem) -> str:
    """The escape sequence that leads from one style to another."""
    if before == style:
        return ""
    if before is not None and _same_but_for_color(before, style):
        return f"\x1b[{Strip.render_ansi(Style(color=style.color), system)}m"
    codes = Strip.render_ansi(style, system)
    return f"\x1b[0;{codes}m" if codes else "\x1b[0m"


def _same_but_for_color(one: Style, other: Style) -> bool:
    return other.color is not None and one + Style(color=other.color) == other
