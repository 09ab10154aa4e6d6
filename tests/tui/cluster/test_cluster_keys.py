"""Every key on every screen of `llmtop cluster`: it acts, or one sentence says why not; clicks sort and choose."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from collectors.prometheus.cluster_view import ClusterView, GpuCell, LateRank, Node, NodeCharts, Series
from collectors.prometheus.source import ViewRequest
from tui.cluster import capture_line
from tui.cluster.app import ClusterApp
from tui.core import keys
from tui.core.board_screen import BoardScreen
from tui.core.canvas import Board

ENDING = {"ctrl+c", "ctrl+z"}
WRONG = ("i", "Q", "f5", "ctrl+a", "x", "1", "tab", "r", "space", "ctrl+p")
WAYS = {"nodes": ((), "by ▴worst"), "charts": (("enter",), "the last"), "help": (("question_mark",), "Keys on")}
MOVES = {"move", "page", "edge", "match", "column", "instant"}
"""Actions that may change nothing, at an end."""


def view_of(request: ViewRequest) -> tuple[ClusterView, NodeCharts | None]:
    """What a server of twelve nodes would answer."""
    nodes = tuple(
        Node(
            name=f"node{n:02d}",
            up=True,
            badness=90.0 * (n == 3),
            reasons=("low power",) * (n == 3),
            power_ratio=0.5 + n / 40,
            cells=tuple(GpuCell(gpu=str(g), power_ratio=0.5 + n / 40) for g in range(8)),
        )
        for n in range(12)
    )
    late = LateRank(run="train", rank="5", node="node03", pid="77", seconds=0.2, step_share=0.5)
    at = request.at or time.time()
    view = ClusterView(
        server="prometheus:9090",
        time=at,
        asked_at=at,
        took_seconds=0.0,
        pinned=request.at is not None,
        nodes_up=12,
        nodes_down=0,
        nodes=nodes,
        late=(late,),
    )
    charts = None
    if request.node is not None:
        power = Series(title="power of the limit", unit="%", values=tuple(50.0 + n % 7 for n in range(100)))
        charts = NodeCharts(node=request.node, start=at - request.span, end=at, series=(power,), problems=())
    return view, charts


class Answering:
    """A source that answers at once."""

    def __init__(self) -> None:
        self._tell: Callable[..., Any] = lambda *_: None

    def start(self, on_view: Callable[..., Any]) -> None:
        """Answer the first request."""
        self._tell = on_view
        self.request(ViewRequest())

    def request(self, wanted: ViewRequest) -> None:
        """Answer another one."""
        view, charts = view_of(wanted)
        self._tell(replace(view, every_seconds=1.0), charts)

    def close(self) -> None:
        """Nothing to stop."""


def text(app: ClusterApp) -> str:
    board = app.screen.query_one(Board)
    return "\n".join(board.render_line(y).text for y in range(board.size.height))


def reply(app: ClusterApp) -> str:
    shown = app.reply_for(app.screen)
    return "" if shown is None else shown.text


def seen(app: ClusterApp) -> object:
    return text(app), len(app.screen_stack), reply(app), app.theme


async def shows(app: ClusterApp, pilot: Pilot[int], words: str) -> None:
    deadline = time.monotonic() + 120
    while words not in text(app):
        assert time.monotonic() < deadline, f"no {words} in\n{text(app)}"
        await pilot.pause(0.01)


async def open_screen(app: ClusterApp, pilot: Pilot[int], way: str) -> None:
    await pilot.pause()  # what the last key did may not have come to its end
    while len(app.screen_stack) > 1:
        app.pop_screen()
    await pilot.pause()
    assert isinstance(app.screen, BoardScreen)
    app.screen.prompt = None
    app.state.opened = app.state.at = None
    app.state.capture, app.state.order, app.state.reverse = "", "worst", False
    app.redraw()
    app.clear_reply()
    presses, words = WAYS[way]
    await pilot.press(*presses)
    await shows(app, pilot, words)


@pytest.mark.slow("the first screen stands for all; each takes every key", kept=("nodes-its own keys",))
@pytest.mark.parametrize("own", [True, False], ids=["its own keys", "keys of other screens"])
@pytest.mark.parametrize("way", WAYS)
async def test_every_key_of_the_cluster_acts_or_is_answered(
    way: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.cluster.capture_line.refusal", lambda: "no rank is attached here")
    app = ClusterApp(Answering())
    name = keys.CLUSTER_HELP if way == "help" else keys.CLUSTER
    works = {one: key.action.partition("(")[0] for key in keys.for_screen(name) for one in key.names}
    table = {one for key in keys.KEYS for one in key.names}
    leaves = {"q"} if way == "nodes" else set()
    pressed = works.keys() if own else (table | set(WRONG)) - works.keys()
    silent = []
    async with app.run_test(size=(100, 30)) as pilot:
        for one in sorted(pressed - ENDING - leaves):
            await open_screen(app, pilot, way)
            await pilot.pause()
            before = seen(app)
            await pilot.press(one)
            deadline = time.monotonic() + 120
            while seen(app) == before and works.get(one) not in MOVES and time.monotonic() < deadline:
                await pilot.pause(0.01)
            if seen(app) == before and works.get(one) not in MOVES:
                silent.append(one)
    assert silent == []


async def test_down_goes_from_the_charts_of_one_node_to_those_of_the_next() -> None:
    app = ClusterApp(Answering())
    async with app.run_test(size=(100, 30)) as pilot:
        await shows(app, pilot, "by ▴worst")
        await pilot.press("enter")
        await shows(app, pilot, "node03, the last")
        await pilot.press("down")
        await shows(app, pilot, "node00, the last")
        await shows(app, pilot, "power of the limit")


async def test_a_click_on_a_word_of_the_grid_s_title_sorts_the_nodes() -> None:
    app = ClusterApp(Answering())
    async with app.run_test(size=(100, 30)) as pilot:
        await shows(app, pilot, "by ▴worst")
        lines = text(app).splitlines()
        y = next(place for place, line in enumerate(lines) if "by ▴worst" in line)
        assert "node03" in lines[y + 1]
        await pilot.click(offset=(lines[y].index("name") + 1, y))
        await shows(app, pilot, "▴name")
        assert "node00" in text(app).splitlines()[y + 1]
        await pilot.click(offset=(lines[y].index("name") + 1, y))
        await shows(app, pilot, "▾name")
        assert "node11" in text(app).splitlines()[y + 1]
        await pilot.press("O")
        await shows(app, pilot, "▴power")


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((), "run this command on a node of the job (no rank is attached here)"),
        ((None, None), "the trainings on this node are no ranks of a job: llmtop capture --pid 40"),
        ((0,), ""),
    ],
)
def test_the_key_of_a_capture_names_what_works_on_this_node(
    monkeypatch: pytest.MonkeyPatch, ranks: tuple[int | None, ...], said: str
) -> None:
    attached = tuple(SimpleNamespace(pid=40 + place, rank=rank) for place, rank in enumerate(ranks))
    monkeypatch.setattr("llmtop.capture.targets.list_attached", lambda: attached)
    assert capture_line.refusal().startswith(said)
    assert bool(capture_line.refusal()) == bool(said)
