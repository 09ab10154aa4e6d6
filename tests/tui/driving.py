"""The app without a terminal, on a feed that the test holds in its hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot

from llmtop.model.snapshot import Snapshot
from tui.app import LlmtopApp
from tui.core.canvas import Board

PATIENCE_SECONDS = 120.0
"""Limit of a wait, against hanging alone."""


class Held:
    """A feed that says what it is told to say."""

    def __init__(self, *first: Snapshot) -> None:
        self._first = first
        self._tell: Callable[[Snapshot], None] = lambda _snapshot: None
        self.interval = 1.0
        self.closed = False
        self.has_first = bool(first)

    def start(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Begin with the first ones."""
        self._tell = on_snapshot
        for snapshot in self._first:
            on_snapshot(snapshot)

    def say(self, snapshot: Snapshot) -> None:
        """One more."""
        self._tell(snapshot)

    def set_interval(self, seconds: float) -> None:
        """Change the rate."""
        self.interval = seconds

    def close(self) -> None:
        """Stop."""
        self.closed = True


@asynccontextmanager
async def running(
    feed: Any, size: tuple[int, int] = (120, 30), **options: Any
) -> AsyncIterator[tuple[LlmtopApp, Pilot[int]]]:
    """The app on this feed, settled."""
    app = LlmtopApp(feed, **options)
    async with app.run_test(size=size) as pilot:
        for _ in range(500 if getattr(feed, "has_first", False) else 1):
            await pilot.pause()
            if app.view.snapshot is not None:
                break
            await asyncio.sleep(0.01)
        yield app, pilot


async def until(pilot: Pilot[int], holds: Callable[[], bool]) -> None:
    """Wait for what a thread brings."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not come"
        await asyncio.sleep(0.05)
        await pilot.pause()


def reply(app: LlmtopApp) -> str:
    """The message above the footer; "" without one."""
    shown = app.reply_for(app.screen)
    return "" if shown is None else shown.text


def text(app: LlmtopApp) -> str:
    """What the screen on top shows, line by line."""
    board = app.screen.query_one(Board)
    return "\n".join(board.render_line(y).text for y in range(board.size.height))
