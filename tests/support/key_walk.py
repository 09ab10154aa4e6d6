"""Press every key on every screen at four sizes, `llmtop cluster` too: python -m tests.support.key_walk [SIZE]...

Prints a line for each finding: an error, a key that the footer or `?` lists and that refuses, a key that shows
nothing, and a message that covers text. The exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace
from textual.pilot import Pilot

from llmtop.capture.prepared import PreparedCaptures
from llmtop.model.snapshot import Alert, CollectiveCount, Snapshot
from tests.tui import test_demo as demos
from tests.tui import test_every_key as panes
from tests.tui.cluster import test_cluster_keys as cluster
from tui.core import keys
from tui.core.base_app import TerminalApp
from tui.core.board_screen import BoardScreen
from tui.core.canvas import Board

SIZES: Final = ((60, 15), (80, 24), (120, 30), (200, 50))
NOT_HERE: Final = re.compile(r"does nothing here|works only|^This screen (has|shows) no ")
"""Answers that no key may give on a screen whose help lists it."""
NOT_NOW: Final = re.compile(r"^There (is|are) no |^No |^Only |cannot|has no |^This is the only|already")
"""Answers on what there is to show, which a key of the footer may not give; the help lists such keys too."""
MOVES: Final = panes.MOVES | cluster.MOVES | {"span"}
"""Actions that may change nothing, at an end."""


class Walk:
    """Press keys on one screen of one app, and collect findings."""

    def __init__(self, app: TerminalApp, pilot: Pilot[int], screen: str, where: str) -> None:
        """Walk one screen.

        Args:
            app: that runs.
            pilot: of the app.
            screen: `NAME` of the screen.
            where: what a finding begins with.
        """
        self.app, self.pilot, self.where = app, pilot, where
        here = keys.for_screen(screen, replaying=app.replaying, demo=app.is_demo)
        self.works = {one: key for key in here for one in key.names}
        self.found: list[str] = []

    async def press(self, name: str, seen: Callable[[], object], rows: Callable[[], list[str]]) -> None:
        """Press one key and look at what happens.

        Args:
            name: as Textual calls it.
            seen: what a person sees.
            rows: lines of the screen.
        """
        before = seen()
        listed = self._listed()
        key = self.works.get(name)
        action = "" if key is None else key.action.partition("(")[0]
        await self.pilot.press(name)
        for _ in range(10 if action in MOVES else 200):
            await self.pilot.pause(0.005)
            if seen() != before:
                break
        await self.pilot.pause()
        reply = self._reply()
        if seen() == before and action not in MOVES:
            self.found.append(f"{self.where}: {name} shows nothing")
        place = "footer" if name in listed else "?"
        refuses = NOT_HERE.search(reply) or (place == "footer" and NOT_NOW.search(reply))
        if refuses and key is not None and action not in MOVES:
            self.found.append(f"{self.where}: {name} is listed in {place} as {key.label or key.help!r}: {reply}")
        if reply:
            self._check_message(name, rows(), reply)

    def _check_message(self, name: str, after: list[str], reply: str) -> None:
        """Check that a message is shown whole, in rows of its own above the footer."""
        if after and "".join(reply.split()) not in "".join("".join(after).split()):
            self.found.append(f"{self.where}: {name}: the message is not whole on the screen: {reply}")
        footer = "".join(segment.text for segment in self.app.screen.footer_now.row.segments).strip()
        if after and footer and footer not in after[-1]:
            self.found.append(f"{self.where}: {name}: the footer is covered by: {after[-1].strip()}")

    def _reply(self) -> str:
        shown = self.app.reply_for(self.app.screen)
        return "" if shown is None else shown.text

    def _listed(self) -> set[str]:
        """Names of the keys that the footer shows."""
        screen = self.app.screen
        return {span.name for span in screen.footer_now.spans} if isinstance(screen, BoardScreen) else set()


def lines(app: TerminalApp) -> list[str]:
    """What the screen on top shows, line by line."""
    if not (isinstance(app.screen, BoardScreen) and app.screen.query("Board")):
        return []
    board = app.screen.query_one(Board)
    return [board.render_line(y).text.rstrip() for y in range(board.size.height)]


def _names(walk: Walk, wrong: tuple[str, ...], leaving: set[str]) -> list[str]:
    """All keys of the table, and some that are in none."""
    return sorted(({one for key in keys.KEYS for one in key.names} | set(wrong)) - leaving)


async def _walk_panes(name: str, size: tuple[int, int]) -> list[str]:
    """Walk one screen of `llmtop` over the captures in the current folder."""
    feed = panes.Held(*panes.scene(gpus=2, spinning=(1,), seconds=40))
    async with panes.running(feed, size) as (app, pilot):
        app.view.alerts.since = None
        walk = Walk(app, pilot, name, f"{size[0]}x{size[1]} {name}")
        leaving = panes.ENDING | ({"q"} if name == keys.MAIN else set())
        opened = False
        for one in _names(walk, panes.WRONG, leaving):
            if not opened:
                await panes.open_screen(app, pilot, name)
            app.clear_reply()
            await pilot.pause()
            await walk.press(one, lambda: panes.seen(app), lambda: lines(app))
            top = app.screen
            opened = isinstance(top, BoardScreen) and name == top.NAME and top.prompt is None
        return walk.found


EMPTY: Final[dict[str, tuple[str, ...]]] = {
    keys.MAIN: (),
    keys.RANKS: ("r",),
    keys.PROCESSES: ("p",),
    keys.ALERTS: ("a",),
    keys.CAPTURES: ("o",),
    keys.CAPTURE: ("c",),
    keys.STACKS: ("s",),
}
"""Screens that a machine without a GPU, a training and captures has, and how each is opened."""


async def _walk_empty(name: str, size: tuple[int, int]) -> list[str]:
    """Walk one screen of `llmtop` where there is nothing to act on."""
    for one in Path.cwd().iterdir():
        shutil.rmtree(one)
    async with panes.running(panes.Held(*panes.scene(gpus=0, ranks=0, seconds=40)), size) as (app, pilot):
        app.view.alerts.since = None
        walk = Walk(app, pilot, name, f"{size[0]}x{size[1]} {name}, empty")
        for one in _names(walk, panes.WRONG, panes.ENDING | ({"q"} if name == keys.MAIN else set())):
            while len(app.screen_stack) > 1:
                app.pop_screen()
            await pilot.pause()
            await pilot.press(*EMPTY[name])
            app.clear_reply()
            await pilot.pause()
            await walk.press(one, lambda: panes.seen(app), lambda: lines(app))
        return walk.found


DEMO: Final = tuple(f"demo {way}" for way in demos.WAYS)
"""Screens of the demo, which stands at the alert that its prepared captures explain."""


async def _walk_demo(screen: str, size: tuple[int, int]) -> list[str]:
    """Walk one screen of the demo."""
    way = screen.removeprefix("demo ")
    prepared = PreparedCaptures(demos.DATA / "demo-captures.tar.xz")
    try:
        async with demos.demo(prepared, size) as (app, pilot):
            app.view.alerts.since = None
            way_keys = demos.WAYS[way]
            await pilot.press(*way_keys)
            await demos.settled(app, pilot)
            name = app.screen.NAME
            walk = Walk(app, pilot, name, f"{size[0]}x{size[1]} demo, {way}")
            for one in _names(walk, panes.WRONG, panes.ENDING | ({"q"} if name == keys.MAIN else set())):
                while len(app.screen_stack) > 1:
                    app.pop_screen()
                await demos.back(app, pilot)
                await pilot.press(*way_keys)
                app.clear_reply()
                await demos.settled(app, pilot)
                await walk.press(one, lambda: panes.seen(app), lambda: lines(app))
            return walk.found
    finally:
        prepared.close()


def _hung() -> list[Snapshot]:
    """Two ranks, whose processes do not exist, that wait in a collective."""
    *before, last = panes.scene(gpus=2, ranks=2, seconds=40)
    ranks = tuple(
        replace(
            one,
            pid=2**22 + 1 + place,  # above the kernel's largest pid
            state="stalled",
            collectives=(CollectiveCount(group="0", enqueued=7, completed=7 - place),),
        )
        for place, one in enumerate(last.ranks)
    )
    alert = Alert(id="hung_collective", severity="critical", summary="two ranks wait", since=last.time)
    return [*before, replace(last, ranks=ranks, alerts=(alert,))]


LIVE: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "hang": (("h",), "Rank"),
    keys.SIGNALS: (("p", "X"), "send nothing"),
}
"""Screens over which processes stand, with the keys that open each and words that it shows then."""


async def _walk_live(name: str, size: tuple[int, int]) -> list[str]:
    """Walk the page of a hang, or that of the signals; the process of the latter does not exist."""
    way, words = LIVE[name]
    async with panes.running(panes.Held(*_hung()), size) as (app, pilot):
        walk = Walk(app, pilot, keys.STACKS if name == "hang" else name, f"{size[0]}x{size[1]} {name}")
        for one in _names(walk, panes.WRONG, panes.ENDING):
            while len(app.screen_stack) > 1:
                app.pop_screen()
            await pilot.pause()
            await pilot.press(*way)
            await panes.shows(app, pilot, words)
            app.clear_reply()
            await pilot.pause()
            await walk.press(one, lambda: panes.seen(app), lambda: lines(app))
        return walk.found


async def _walk_cluster(way: str, size: tuple[int, int]) -> list[str]:
    """Walk one screen of `llmtop cluster`."""
    app = cluster.ClusterApp(cluster.Answering())
    async with app.run_test(size=size) as pilot:
        name = keys.CLUSTER_HELP if way == "help" else keys.CLUSTER
        walk = Walk(app, pilot, name, f"{size[0]}x{size[1]} cluster, {way}")
        for one in _names(walk, cluster.WRONG, cluster.ENDING | ({"q"} if way == "nodes" else set())):
            await cluster.open_screen(app, pilot, way)
            await pilot.pause()
            await walk.press(one, lambda: cluster.seen(app), lambda: lines(app))
        return walk.found


def _prepared(folder: Path) -> None:
    """Captures to open, and a socket folder without trainings."""
    parent = panes.shelf.with_reports(folder)
    panes.unpacked("gpt0", panes.shelf.with_stacks(parent))
    panes.shelf.with_memory(parent)
    os.environ["LLMTOP_DIR"] = str(folder / "sockets")
    (folder / "sockets").mkdir()


def _findings(sizes: list[tuple[int, int]], only: str) -> Iterator[str]:
    """Yield a line for each finding."""
    walks: list[tuple[str, Callable[[str, tuple[int, int]], Awaitable[list[str]]]]] = [
        *((name, _walk_panes) for name in panes.WAYS),
        *((name, _walk_empty) for name in EMPTY),
        *((name, _walk_demo) for name in DEMO),
        *((name, _walk_live) for name in LIVE),
        *((way, _walk_cluster) for way in cluster.WAYS),
    ]
    for size in sizes:
        for name, walk in walks:
            if only and only != name:
                continue
            try:
                with tempfile.TemporaryDirectory(prefix="llmtop-") as folder:
                    shutil.copytree(Path.cwd(), folder, dirs_exist_ok=True)
                    yield from asyncio.run(_inside(folder, walk, name, size))
            except Exception:  # noqa: BLE001  # whatever a key raises is a finding
                where = f"{name}, empty" if walk is _walk_empty else name
                yield f"{size[0]}x{size[1]} {where}: an error\n{traceback.format_exc()}"


async def _inside(folder: str, walk: Any, name: str, size: tuple[int, int]) -> list[str]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return await walk(name, size)
    finally:
        os.chdir(before)


def main() -> int:
    """Walk the sizes that are named, else all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", help="for example 80x24")
    parser.add_argument("--screen", default="", help="only this screen")
    args = parser.parse_args()
    sizes = [tuple(map(int, one.split("x"))) for one in args.sizes] or list(SIZES)
    count = 0
    with tempfile.TemporaryDirectory(prefix="llmtop-") as folder:
        _prepared(Path(folder))
        os.chdir(folder)
        for line in _findings(sizes, args.screen):
            print(line, flush=True)
            count += 1
        os.chdir("/")
    print(f"{count} findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
