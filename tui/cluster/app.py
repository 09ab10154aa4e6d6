"""The app of `llmtop cluster`: a source that asks, and what keys do."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from msgspec.structs import replace
from textual.message import Message
from textual.screen import Screen

from collectors.prometheus.cluster_view import ClusterView, NodeCharts
from collectors.prometheus.source import OnView, ViewRequest
from llmtop import format as fmt
from llmtop.errors import EXIT_DONE
from tui.cluster import capture_line
from tui.cluster.screen import ClusterHelp, ClusterScreen
from tui.cluster.state import ClusterState
from tui.core.base_app import TerminalApp
from tui.core.board_screen import BoardScreen
from tui.paint.palette import THEMES
from tui.terminal.session import has_shell

TICK_SECONDS = 1.0
"""Interval at which the age of the shown data is checked."""


_ASKS = "    press c again to run this command here"
"""Text after the command of a capture that `c` shows first."""


class ClusterFeed(Protocol):
    """Interface that the app needs of `collectors.prometheus.source.ClusterSource`."""

    def start(self, on_view: OnView) -> None:
        """Begin."""

    def request(self, wanted: ViewRequest) -> None:
        """Open another view."""

    def close(self) -> None:
        """Stop."""


class ViewReceived(Message):
    """An answer has come."""

    def __init__(self, view: ClusterView, charts: NodeCharts | None) -> None:
        super().__init__()
        self.view, self.charts = view, charts


class CaptureProgress(Message):
    """A capture is a stage further."""

    def __init__(self, words: str, *, goes_on: bool) -> None:
        super().__init__()
        self.words, self.goes_on = words, goes_on


class ClusterApp(TerminalApp):
    """All nodes at one glance; one node's charts with enter."""

    CSS = "Screen { overflow: hidden; layout: vertical; } Board { width: 100%; height: 100%; }"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, source: ClusterFeed, *, ascii: bool = False, theme: str | None = None) -> None:
        """Prepare; `run()` starts the source.

        Args:
            source: asks in a thread of its own; the app starts and closes it.
            ascii: draw with ASCII characters only.
            theme: a theme's name.

        Raises:
            UnusableInput: there is no such theme.
        """
        self.state = ClusterState()
        self._source = source
        self._call: capture_line.Call | None = None
        self._asked = self.state.view_request()
        super().__init__(ascii=ascii, theme=theme)

    def get_default_screen(self) -> Screen[Any]:
        """Return the nodes, the lowest of the stack."""
        return ClusterScreen(self.state)

    def on_mount(self) -> None:
        """Begin to ask once the first frame is drawn."""
        self.follow_theme()
        self.set_interval(TICK_SECONDS, self.redraw)
        self.call_after_refresh(self._source.start, self._receive)

    def on_unmount(self) -> None:
        """Stop asking; a capture that was begun here is given up."""
        self._source.close()
        if self._call is not None:
            self._call.cancel()

    def _receive(self, view: ClusterView, charts: NodeCharts | None) -> None:
        """Called in the source's thread."""
        self.post_message(ViewReceived(view, charts))

    def on_view_received(self, message: ViewReceived) -> None:
        """Show it, unless another instant is asked for by now; what was known stays where nothing was answered."""
        view, known = message.view, self.state.view
        if view.pinned != (self.state.at is not None):
            return
        nothing = bool(view.problems) and view.nodes_up is None and not view.runs
        self.state.failed = nothing
        if nothing and known is not None and known.pinned == view.pinned:
            # Its age is shown, and errors as sentences.
            self.state.view = replace(known, problems=view.problems, every_seconds=view.every_seconds)
        else:
            self.state.receive(view)
        if message.charts is not None:
            self.state.charts = message.charts
        self.redraw()

    def redraw(self) -> None:
        """Paint everything as it is now, and ask for what has come into sight."""
        screen = self.screen_stack[-1] if self.screen_stack else None
        if self.terminal_is_behind():
            return
        self.state.now = time.time()
        if isinstance(screen, BoardScreen):
            screen.redraw()
        self._ask()

    def _ask(self) -> None:
        wanted = self.state.view_request()
        if wanted != self._asked:
            self._asked = wanted
            self._source.request(wanted)

    def on_capture_progress(self, message: CaptureProgress) -> None:
        """Show how far a capture is."""
        self.state.capture = message.words
        self.state.capturing = message.goes_on
        self.redraw()

    def _capture(self, words: list[str], asked: bool) -> None:
        """Find out in a thread if it can run here, and run it if it was requested again."""
        if hint := capture_line.refusal():
            self.post_message(CaptureProgress(f"{capture_line.line(words)}    {hint}", goes_on=False))
        elif not asked:
            self.post_message(CaptureProgress(capture_line.line(words) + _ASKS, goes_on=False))
        else:
            self.post_message(CaptureProgress(f"{capture_line.line(words)}    under way …", goes_on=True))
            self._call = capture_line.Call(words)
            self.post_message(CaptureProgress(self._call.result(), goes_on=False))

    # --- keys -------------------------------------------------------------------------------------------------

    async def action_quit(self) -> None:
        """End the app with exit code 0."""
        self.exit(EXIT_DONE)

    async def action_leave(self) -> None:
        """Quit; with charts open, go back."""
        if self.state.opened is not None:
            await self.action_back()
        else:
            self.exit(EXIT_DONE)

    async def action_back(self) -> None:
        """Go back to all nodes."""
        if self.state.opened is None:
            self.notify("All nodes are shown. Press q to quit.")
        self.state.opened = self.state.charts = None
        self.redraw()

    def action_go(self) -> None:
        """Show the chosen node's charts."""
        if self.state.opened is not None:
            self.notify(f"The charts of {self.state.opened} are shown; q goes back.")
        elif not self.state.nodes:
            self.notify("There is no node whose charts could be shown.")
        else:
            self.state.opened = self.state.nodes[self.state.place].name
            self.redraw()

    def action_acknowledge(self, every: bool) -> None:
        """Leave out the chosen node, or all nodes, that do not answer, until they answer again."""
        count = self.state.acknowledge(every=every)
        if count:
            self.notify(f"{fmt.counted(count, 'node')} hidden until they reply again; the header counts them.")
        elif every:
            self.notify("All nodes reply: there is no node to hide.")
        else:
            self.notify("The chosen node is not down, so it cannot be hidden.")
        self.redraw()

    def action_span(self, by: int) -> None:
        """Draw charts over a shorter or a longer time."""
        before = self.state.span
        self.state.change_span(by)
        if self.state.opened is None or self.state.span == before:
            no_further = "" if self.state.span != before else ": this is the limit"
            self.notify(f"Charts of a node cover {fmt.duration(self.state.span)}{no_further}.")
        self.redraw()

    def action_instant(self, by: int) -> None:
        """Show an earlier or a later instant."""
        if by < 0 and self.state.at is None:
            self.notify("The screen already shows the latest sample.")
        self.state.shift_instant(by)
        self.redraw()

    def action_last(self) -> None:
        """Return to the present."""
        if self.state.at is None:
            self.notify("The screen already shows the latest values.")
        self.state.at = None
        self.redraw()

    def action_suspend_process(self) -> None:
        """Stop, if there is a shell that can continue us."""
        if has_shell():
            super().action_suspend_process()
        else:
            self.notify(
                "llmtop was not started from a shell, so it cannot be suspended; use q to quit.",
                severity="warning",
            )

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(ClusterHelp(of_charts=self.state.opened is not None))

    def action_capture(self) -> None:
        """Show the command that captures the accused ranks; pressed again, run it where that is possible."""
        view = self.state.view
        if view is None or self.state.capturing:
            self.notify(
                "A capture is already running: wait until it ends."
                if view is not None
                else "Prometheus has not replied yet: wait for its first reply."
            )
            return
        words = capture_line.command(view)
        again = self.state.capture == capture_line.line(words) + _ASKS
        self.state.capture, self.state.capturing = capture_line.line(words), True
        threading.Thread(target=self._capture, args=(words, again), name="llmtop-capture", daemon=True).start()
        self.redraw()

    def action_next_theme(self) -> None:
        """Take the next of llmtop's own themes."""
        if self.depth not in ("full", "256"):
            self.notify(
                "This terminal has no 256 colors, which themes need; llmtop uses the colors of the terminal."
            )
            return
        names = [theme.name for theme in THEMES]
        self.theme = names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]
