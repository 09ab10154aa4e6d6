"""What each app of ours has: colours as the terminal can show them, and an end that gives the terminal back."""

from __future__ import annotations

import os
from collections.abc import Callable

from textual.notifications import SeverityLevel
from textual.theme import Theme

from llmtop.errors import UnusableInput
from llmtop.format import printable, printable_lines
from tui.core.theme_memory import ThemeMemory
from tui.paint.palette import TERMINAL_THEME, THEMES, Depth, Palette
from tui.paint.rows import CellTheme
from tui.terminal.driver import TerminalDriver, forget_unusable_sizes
from tui.terminal.textual_private import (
    HookedApp,
    close_messages,
    event_loop,
    failure_of,
    frames_queued,
    set_failure,
)

_FRAMES_QUEUED = 2
_DEPTHS: dict[str, Depth] = {"standard": "16", "256": "256"}


class TerminalApp(HookedApp[int]):
    """An app in a terminal that `tui.show` guards. Its return value is the exit code."""

    TITLE = "llmtop"
    cell_theme: CellTheme
    """Colours and characters."""

    def __init__(
        self, *, ascii: bool = False, theme: str | None = None, memory: ThemeMemory | None = None
    ) -> None:
        """Prepare.

        Args:
            ascii: draw with ASCII characters only.
            theme: a theme's name; those of llmtop also without "llmtop-".
            memory: the theme that was chosen last, which holds where no other is given; None: none is remembered.

        Raises:
            UnusableInput: there is no such theme.
        """
        if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
            os.environ.setdefault("NO_COLOR", "1")  # Textual would take it for a terminal of 16 million colours
        forget_unusable_sizes()
        super().__init__(driver_class=TerminalDriver)
        for own in THEMES:
            self.register_theme(own)
        self._ascii = ascii
        self._on_failure: Callable[[BaseException], None] = lambda _error: None
        self._memory = memory
        self.theme = self._first_theme(theme)
        self.cell_theme = self._make_cell_theme()

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Show a message literally: it may hold names from the data, so brackets are never markup.

        Args:
            message: terminal escapes in it are made visible; line breaks stay.
            title: likewise, on one line.
            severity: colour of the toast.
            timeout: seconds; None: Textual's default.
            markup: ignored.
        """
        message, title = printable_lines(message), printable(title)
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=False)

    def redraw(self) -> None:
        """Show what is known as it is now."""
        raise NotImplementedError

    def follow_theme(self) -> None:
        """Draw anew when the theme changes; to be called once mounted."""
        self.theme_changed_signal.subscribe(self, self._theme_changed)

    @property
    def depth(self) -> Depth:
        """How many colours the terminal can show."""
        if self.no_color or self.console.color_system is None:
            return "mono"
        return _DEPTHS.get(self.console.color_system, "full")

    def _first_theme(self, name: str | None) -> str:
        """The theme that is asked for, else the one chosen last, else the usual one for this terminal."""
        if name is not None:
            return self._theme_named(name)
        if self.depth not in ("full", "256"):
            return TERMINAL_THEME
        last = self._memory.read() if self._memory is not None else ""
        return last if last in self.available_themes else THEMES[0].name

    def _theme_named(self, name: str) -> str:
        for candidate in (name, f"llmtop-{name}"):
            if candidate in self.available_themes:
                return candidate
        own = ", ".join(theme.name.removeprefix("llmtop-") for theme in THEMES)
        raise UnusableInput(f'there is no theme "{name}"; llmtop has {own}, and ctrl+p lists more')

    def _make_cell_theme(self) -> CellTheme:
        return CellTheme.for_palette(Palette.build(self.current_theme, self.depth), ascii_only=self._ascii)

    def _theme_changed(self, theme: Theme) -> None:
        self.cell_theme = self._make_cell_theme()
        if self._memory is not None:
            self._memory.write(theme.name)
        self.redraw()

    def leave(self, code: int) -> None:
        """End the app with this exit code; may be called in any thread and in a signal handler."""
        loop = event_loop(self)
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.exit, code, code)

    @property
    def failure(self) -> BaseException | None:
        """The unexpected error that ended the app; None without one."""
        return failure_of(self)

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Have `callback` called at the first error that ends the app."""
        self._on_failure = callback

    def fail(self, error: BaseException) -> bool:
        """End the app for an error in another thread; False if it has ended already."""
        loop = event_loop(self)
        if loop is None or loop.is_closed():
            return False
        loop.call_soon_threadsafe(self._fail, error)
        return True

    def _fail(self, error: BaseException) -> None:
        if failure_of(self) is None and isinstance(error, Exception):
            set_failure(self, error)
        self.end_after_error()

    def end_after_error(self) -> None:
        """Exit; `tui.show` prints the reason after the terminal is restored, where Textual would draw a
        traceback."""
        error = failure_of(self)
        if error is not None:
            self._on_failure(error)
        close_messages(self)

    def terminal_is_behind(self) -> bool:
        """Whether frames queue up: writing more would block the event loop until the terminal reads again."""
        return frames_queued(self) > _FRAMES_QUEUED
