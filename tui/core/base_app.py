"""Base of each app: colors that the terminal supports, and an end that restores the terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from msgspec import Struct
from textual.events import Key as KeyEvent
from textual.notifications import SeverityLevel
from textual.theme import BUILTIN_THEMES, Theme

from llmtop.errors import UnusableInput
from llmtop.format import printable_lines
from tui.core import keys
from tui.core.key_lookup import answer
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


REPLY_SECONDS = 6.0
"""How long a message stands if no key is pressed."""


class Reply(Struct):
    """One message in answer to a key, on the row above the footer."""

    text: str
    is_warning: bool
    screen: object
    """The screen that it was given on; it goes with it."""
    until: float
    """End on the monotonic clock."""


@runtime_checkable
class KeyedScreen(Protocol):
    """A screen of the table of keys."""

    NAME: str

    def redraw(self) -> None:
        """Show what is known as it is now."""


def theme_named(name: str) -> str:
    """Return the full name of a theme; those of llmtop are also known without "llmtop-".

    Raises:
        UnusableInput: there is no such theme.
    """
    known = {*(theme.name for theme in THEMES), *BUILTIN_THEMES}
    for candidate in (name, f"llmtop-{name}"):
        if candidate in known:
            return candidate
    own = ", ".join(theme.name.removeprefix("llmtop-") for theme in THEMES)
    raise UnusableInput(f'there is no theme "{name}"; llmtop has {own}, and ctrl+p lists more')


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
        self.reply: Reply | None = None
        """The last message; shown while `reply_for` returns it."""
        self.theme = self._first_theme(theme)
        self._first_variables: dict[str, str] | None = self.get_css_variables()
        """Variables for the style sheets, until the theme has been applied once."""
        self.stylesheet.set_variables(self._first_variables)
        self.cell_theme = self._make_cell_theme()

    # --- messages ---------------------------------------------------------------------------------------------

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Show one message on the row above the footer, in place of the one before.

        It is shown literally: it may hold names from the data, so brackets are never markup.

        Args:
            message: terminal escapes in it are made visible.
            title: ignored.
            severity: its colour and sign.
            timeout: seconds; None: `REPLY_SECONDS`.
            markup: ignored.
        """
        seconds = REPLY_SECONDS if timeout is None else timeout
        shown = next((one for one in reversed(self.screen_stack) if isinstance(one, KeyedScreen)), None)
        if shown is None:
            return
        until = time.monotonic() + seconds
        self.reply = Reply(printable_lines(message), severity != "information", shown, until)
        self.set_timer(seconds + 0.02, self.redraw)
        self.call_later(self.redraw)

    def reply_for(self, screen: object) -> Reply | None:
        """Return the message to show on a screen; None where there is none, it is over, or it was of another
        screen."""
        if self.reply is not None and (self.reply.screen is not screen or time.monotonic() >= self.reply.until):
            self.reply = None
        return self.reply

    def clear_reply(self) -> None:
        """Remove the message; the next redraw closes its row."""
        if self.reply is not None:
            self.reply = None
            self.call_later(self.redraw)

    # --- keys -------------------------------------------------------------------------------------------------

    @property
    def replaying(self) -> bool:
        """Return True if a recording is shown."""
        return False

    @property
    def is_demo(self) -> bool:
        """Return True if the recording is the demo's, which has prepared captures."""
        return False

    async def on_key(self, event: KeyEvent) -> None:
        """Act on a key of a screen of ours; other screens have bindings of their own."""
        if isinstance(self.screen, KeyedScreen):
            event.prevent_default()
            await self.press(event.key, event.character)

    async def action_press(self, name: str) -> None:
        """Act as if this key were pressed."""
        await self.press(name, None)

    async def press(self, name: str, character: str | None) -> None:
        """Run the action of tui/core/keys.py for this key on the top screen; a key without one is answered.

        Args:
            name: the key, as Textual calls it.
            character: what it types; None for keys that type nothing.
        """
        screen = self.screen
        here = screen.NAME if isinstance(screen, KeyedScreen) else ""
        for key in keys.for_screen(here, replaying=self.replaying, demo=self.is_demo):
            if name in key.names:
                action = key.action.replace("%", name)
                method = f"action_{action.partition('(')[0]}"
                await self.run_action(action, default_namespace=screen if hasattr(screen, method) else self)
                return
        if here:
            self.notify(answer(name, character, here, replaying=self.replaying, demo=self.is_demo))

    def redraw(self) -> None:
        """Show what is known as it is now."""
        raise NotImplementedError

    def refresh_css(self, animate: bool = True) -> None:
        """Read the style sheets anew, but for the theme that they are read with at the start anyway.

        Textual does so for each theme that is set, also before the first frame: 10 ms of it.
        """
        first, self._first_variables = self._first_variables, None
        if first is None or first != self.get_css_variables():
            super().refresh_css(animate)

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
        """Return the theme that is asked for, else the one chosen last, else the usual one for this terminal."""
        if name is not None:
            return theme_named(name)
        if self.depth not in ("full", "256"):
            return TERMINAL_THEME
        last = self._memory.read() if self._memory is not None else ""
        return last if last in self.available_themes else THEMES[0].name

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
        """Register `callback` for the first error that ends the app."""
        self._on_failure = callback

    def fail(self, error: BaseException) -> bool:
        """End the app for an error in another thread; False if it has ended already."""
        loop = event_loop(self)
        if loop is None or loop.is_closed():
            return False
        loop.call_soon_threadsafe(self.end_for, error)
        return True

    def end_for(self, error: BaseException) -> None:
        """End the app for an error; called in its loop."""
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
        """Return True if frames queue up: writing more would block the event loop until the terminal reads
        again."""
        return frames_queued(self) > _FRAMES_QUEUED
