"""Private names of Textual that the screen needs.

No other file under tui/ uses one (`tests/tui/terminal/test_textual_private.py`).
Textual may rename them in any release. All are in 8.2.5, the oldest version that pyproject.toml allows, and in
8.2.8, with which the tests run. Each has a test that fails when Textual drops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from rich.segment import Segment
from textual._compositor import CompositorUpdate
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from tui.terminal.guardian import GuardedOutput

__all__ = ["CompositorUpdate", "XTermParser"]
"""`CompositorUpdate` is the base of what `App._display` accepts: the canvas sends lines of its own. `XTermParser`
makes messages of bytes; its public user, the driver, ends at bytes that it cannot parse. Both hold since 8.2.5."""

_Result = TypeVar("_Result")


# --- the app ----------------------------------------------------------------------------------------------------


class HookedApp(App[_Result]):
    """An app that decides how it ends after an error; `App._fatal_error` draws a traceback. Holds since 8.2.5."""

    def end_after_error(self) -> None:
        """End the app after an unhandled error."""
        raise NotImplementedError

    def _fatal_error(self) -> None:
        self.end_after_error()


def event_loop(app: App[Any]) -> asyncio.AbstractEventLoop | None:
    """Return the loop that the app runs in, None before: other threads and signal handlers end the app through it.

    `App.call_from_thread` waits for its answer, which a signal handler cannot. `App._loop` holds since 8.2.5.
    """
    return app._loop


def driver_of(app: App[Any]) -> Driver | None:
    """Return the app's driver, None before it runs: the title of the terminal is written to it.

    No public method writes a sequence of one's own. `App._driver` holds since 8.2.5.
    """
    return app._driver


def failure_of(app: App[Any]) -> Exception | None:
    """Return the error that ended the app, None without one: `tui.show` reports it at the end.

    Publicly there is only its traceback, on the terminal. `App._exception` holds since 8.2.5.
    """
    return app._exception


def set_failure(app: App[Any], error: Exception) -> None:
    """Set the error that ended the app, where it comes from another thread. `App._exception` holds since 8.2.5."""
    app._exception = error


def close_messages(app: App[Any]) -> None:
    """End the app's loop of messages without waiting for it, as Textual does after an error.

    `App.exit` would unmount screens that may be broken. `App._close_messages_no_wait` holds since 8.2.5.
    """
    app._close_messages_no_wait()


def frames_queued(app: App[Any]) -> int:
    """Return how many writes wait for the terminal, 0 without a terminal.

    A full queue blocks the event loop. `LinuxDriver._writer_thread` and its `_queue` hold since 8.2.5.
    """
    writer = getattr(app._driver, "_writer_thread", None)
    return 0 if writer is None else writer._queue.qsize()


# --- screens ----------------------------------------------------------------------------------------------------


def display(app: App[Any], screen: Screen[Any], update: CompositorUpdate) -> None:
    """Write lines to the terminal at once; Textual's own refresh waits for up to 16 ms.

    `App._display` holds since 8.2.5.
    """
    app._display(screen, update)  # type: ignore[arg-type]  # as Textual's own updates


def has_background_screens(app: App[Any]) -> bool:
    """Return True if screens shine through the one on top, so that its lines cannot be written alone.

    `App._background_screens` holds since 8.2.5.
    """
    return bool(app._background_screens)


def is_update_pending(screen: Screen[Any]) -> bool:
    """Return True if Textual is about to paint by itself: lines that are written now would be painted over.

    `App._batch_count`, `Screen._layout_required` and `Screen._dirty_widgets` hold since 8.2.5.
    """
    return bool(screen.app._batch_count or screen._layout_required or screen._dirty_widgets)


def visible_widgets(screen: Screen[Any]) -> Mapping[Widget, tuple[Region, Region]]:
    """Return what is on the screen, with the region and the clip of each: a toast may lie over the canvas.

    `Screen._compositor` holds since 8.2.5.
    """
    return screen._compositor.visible_widgets


# --- lines ------------------------------------------------------------------------------------------------------


def segments_of(strip: Strip) -> list[Segment]:
    """Return the segments of a line, not copied: each line of each frame passes here.

    `Strip._segments` holds since 8.2.5.
    """
    return strip._segments


def cached_render(strip: Strip) -> str | None:
    """Return what `Strip.render` returned for this line before, None without.

    `Strip._render_cache` holds since 8.2.5.
    """
    return strip._render_cache


def cache_render(strip: Strip, text: str) -> str:
    """Keep what a line is rendered to, and return it; `Strip.render` takes it from there.

    `Strip._render_cache` holds since 8.2.5.
    """
    strip._render_cache = text
    return text


# --- the terminal -----------------------------------------------------------------------------------------------


class HookedDriver(LinuxDriver):
    """Textual's driver with its private steps under public names, to override. Each of them holds since 8.2.5."""

    def answer_sigtstp(self) -> None:
        """Answer SIGTSTP; Textual stops in the middle of what the loop does (`_sigtstp_application`)."""
        raise NotImplementedError

    def answer_sigcont(self) -> None:
        """Answer SIGCONT; Textual only after a SIGTSTP (`_sigcont_application`)."""
        raise NotImplementedError

    def read_keys(self) -> None:
        """Read in a thread of its own; Textual draws an error there as a traceback (`_run_input_thread`)."""
        raise NotImplementedError

    def terminal_size(self) -> tuple[int, int]:
        """Return columns and lines; Textual believes the environment first (`_get_terminal_size`)."""
        raise NotImplementedError

    def _sigtstp_application(self, *_: object) -> None:
        self.answer_sigtstp()

    def _sigcont_application(self, *_: object) -> None:
        self.answer_sigcont()

    def _run_input_thread(self) -> None:
        self.read_keys()

    def _get_terminal_size(self) -> tuple[int, int]:
        return self.terminal_size()

    def _query_in_band_window_resize(self) -> None:
        """Do not ask for sizes in the input: the kernel knows them."""


def set_initial_size(driver: HookedDriver) -> None:
    """Make the first frame use the terminal's size; Textual uses the environment until the first resize.

    `Driver._size` holds since 8.2.5.
    """
    driver._size = driver._size or driver.terminal_size()


def app_of(driver: Driver) -> App[Any]:
    """Return the app of a driver, to draw all of it anew after SIGCONT. `Driver._app` holds since 8.2.5."""
    return driver._app


def driver_loop(driver: Driver) -> asyncio.AbstractEventLoop:
    """Return the loop that a driver was made in: signals are answered there. `Driver._loop` holds since 8.2.5."""
    return driver._loop


def is_writing(driver: LinuxDriver) -> bool:
    """Return True while the driver has the terminal. `LinuxDriver._writer_thread` holds since 8.2.5."""
    return driver._writer_thread is not None


def guard_output(driver: LinuxDriver) -> None:
    """Stop the thread that writes at a fault of another thread. `LinuxDriver._file` holds since 8.2.5."""
    if driver._file is not None:  # else there is no terminal
        driver._file = GuardedOutput(driver._file)  # type: ignore[assignment]  # all that is called of it


def stop_writing(driver: LinuxDriver) -> None:
    """Drop the thread that writes, once it has ended: `LinuxDriver.write` would queue for it forever.

    `LinuxDriver._writer_thread` holds since 8.2.5.
    """
    driver._writer_thread = None


def disable_mouse(driver: LinuxDriver) -> None:
    """Turn off the mouse reports of the terminal; `disable_input` does it too, but drops keys that are not read
    yet.

    `LinuxDriver._disable_mouse_support` holds since 8.2.5.
    """
    driver._disable_mouse_support()


def join_key_thread(driver: LinuxDriver, seconds: float) -> None:
    """Wait for the thread that reads keys to end.

    Args:
        driver: its private `_key_thread` exists since Textual 8.2.5.
        seconds: the longest wait; nothing is raised when the thread is still alive.
    """
    if driver._key_thread is not None:
        driver._key_thread.join(seconds)


def input_flags(flags: int) -> int:
    """Return a terminal's input flags as the driver sets them: who finds others knows that it was not given back.

    `LinuxDriver._patch_iflag` holds since 8.2.5.
    """
    return LinuxDriver._patch_iflag(flags)


def local_flags(flags: int) -> int:
    """Return a terminal's local flags as the driver sets them. `LinuxDriver._patch_lflag` holds since 8.2.5."""
    return LinuxDriver._patch_lflag(flags)
