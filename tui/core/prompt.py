"""The line that text is typed into, above the footer: for a search, or for a filter."""

from __future__ import annotations

from collections.abc import Callable

from textual.events import Key as KeyEvent

from llmtop import format as fmt
from tui.paint.rows import CellTheme, Row

MAX_CHARACTERS = 200
_ERASING = ("backspace", "ctrl+h")


class Prompt:
    """Text under way; `changed` is called at each change, `ended` at its end."""

    def __init__(
        self, label: str, text: str, changed: Callable[[str], None], ended: Callable[[bool], None], hint: str
    ) -> None:
        """Begin.

        Args:
            label: what stands before the text.
            text: what it begins with.
            changed: takes the text.
            ended: takes whether it was kept (enter) or given up (escape).
            hint: what to type, shown while there is no text.
        """
        self.label, self.text, self.hint = label, text, hint
        self._changed, self._ended = changed, ended

    def press(self, event: KeyEvent) -> bool:
        """Take a key; returns False once the prompt has ended."""
        if event.key in ("enter", "escape"):
            self._ended(event.key == "enter")
            return False
        if event.key in _ERASING:
            self._set(self.text[:-1])
        elif event.key == "ctrl+u":
            self._set("")
        elif event.is_printable and event.character:
            self.type(event.character)
        return True

    def type(self, text: str) -> None:
        """Append typed or pasted text; of several lines, the first."""
        first = text.splitlines()[0] if text.splitlines() else ""
        self._set((self.text + fmt.printable(first))[:MAX_CHARACTERS])

    def _set(self, text: str) -> None:
        if text != self.text:
            self.text = text
            self._changed(text)

    def row(self, width: int, theme: CellTheme, result: str) -> Row:
        """Paint the line.

        Args:
            width: cells.
            theme: colours and glyphs of this terminal.
            result: what the text has found, at the right end.
        """
        palette = theme.palette
        row = Row(width).add(f" {self.label}", palette.key)
        room = max(row.free_cells - len(result) - 3, 8)
        row.add(self.text[-room:], palette.strong).add(" ", palette.cursor)
        if not self.text:
            row.add(f" {self.hint}", palette.dim)
        return row.add_right(f"{result} ", palette.dim, palette.text).end(palette.text)


class Search:
    """Search on one screen."""

    def __init__(self) -> None:
        self.text = ""
        self.origin = 0
        """The line from which the search began."""

    def matches(self, lines: list[str]) -> list[int]:
        """Return the lines with the text in them; capital letters count only where some are typed."""
        if not self.text:
            return []
        folded = self.text == self.text.lower()
        return [place for place, line in enumerate(lines) if self.text in (line.lower() if folded else line)]

    def next_match(self, lines: list[str], position: int, step: int) -> int | None:
        """Return the next matching line after a position, or before it where `step` is negative; at the end,
        from the other end. None: no line matches."""
        found = self.matches(lines)
        if not found:
            return None
        if step < 0:
            return next((place for place in reversed(found) if place < position), found[-1])
        return next((place for place in found if place > position), found[0])
