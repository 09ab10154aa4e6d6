"""The last place that text passes on its way to the terminal, whichever widget draws it.

Textual turns every line of every widget into bytes by `Strip.render`, and writes control characters of a text as
they are. Importing this module replaces that method, so a text of a recording, a training or a file cannot contain
an escape sequence by the time the driver gets it. Painters replace such characters before they measure
(`tui.paint.rows`); here only what got past them changes, at the same width.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.segment import Segment
from textual.strip import Strip

from llmtop.format import is_obeyed
from tui.paint.text_width import cell_len
from tui.terminal.textual_private import cache_render, cached_render, segments_of

_AS_DRAWN = Strip.render


def harmless(text: str) -> str:
    """Return `text` without control characters, as wide as Textual measured it."""
    if text.isprintable():
        return text
    return "".join("·" * cell_len(char) if is_obeyed(char) else char for char in text)


def _is_harmless(segments: Iterable[Segment]) -> bool:
    return all(text.isprintable() and (style is None or not style.link) for text, style, _ in segments)


def _render(self: Strip, console: Console) -> str:
    """`Strip.render` for text without control characters; a link would add an address in an OSC 8 sequence."""
    if cached_render(self) is None and not _is_harmless(segments_of(self)):
        segments = [
            Segment(harmless(text), None if style is None else style.update_link(None))
            for text, style, _ in segments_of(self)
        ]
        cache_render(self, _AS_DRAWN(Strip(segments), console))
    return _AS_DRAWN(self, console)


Strip.render = _render  # type: ignore[method-assign]
