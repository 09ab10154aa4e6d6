"""The cluster's pane in a terminal: what is planted is read on it, and whatever the server does it goes on."""

from __future__ import annotations

import http.server
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors.prometheus.cluster_view import ClusterView, GpuCell, LateRank, Node, NodeCharts, Run, Series
from tests.support.processes import REPOSITORY
from tests.support.prometheus import NO_PROMETHEUS, Prometheus, find
from tests.support.simulated_nodes import Nodes
from tests.support.terminal import Terminal
from tests.support.two_nodes import TOGETHER, TwoNodes
from tui.cluster import paint
from tui.cluster.state import SPANS, ClusterState
from tui.paint.palette import THEMES, Palette
from tui.paint.rows import CellTheme

RULES = REPOSITORY / "llmtop" / "data" / "prometheus-rules.yml"
needs_prometheus = pytest.mark.skipif(find("prometheus") is None, reason=NO_PROMETHEUS)


class Between:
    """A proxy before the server, which may be slow, silent, or answer something else."""

    def __init__(self, url: str) -> None:
        self.does = ""
        between = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                kind, status, answer = "application/json", 200, b""
                if between.does == "slow":
                    time.sleep(10)
                if between.does in ("", "slow", "half"):
                    with urllib.request.urlopen(f"{url}{self.path}", data=body, timeout=60) as found:
                        answer = found.read()
                if between.does == "half":
                    answer = answer[: len(answer) // 2]
                elif between.does == "422":
                    status, answer = 422, b'{"status":"error","error":"found duplicate series"}'
                elif between.does == "html":
                    kind, answer = "text/html", b"<html>502 Bad Gateway</html>"
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def pane(url: str, size: tuple[int, int] = (120, 36)) -> Terminal:
    return Terminal([sys.executable, "-m", "llmtop", "cluster", "--prometheus", url, "-i", "1"], size)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Nodes, Prometheus]]:
    nodes = Nodes(12)
    nodes.slow, nodes.idle = 77, (3, 5)
    with nodes, nodes.prometheus(tmp_path, RULES) as server:
        yield nodes, server


@pytest.mark.prometheus
@needs_prometheus
def test_what_is_wrong_comes_first_and_enter_shows_a_node(served: tuple[Nodes, Prometheus]) -> None:
    nodes, server = served
    with pane(server.url) as terminal:
        terminal.shows("rank 77 on node009", 60)
        terminal.shows("low power on node003, GPU 5", 60)
        terminal.shows("12 nodes up, 0 down", 60)
        terminal.shows("▸■node003", 60)
        nodes.behind = 50
        terminal.shows("rank 50 on node006 (pid 1002) is 1 behind in 0 default_pg", 60)
        terminal.keys("\r")
        terminal.shows("the last 15m 00s")
        terminal.shows("power of the limit, least")
        terminal.keys("[")
        terminal.shows("the last 5m 00s")
        terminal.keys("<")
        terminal.shows("as it was at", 60)
        terminal.keys("L")
        terminal.keys("q")
        terminal.shows("by ▴worst", 60)
        terminal.keys("q")
        assert terminal.ends() == 0


@pytest.mark.prometheus
@needs_prometheus
def test_whatever_the_server_does_is_said_and_the_keys_go_on(served: tuple[Nodes, Prometheus]) -> None:
    _, server = served
    between = Between(server.url)
    with pane(between.url) as terminal:
        terminal.shows("12 nodes up", 60)
        for does, words in (
            ("422", "refuses a query (422): found duplicate series"),
            ("html", "no answer of a Prometheus (text/html)"),
            ("half", "half an answer"),
            ("slow", "has not answered within 8 s"),
        ):
            between.does = does
            terminal.shows(words, 90)
            terminal.shows("NOT LIVE", 60)
            before = terminal.text()
            terminal.keys("\x1b[B")
            assert "node" in before, "what was known stays"
            between.does = ""
            terminal.shows("every", 90)
        server.process.kill()
        terminal.shows("NOT LIVE", 90)
        between.close()
        terminal.shows("cannot be reached: Connection refused", 90)
        terminal.keys("q")
        assert terminal.ends() == 0


def look(depth: str = "full", ascii: bool = False) -> CellTheme:
    return CellTheme.for_palette(Palette.build(THEMES[0], depth), ascii_only=ascii)  # type: ignore[arg-type]


def node(number: int, **fields: object) -> Node:
    cells = tuple(GpuCell(gpu=str(gpu), power_ratio=0.8) for gpu in range(8))
    return Node(**{"name": f"node{number:03d}", "up": True, "cells": cells, "power_ratio": 0.8, **fields})  # type: ignore[arg-type]


def view(count: int, **fields: object) -> ClusterView:
    return ClusterView(
        **{  # type: ignore[arg-type]
            "server": "prometheus:9090",
            "time": 1000.0,
            "asked_at": 1000.0,
            "took_seconds": 0.1,
            "every_seconds": 5.0,
            "nodes_up": count,
            "nodes_down": 0,
            "nodes": tuple(map(node, range(count))),
            **fields,
        }
    )


def painted(state: ClusterState, width: int, height: int, **kwargs: object) -> str:
    rows = paint.rows(state, width, height, look(**kwargs))  # type: ignore[arg-type]
    assert len(rows) == height
    assert all(row.used <= width for row in rows)
    return "\n".join(row.plain() for row in rows)


@pytest.mark.parametrize("count", [0, 1, 64, 512])
@pytest.mark.parametrize("size", [(200, 50), (120, 30), (80, 24), (40, 10), (10, 3), (1, 1)])
def test_it_is_painted_at_any_size(count: int, size: tuple[int, int]) -> None:
    state = ClusterState()
    painted(state, *size)
    state.now = 1001.0
    state.view = view(count, late=(LateRank(run="r", rank="1", node="node001", pid="7", seconds=0.1),) * 30)
    text = painted(state, *size)
    if size[0] >= 80 and count:
        assert "node000 ▇▇▇▇▇▇▇▇" in text
    painted(state, *size, ascii=True, depth="mono")
    state.opened = "node000"
    painted(state, *size)
    state.charts = NodeCharts(
        node="node000",
        start=0.0,
        end=900.0,
        series=(
            Series(title="power", unit="%", values=(None, 10.0, None, 50.0)),
            Series(title="nothing", unit=" s", values=()),
        ),
    )
    assert size[0] < 80 or "50%" in painted(state, *size)


def test_pages_hold_what_fits_and_follow_the_cursor() -> None:
    state = ClusterState()
    state.view, state.now = view(512), 1001.0
    painted(state, 200, 50)
    first, last = state.page
    assert first == 0
    assert 256 <= last < 512
    state.move(last)
    text = painted(state, 200, 50)
    assert f"nodes {last + 1} to 512 of 512" in text
    assert state.view_request().page[0] == last


def test_a_chosen_node_stays_chosen_when_it_changes_its_place() -> None:
    state = ClusterState()
    state.view = view(8)
    state.move(3)
    assert state.chosen == "node003"
    state.view = replace(state.view, nodes=tuple(reversed(state.view.nodes)))
    assert state.nodes[state.place].name == "node003"


def test_what_is_old_is_not_drawn_as_live() -> None:
    state = ClusterState()
    state.view, state.now = view(4), 1001.0
    assert "NOT LIVE" not in painted(state, 120, 20)
    state.now = 1060.0
    text = painted(state, 120, 20)
    assert "NOT LIVE" in text
    assert "no answer for 1m 0" in text
    live, dim = look().palette.energy, look().palette.dim
    styles = {
        segment.style
        for row in paint.rows(state, 120, 20, look())
        for segment in row.segments
        if "▇" in segment.text
    }
    assert styles == {dim}
    assert live not in styles
    state.now, state.failed = 1001.0, True
    assert "NOT LIVE" in painted(state, 120, 20)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data_age_seconds": 300.0}, "the newest values are 5m 00s old"),
        ({"clock_ahead_seconds": -40.0}, "the server's clock is 40.0 s behind this machine's"),
        ({"rules": False, "every_seconds": 15.0}, "without the recording rules"),
        ({"took_seconds": 4.0}, "the server takes 4.00 s to answer"),
        ({"nodes_up": None, "nodes": ()}, "no llmtop export is known there"),
        ({"problems": ("p says: partial",)}, "p says: partial"),
        ({"runs": (Run(name="train.py"),)}, "step p50 –, p99 –"),
    ],
)
def test_the_state_of_an_answer_is_said(fields: dict[str, object], words: str) -> None:
    state = ClusterState()
    state.view, state.now = view(4, **fields), 1001.0
    assert words in painted(state, 120, 20)


def test_span_and_instant_stay_within_bounds() -> None:
    state = ClusterState()
    state.now = 1_000_000.0
    state.change_span(100)
    assert state.span == SPANS[-1]
    state.change_span(-100)
    assert state.span == SPANS[0]
    state.shift_instant(-1)
    assert state.at is None, "the future is now"
    state.shift_instant(2)
    assert state.at == state.now - 120
    state.shift_instant(-1)
    assert state.at == state.now - 60


@pytest.mark.prometheus
@needs_prometheus
def test_c_says_the_command_that_captures_the_accused_and_where_to_call_it(
    served: tuple[Nodes, Prometheus], runtime_dir: Path
) -> None:
    _, server = served
    assert not list(runtime_dir.iterdir())
    with pane(server.url, (160, 36)) as terminal:
        terminal.shows("rank 77 on node009", 60)
        terminal.keys("c")
        terminal.shows("llmtop capture --at-step +20 --ranks 29,76,77,78", 30)
        terminal.shows("on a node of the job (no rank is attached on this one)", 30)
        terminal.keys("c")
        terminal.keys("q")
        assert terminal.ends() == 0


@pytest.mark.torch
@pytest.mark.prometheus
@needs_prometheus
@pytest.mark.timeout(300)
def test_c_again_captures_where_a_rank_of_the_job_is_and_the_server_may_stand_in_the_configuration(
    tmp_path: Path,
) -> None:
    nodes = Nodes(1, gpus=6)
    nodes.slow = 4
    config = tmp_path / "config" / "llmtop" / "config.toml"
    config.parent.mkdir(parents=True)
    with (
        tempfile.TemporaryDirectory(prefix="lt-") as folder,
        TwoNodes(Path(folder), TOGETHER, torchrun=True) as job,
        nodes,
        nodes.prometheus(tmp_path / "prometheus", RULES) as server,
    ):
        job.wait_attached()
        config.write_text(
            f'[capture]\nout = "{tmp_path}/taken"\nsteps = 2\n'
            f'[cluster]\nprometheus = "{server.url}"\ninterval = 1\n'
        )
        there = {
            "LLMTOP_DIR": str(job.nodes[0]),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "LLMTOP_PROMETHEUS": "",
        }
        with Terminal([sys.executable, "-m", "llmtop", "cluster"], (160, 36), **there) as terminal:
            terminal.shows("rank 4 on node000", 90)
            terminal.keys("c")
            terminal.shows("--ranks 1,3,4,5    press c again to run it here", 30)
            terminal.keys("c")
            terminal.shows(f"whole steps in {tmp_path}/taken/", 90)
            terminal.keys("q")
            assert terminal.ends() == 0
        (taken,) = (tmp_path / "taken").iterdir()
        ranks = sorted(path.name for path in (taken / "traces").iterdir())
        assert ranks == [f"rank{rank}.pt.trace.json" for rank in (1, 3, 4, 5)]
