"""Every screen in turn on hostile data, in the terminal that it is started in:

python -m tests.support.hostile_screens RECORDING FOLDER [--ascii] [--themes NAME,NAME] [--spread] [--cluster]

Before each screen the marker `BEGIN NAME` goes to the terminal, so that the bytes tell which screen wrote what.
Screens, what they are made with, and what their threads hand them are found by reflection.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import os
import pkgutil
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from textual.message import Message
from textual.screen import Screen

import tui.screens
from collectors.prometheus.cluster_view import ClusterView, NodeCharts
from llmtop.errors import LlmtopError
from llmtop.recording.reader_writer import Reader
from tests.support import hostile
from tui.app import LlmtopApp
from tui.cluster.app import CaptureProgress, ClusterApp, ViewReceived
from tui.core.base_app import TerminalApp
from tui.screens.main import MainScreen
from tui.screens.scrolling import ScrollingScreen
from tui.show import run
from tui.terminal.textual_private import driver_of

BEGIN, END = "\x1b_", "\x1b\\"
_PAGES = 6
_NOTICE_SECONDS = 3600.0
"""Long, or on a busy machine a notice is over before it is drawn, and is waited for without end."""


class Held:
    """A feed that hands over what it is given; that of the cluster's pane, too."""

    interval = 1.0

    def __init__(self) -> None:
        self.hand_over: Callable[..., None] = lambda *_: None
        self.started = False

    def start(self, on_snapshot: Callable[..., None]) -> None:
        """Begin."""
        self.hand_over, self.started = on_snapshot, True

    def set_interval(self, _seconds: float) -> None:
        """Nothing to change."""

    def request(self, _wanted: object) -> None:
        """Nothing else is there."""

    def close(self) -> None:
        """Nothing to stop."""


def screens() -> list[type[Screen[Any]]]:
    """All classes of screens that can be opened."""
    modules = [
        importlib.import_module(f"tui.screens.{one.name}") for one in pkgutil.iter_modules(tui.screens.__path__)
    ]
    found = {
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Screen) and one.__module__ == module.__name__
    }
    return sorted((one for one in found if not one.__subclasses__() or _draws(one)), key=lambda one: one.__name__)


def _draws(screen: type[Screen[Any]]) -> bool:
    """Whether it is a screen of its own, and not what others are derived from."""
    return screen.__module__.rpartition(".")[2] not in ("base", "scrolling")


def made(screen: type[Screen[Any]], folder: Path, first: int) -> Screen[Any]:
    """A screen, with hostile values for all that it is made with; a path is that of a hostile capture."""
    wanted = {name: kind for name, kind in hostile.hints(screen.__init__).items() if name != "return"}
    capture = next(iter(sorted(folder.iterdir())))
    paths = {"parent": folder}
    values: dict[str, Any] = {
        name: paths.get(name, capture) if _is_path(kind) else hostile.value(kind, first)
        for name, kind in wanted.items()
    }
    return screen(**values)


def _is_path(kind: Any) -> bool:
    return kind is Path or Path in typing.get_args(kind)


def prepare(screen: Screen[Any], first: int) -> None:
    """Have the screen get hostile values from its threads, in place of what is on this machine."""

    def in_background(_work: Callable[[], Any], done: Callable[[Any], None], _name: str) -> None:
        (wanted,) = (kind for name, kind in hostile.hints(inspect.unwrap(done)).items() if name != "return")
        screen.app.call_later(done, hostile.value(wanted, first))

    screen.in_background = in_background  # type: ignore[attr-defined]


def messages(screen: Screen[Any], first: int) -> Iterator[Message]:
    """What the screen's threads post to it, hostile."""
    for name, member in inspect.getmembers(type(screen), inspect.isfunction):
        wanted = hostile.hints(member).get("message") if name.startswith("on_") else None
        if wanted is not None and member.__module__.startswith("tui."):
            yield message(wanted, first)


def message(kind: type[Message], first: int) -> Message:
    """One of this kind, with hostile values."""
    wanted = {name: one for name, one in hostile.hints(kind.__init__).items() if name != "return"}
    return kind(**{name: hostile.value(one, first) for name, one in wanted.items()})


class Toured(LlmtopApp):
    """The app of one machine, with a tour through it."""

    tour: Tour

    def on_ready(self) -> None:
        """Begin the tour."""
        self.run_worker(self.tour.run())


class TouredCluster(ClusterApp):
    """The cluster's pane, with a tour through it."""

    tour: Tour

    def on_ready(self) -> None:
        """Begin the tour."""
        self.run_worker(self.tour.run())


class Tour:
    """Goes through all screens of an app in all its themes, and leaves."""

    def __init__(self, app: TerminalApp, feed: Held, themes: list[str], go: Callable[[Tour], Any]) -> None:
        self.app, self._feed, self._themes, self._go = app, feed, themes, go
        self.spread = False
        """Whether the tour is made once, and each value of each screen is drawn in the next theme."""
        self._next_theme = 0

    async def run(self) -> None:
        """Go."""
        try:
            while not self._feed.started:
                await self.drawn()
            self._themes = self._themes or sorted(self.app.available_themes)
            if self.spread:
                await self._go(self)
            for theme in () if self.spread else self._themes:
                self.app.theme = theme
                await self._go(self)
            await self.begin("END")
            self.app.exit(0)
        except Exception as error:  # noqa: BLE001  the app ends with it, and says so
            self.app.fail(error)

    def change_theme(self) -> None:
        """Take the next theme, where they are spread over what is drawn."""
        if self.spread:
            self.app.theme = self._themes[self._next_theme % len(self._themes)]
            self._next_theme += 1

    async def begin(self, name: str) -> None:
        """Say which screen's bytes follow."""
        await self.drawn()
        driver = driver_of(self.app)
        assert driver is not None
        driver.write(f"{BEGIN}{name}{END}")

    async def drawn(self) -> None:
        """Wait until the app has done what it was sent, and its screen is drawn."""
        done = asyncio.Event()
        self.app.call_later(done.set)
        await done.wait()
        done.clear()
        self.app.screen.call_after_refresh(done.set)
        await done.wait()


def of_machine(recording: Path, folder: Path, firsts: range, *, ascii: bool, themes: list[str]) -> TerminalApp:
    """The app of one machine, which goes through its screens by itself."""
    reader = Reader(recording)
    moments = [snapshot for _, snapshot in reader.snapshots()]
    feed = Held()
    app = Toured(feed, ascii=ascii)

    async def through(tour: Tour) -> None:
        for kind in screens():
            await tour.begin(kind.__name__)
            await _open(tour, kind)
        await tour.begin("notices")
        for first in firsts:
            tour.change_theme()
            text = hostile.text(first)
            app.notify(text, title=text, timeout=_NOTICE_SECONDS)
            app.screen.notify(str(LlmtopError(text)), timeout=_NOTICE_SECONDS)
            app.bell()
            await tour.drawn()
            while not app.screen_stack[0].reply_rows:  # type: ignore[attr-defined]  # later, where frames queue up
                await asyncio.sleep(0.02)
        app.clear_reply()

    async def _open(tour: Tour, kind: type[Screen[Any]]) -> None:
        for first in firsts:
            tour.change_theme()
            usual, filled = moments[2 * first : 2 * first + 2]
            screen = app.screen_stack[0] if kind is MainScreen else made(kind, folder, first)
            prepare(screen, first)
            feed.hand_over(usual)
            await tour.drawn()
            app.view.selected = usual.gpus[0].uuid
            if kind is not MainScreen:
                app.push_screen(screen)
                await tour.drawn()
            for one in messages(screen, first):
                screen.post_message(one)
                await tour.drawn()
            await _scrolled(tour, screen)
            feed.hand_over(filled)
            await tour.drawn()
            await _scrolled(tour, screen)
            if app.screen is screen and kind is not MainScreen:
                await app.pop_screen()

    app.tour = Tour(app, feed, themes, through)
    return app


async def _scrolled(tour: Tour, screen: Screen[Any]) -> None:
    if isinstance(screen, ScrollingScreen):
        screen.top = 0
        for _ in range(_PAGES):
            before = screen.top
            screen.action_page(1)
            await tour.drawn()
            if screen.top == before:
                break


def of_cluster(firsts: range, *, ascii: bool, themes: list[str]) -> TerminalApp:
    """The cluster's pane, which goes through what it can show by itself."""
    feed = Held()
    app = TouredCluster(feed, ascii=ascii)

    async def through(tour: Tour) -> None:
        await tour.begin("cluster")
        for first in firsts:
            tour.change_theme()
            view, charts = hostile.value(ClusterView, first), hostile.value(NodeCharts, first)
            app.post_message(ViewReceived(view, charts))
            app.post_message(CaptureProgress(hostile.text(first), goes_on=False))
            await tour.drawn()
            app.action_go()
            app.post_message(ViewReceived(view, charts))
            await tour.drawn()
            await app.action_back()

    app.tour = Tour(app, feed, themes, through)
    return app


def main() -> int:
    """Run the tour and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("recording", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ascii", action="store_true")
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--themes", default="")
    parser.add_argument("--spread", action="store_true", help="one tour, each value in the next theme")
    parser.add_argument("--every", type=int, default=1, help="of the pieces that texts begin with, each N-th")
    parser.add_argument("--begin", type=int, default=0, help="the first of them")
    arguments = parser.parse_args()
    os.chdir(arguments.folder.parent)
    themes = [one for one in arguments.themes.split(",") if one]
    firsts = range(arguments.begin, len(hostile.PIECES), arguments.every)
    if arguments.cluster:
        app = of_cluster(firsts, ascii=arguments.ascii, themes=themes)
    else:
        app = of_machine(arguments.recording, arguments.folder, firsts, ascii=arguments.ascii, themes=themes)
    assert isinstance(app, Toured | TouredCluster)
    app.tour.spread = arguments.spread
    return run(app)


if __name__ == "__main__":
    sys.exit(main())
