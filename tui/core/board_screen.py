"""Base of all screens of both apps: a board with a footer, a row for messages, search, keys and the mouse."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.events import Click, MouseScrollDown, MouseScrollUp, Paste
from textual.events import Key as KeyEvent
from textual.screen import Screen

from llmtop import format as fmt
from tui.core import footer as footer_row
from tui.core import keys
from tui.core.base_app import TerminalApp
from tui.core.canvas import Board, Placed
from tui.core.footer import Footer
from tui.core.keys import Key
from tui.core.layout import Rect
from tui.core.prompt import Prompt, Search
from tui.paint.rows import CellTheme, Row

MOST_REPLY_ROWS = 3
"""Rows that one message may take; what is longer is cut."""
LEAST_HEIGHT = 6
"""Rows of a screen from which on messages have rows of their own."""
WHEEL_LINES = 3
"""Lines that one notch of the wheel scrolls a page by."""
_EDGE = 1 << 30
"""More lines than any page has."""


class BoardScreen(Screen[None], inherit_bindings=False):
    """A screen that is painted on one board.

    A derived class sets `NAME` (which tui/core/keys.py uses) and overrides `parts()`. For the keys that move it
    overrides `move()`; for a search `searchable()`, `position()` and `show_line()`; for the mouse `click()` and
    `wheel()`.
    """

    NAME: ClassVar[str] = ""
    AUTO_FOCUS = ""
    PINNED: ClassVar[str] = ""
    """Label of a key that the footer shows at any width."""
    page_lines = 10
    """Lines that one page has."""

    def __init__(self) -> None:
        super().__init__()
        self._board: Board | None = None
        self.prompt: Prompt | None = None
        """Prompt that receives the typed text."""
        self.searched = Search()
        self.reply_rows = 0
        """Rows that a message or the prompt takes now; `parts()` is asked for so many fewer."""
        self.footer_now = Footer(Row(0), ())
        """The footer that was painted last."""

    @property
    def terminal_app(self) -> TerminalApp:
        """The app, by its own type."""
        assert isinstance(self.app, TerminalApp)
        return self.app

    @property
    def cell_theme(self) -> CellTheme:
        """The colours and characters that things are drawn with now."""
        return self.terminal_app.cell_theme

    # --- painting ---------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Make the one board that covers the screen."""
        self._board = Board(self.redraw)
        yield self._board

    def parts(self, width: int, height: int) -> list[Placed]:
        """Paint the screen for this size, its footer included."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Show what is known as it is now. Called for each snapshot, each change of choice, and each resize."""
        board = self._board
        size = None if board is None else board.size
        if board is not None and size:  # not yet, where the screen has only just been pushed
            board.show(self.painted(*size), self.cell_theme, size)

    def painted(self, width: int, height: int) -> list[Placed]:
        """Return all of the screen; a message or the prompt takes its rows from what is above the footer."""
        below = self._rows_above_footer(width, height)
        self.reply_rows = len(below)
        placed = self.parts(width, height - len(below))
        if not below:
            return placed
        bottom = [part for part in placed if part.rows and part.rows[0] is self.footer_now.row]
        others = [part for part in placed if part not in bottom]
        end = height - len(bottom)
        return [
            *others,
            Placed(Rect(0, end - len(below), width, len(below)), below),
            *(Placed(Rect(0, end, width, 1), part.rows) for part in bottom),
        ]

    def on_screen_resume(self) -> None:
        """Catch up with what changed while another screen was on top."""
        self.redraw()

    def _rows_above_footer(self, width: int, height: int) -> list[Row]:
        if height < LEAST_HEIGHT:
            return []
        if self.prompt is not None:
            return [self.prompt.row(width, self.cell_theme, self._search_result())]
        reply, palette = self.terminal_app.reply_for(self), self.cell_theme.palette
        if reply is None:
            return []
        lines = wrap(" ".join(reply.text.split()), max(width - 4, 20))
        if len(lines) > MOST_REPLY_ROWS:
            lines = [*lines[: MOST_REPLY_ROWS - 1], " ".join(lines[MOST_REPLY_ROWS - 1 :])]
        style = palette.warning if reply.is_warning else palette.info
        sign = self.cell_theme.glyphs.warning if reply.is_warning else self.cell_theme.glyphs.info
        rows = [Row(width).add(f" {sign if number == 0 else ' '} ", style) for number in range(len(lines))]
        return [row.add(line, style).end(palette.text) for row, line in zip(rows, lines, strict=True)]

    def paint_footer(self, width: int) -> Row:
        """Paint the line of keys that work here, and remember where each of them stands."""
        app = self.terminal_app
        here = keys.for_screen(self.NAME, replaying=app.replaying, demo=app.is_demo)
        shown = [key for key in here if key.label and self.is_key_shown(key)]
        self.footer_now = footer_row.footer(shown, width, self.cell_theme, self.labels(), self.PINNED)
        return self.footer_now.row

    def is_key_shown(self, key: Key) -> bool:
        """Return True if the footer names a key of this screen now."""
        return key.action.partition("(")[0] not in self.refused_actions()

    def refused_actions(self) -> frozenset[str]:
        """Return the actions that could only answer why not: the footer leaves out their keys."""
        return frozenset() if self.terminal_app.depth in ("full", "256") else frozenset({"next_theme"})

    def labels(self) -> Mapping[str, str]:
        """Return replacements of the footer's labels: what a key does now, and to which process."""
        return {}

    # --- keys -------------------------------------------------------------------------------------------------

    def on_key(self, event: KeyEvent) -> None:
        """Take what is typed into the prompt; all other keys go on to the app."""
        if self.prompt is None:
            self.terminal_app.clear_reply()
            return
        event.stop()
        event.prevent_default()
        prompt = self.prompt
        if not prompt.press(event) and self.prompt is prompt:
            self.prompt = None
        self.redraw()

    def on_paste(self, event: Paste) -> None:
        """Take pasted text into the prompt; elsewhere nothing of a paste acts."""
        if self.prompt is not None:
            self.prompt.type(event.text)
            self.redraw()

    def move(self, step: int) -> None:
        """Move by `step` lines; beyond the ends, to the end."""
        self.notify("This screen has no line to select and nothing to scroll.")

    def action_move(self, step: int) -> None:
        """Move to the line above or below."""
        self.move(step)
        self.redraw()

    def action_page(self, share: float) -> None:
        """Move by a share of a page."""
        step = max(round(abs(share) * self.page_lines), 1)
        self.move(step if share > 0 else -step)
        self.redraw()

    def action_edge(self, direction: int) -> None:
        """Move to the first line (-1) or to the last one (1)."""
        self.move(direction * _EDGE)
        self.redraw()

    # --- search -----------------------------------------------------------------------------------------------

    def searchable(self) -> list[str]:
        """Return the text of each line that can be searched."""
        return []

    def position(self) -> int:
        """Return the line that the screen is at now."""
        return 0

    def show_line(self, place: int) -> None:
        """Move to a line that was found."""

    def action_search(self) -> None:
        """Open the search; while the user types, the first match from here on is shown."""
        self.searched.origin = self.position()
        self.searched.text = ""
        self.prompt = Prompt(
            "/",
            "",
            self._search_changed,
            self._search_ended,
            "type letters to find on this screen, then enter",
        )
        self.redraw()

    def _search_changed(self, text: str) -> None:
        self.searched.text = text
        found = self.searched.next_match(self.searchable(), self.searched.origin - 1, 1)
        self.show_line(self.searched.origin if found is None else found)

    def _search_ended(self, kept: bool) -> None:
        self.prompt = None
        if not kept or not self.searched.text:
            self.searched.text = ""
            self.show_line(self.searched.origin)
        else:
            self._tell_match()

    def action_match(self, step: int) -> None:
        """Move to the next match of the search (1), or to the previous one (-1)."""
        if not self.searched.text:
            self.notify("No search yet. Press / to search.")
            return
        found = self.searched.next_match(self.searchable(), self.position(), step)
        if found is not None:
            self.show_line(found)
        self._tell_match()
        self.redraw()

    def _search_result(self) -> str:
        if not self.searched.text:
            return ""
        return fmt.counted(len(self.searched.matches(self.searchable())), "line") + " found"

    def _tell_match(self) -> None:
        found = self.searched.matches(self.searchable())
        at = self.position()
        number = found.index(at) + 1 if at in found else 0
        where = f"{number} of {len(found)}" if number else f"{len(found)} lines"
        said = f'"{self.searched.text}": match {where}; n: next, N: previous' if found else ""
        self.notify(said or f'"{self.searched.text}" is not on this screen.')

    # --- mouse ------------------------------------------------------------------------------------------------

    def on_click(self, event: Click) -> None:
        """Press the key of the footer under the pointer; else let the screen act on the place."""
        x, y = int(event.screen_x), int(event.screen_y)
        if y == self.size.height - 1 and self.size.height >= LEAST_HEIGHT:
            name = self.footer_now.key_at(x)
            if name:
                self.terminal_app.call_next(self.terminal_app.action_press, name)
            return
        if self.prompt is None:
            self.click(x, y)

    def click(self, x: int, y: int) -> None:
        """Act on a click beside the footer."""

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Scroll up."""
        self.wheel(-1, int(event.screen_y))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Scroll down."""
        self.wheel(1, int(event.screen_y))

    def wheel(self, direction: int, y: int) -> None:
        """Act on one notch of the wheel: 1 down, -1 up; `y` is the row of the pointer."""
        self.move(direction * WHEEL_LINES)
        self.redraw()

    def press_again(self, name: str) -> None:
        """Act as if a key of the table were pressed: a second click on a line opens it."""
        self.terminal_app.call_next(self.terminal_app.action_press, name)

    def picture(self) -> str:
        """Return the drawn screen as lines of text."""
        boards = self.query(Board)
        return "".join(
            f"{board.render_line(y).text.rstrip()}\n" for board in boards for y in range(board.size.height)
        )
