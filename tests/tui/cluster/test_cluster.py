"""The cluster's pane in a terminal: what is planted is read on it, and whatever the server does it goes on."""

from __future__ import annotations

import http.server
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors.prometheus.cluster_view import (
    ClusterView,
    GpuCell,
    HungRank,
    LateRank,
    Node,
    NodeAlert,
    NodeCharts,
    NodeRates,
    Run,
    Series,
)
from collectors.prometheus.words import missing_text, number_ranges, run_text
from llmtop.cli.cluster.text import render
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
                    with urllib.request.urlopen(f"{url}{self.path}", data=body, timeout=240) as found:
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
    # A page that is not there within the interval makes its node "down": on a busy machine 1 s is too short.
    with nodes, nodes.prometheus(tmp_path, RULES, "3s") as server:
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
        terminal.shows("rank 50 on node006 (pid 1002) is 1 collective behind in 0 default_pg", 60)
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


@pytest.mark.slow("test_an_odd_answer_is_a_sentence finds the same fault")
@pytest.mark.prometheus
@needs_prometheus
def test_whatever_the_server_does_is_said_and_the_keys_go_on(served: tuple[Nodes, Prometheus]) -> None:
    _, server = served
    between = Between(server.url)
    with pane(between.url) as terminal:
        terminal.shows("12 nodes up", 60)
        for does, words in (
            ("422", "refused a query of llmtop (422): found duplicate series"),
            ("html", "an answer that is not from a Prometheus (text/html)"),
            ("half", "an incomplete answer"),
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
        ({"rules": False, "every_seconds": 15.0}, "no recording rules on the server, asked every 15.0 s"),
        ({"took_seconds": 4.0}, "the server takes 4.00 s to answer"),
        ({"nodes_up": None, "nodes": ()}, "Prometheus has no llmtop exporter; on each node, run: llmtop export"),
        ({"problems": ("p says: partial",)}, "p says: partial"),
        ({"runs": (Run(name="train.py"),)}, "step p50 –, p99 –"),
    ],
)
def test_the_state_of_an_answer_is_said(fields: dict[str, object], words: str) -> None:
    state = ClusterState()
    state.view, state.now = view(4, **fields), 1001.0
    assert words in painted(state, 120, 20)


def down(number: int, since: float, **fields: object) -> Node:
    return node(number, up=False, last_seen_at=since, badness=100.0, reasons=("down",), cells=(), **fields)


def test_a_node_that_is_down_or_gone_says_since_when_and_is_left_out_once_it_is_acknowledged() -> None:
    state = ClusterState()
    state.now = 10_001.0
    nodes = (down(1, 6000.0), down(2, 9990.0, is_target=False), node(3))
    whole = view(3, time=10_000.0, asked_at=10_000.0, nodes=nodes, nodes_up=1, nodes_down=1, nodes_removed=1)
    state.receive(whole)
    text = painted(state, 120, 20)
    assert "1 node up, 1 down, 1 removed" in text
    assert "CRITICAL down: node001 has not answered since" in text
    assert "(1h 06m)" in text
    assert "INFO removed: node002 is no longer a target, and has not answered since" in text
    assert "node001 down" in text
    assert "node002 gone" in text
    assert state.acknowledge(every=False) == 1
    text = painted(state, 120, 20)
    assert "1 node up, 0 down, 1 removed, 1 acknowledged" in text
    assert "node001" not in text
    state.receive(replace(whole, time=10_005.0))
    assert "node001" not in painted(state, 120, 20)
    assert state.acknowledge(every=True) == 1
    assert "1 node up, 0 down, 2 acknowledged" in painted(state, 120, 20)
    assert state.acknowledge(every=True) == 0, "node003 is up"
    again = replace(whole, time=10_100.0, nodes=(down(1, 10_050.0), node(3)), nodes_removed=0)
    state.receive(again)
    assert "node001 has not answered since" in painted(state, 120, 20), "it has died once more"


def test_a_past_instant_is_shown_with_all_its_nodes() -> None:
    state = ClusterState()
    state.receive(view(2, nodes=(down(1, 900.0), node(2)), nodes_up=1, nodes_down=1))
    assert state.acknowledge(every=True) == 1
    state.receive(view(2, nodes=(down(1, 900.0), node(2)), nodes_up=1, nodes_down=1, pinned=True))
    assert [one.name for one in state.nodes] == ["node001", "node002"]
    assert state.acknowledge(every=True) == 0


@pytest.mark.parametrize("size", [(200, 50), (120, 30), (80, 24)])
def test_old_values_wrong_clocks_and_missing_ranks_are_named(size: tuple[int, int]) -> None:
    state = ClusterState()
    state.now = 1001.0
    run = Run(
        name="train.py",
        ranks=62,
        world_size=64,
        ranks_reporting=62,
        ranks_missing=(17, 40),
        tokens_per_s=5e5,
        rate_span_seconds=9.7,
    )
    nodes = (
        node(1, is_stale=True, data_age_seconds=80.0, cells=(), badness=80.0),
        node(2, clock_ahead_seconds=120.0),
        node(3, clock_ahead_seconds=-2.5),
        node(4),
    )
    state.receive(view(4, runs=(run,), nodes=nodes))
    text = painted(state, *size)
    assert "train.py: 62 of 64 ranks, 500k tokens/s over 9.70 s" in text
    assert "WARNING missing: ranks 17, 40; 62 of 64 ranks report (train.py)" in text
    assert "WARNING stale: node001 sends values that are 1m 20s old" in text
    assert "WARNING clock: the clock of node002 is 2m 00s ahead of that of Prometheus" in text
    assert "WARNING clock: the clock of node003 is 2.50 s behind that of Prometheus" in text
    assert "node001 stale" in text


def test_many_nodes_down_are_one_sentence_and_the_rest_keeps_its_room() -> None:
    state = ClusterState()
    state.now = 1001.0
    state.receive(view(64, nodes=tuple(down(number, 900.0) for number in range(64)), nodes_up=0, nodes_down=64))
    text = painted(state, 120, 30)
    assert "CRITICAL down: node000, node001, node002 and 61 more do not answer" in text
    assert "nodes 1 to 64 of 64" in text


def test_the_chosen_node_says_what_its_links_carry_as_far_as_there_is_room() -> None:
    state = ClusterState()
    state.now = 1001.0
    rates = NodeRates(nic_rx=20e9, nic_tx=10e9, nic_limit=50e9, nvlink_rx=4.8e11, nvlink_tx=4.8e11, pcie_rx=24e9)
    state.receive(view(1, nodes=(node(0, rates=rates, data_age_seconds=2.0),)))
    wide = painted(state, 200, 20)
    assert (
        "NIC rx 20.0 GB/s tx 10.0 GB/s of 50.0 GB/s, NVLink rx 480 GB/s tx 480 GB/s, PCIe rx 24.0 GB/s tx –"
        in wide
    )
    assert "values 2.00 s old" in wide
    narrow = painted(state, 80, 20)
    assert "NIC rx 20.0 GB/s tx 10.0 GB/s of 50.0 GB/s" not in narrow or "PCIe" not in narrow
    state.receive(view(1, nodes=(node(0, rates=NodeRates(pcie_rx=1e9, pcie_tx=2e9)),)))
    text = painted(state, 120, 20)
    assert "PCIe rx 1.00 GB/s tx 2.00 GB/s" in text
    assert "NIC" not in text


def test_numbers_are_written_as_ranges() -> None:
    assert number_ranges([17]) == ["17"]
    assert number_ranges([0, 1, 2, 5, 7, 8]) == ["0 to 2", "5", "7 to 8"]
    scattered = Run(name="r", world_size=64, ranks_reporting=32, ranks_missing=tuple(range(0, 64, 2)))
    assert missing_text(scattered) == (
        "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 24 more ranges; 32 of 64 ranks report (r)"
    )
    assert missing_text(Run(name="r", world_size=64, ranks_reporting=64)) == ""
    assert missing_text(Run(name="r", ranks=8)) == "", "an older exporter does not give the world size"


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


@pytest.mark.slow(
    "a second pane over the Prometheus; test_the_key_of_a_capture_names_what_works_on_this_node has the key"
)
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
        terminal.shows("run this command on a node of the job (no rank is attached here)", 30)
        terminal.keys("c")
        terminal.keys("q")
        assert terminal.ends() == 0


@pytest.mark.slow("a capture on this node; test_the_key_of_a_capture_names_what_works_on_this_node has the key")
@pytest.mark.torch
@pytest.mark.prometheus
@needs_prometheus
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
        nodes.prometheus(tmp_path / "prometheus", RULES, "3s") as server,
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
            terminal.shows("--ranks 1,3,4,5    press c again to run this command", 30)
            terminal.keys("c")
            terminal.shows(f"whole steps in {tmp_path}/taken/", 90)
            terminal.keys("q")
            assert terminal.ends() == 0
        (taken,) = (tmp_path / "taken").iterdir()
        ranks = sorted(path.name for path in (taken / "traces").iterdir())
        assert ranks == [f"rank{rank}.pt.trace.json" for rank in (1, 3, 4, 5)]


@pytest.mark.parametrize(
    ("span", "p50", "said"),
    [
        (9.7, 0.5, " over 9.70 s"),
        (58.0, 0.5, ""),
        (30.0, 10.0, " over 30.0 s"),
        (None, 150.0, " over more than 1m 00s"),
        (None, 0.5, ""),
    ],
)
def test_a_rate_that_is_not_over_the_last_minute_says_over_what(span: float | None, p50: float, said: str) -> None:
    run = Run(name="r", tokens_per_s=1e3, rate_span_seconds=span, step_seconds_p50=p50)
    assert run_text(run).startswith(f"r: 1.00k tokens/s{said}, step p50"), run_text(run)


def test_few_nodes_leave_their_room_to_the_charts_of_the_chosen_one() -> None:
    state = ClusterState()
    state.view, state.now = view(2), 1001.0
    painted(state, 120, 30)
    state.move(1)
    assert state.view_request().node == "node001"
    series = (
        Series(title="hottest GPU", unit=" °C", values=(60.0, 60.5)),
        Series(title="step, slowest rank", unit=" s", values=(0.25, 0.5)),
        Series(title="power of the limit, mean", unit="%", values=(80.0, 84.793)),
    )
    state.charts = NodeCharts(node="node001", start=0.0, end=900.0, series=series)
    text = painted(state, 120, 30)
    assert "node001, the last 15m 00s" in text
    assert "hottest GPU 60.5 °C" in text
    assert "step, slowest rank 500 ms" in text
    assert "power of the limit, mean 85%" in text
    assert "node000, the last" not in text
    painted(state, 60, 9)
    assert state.view_request().node is None, "no room, so nothing is asked for"


@pytest.mark.parametrize("width", [60, 72, 80, 120])
def test_the_header_has_its_clock_apart_from_the_counts_and_whole(width: int) -> None:
    state = ClusterState()
    state.view, state.now = view(6, server="prometheus.cluster.example:9090"), 1001.0
    header = painted(state, width, 24).splitlines()[0]
    clock = time.strftime("%H:%M:%S", time.localtime(1000.0))
    assert f"no alerts  {clock}" in re.sub(r" {3,}", "  ", header)
    assert "…" not in header


RATES = NodeRates(pcie_rx=1e9, pcie_tx=2e9)
NODE_STATES: tuple[tuple[str, dict[str, object], bool], ...] = (
    ("OK", {}, True),
    ("2 GPUs at low power", {"badness": 50.0, "reasons": ("2 GPUs at low power",)}, True),
    ("rank 3 behind", {"badness": 90.0, "reasons": ("rank 3 behind",)}, True),
    ("no llmtop exporter", {"up": None}, True),
    ("stale", {"badness": 80.0, "reasons": ("stale",), "is_stale": True, "data_age_seconds": 300.0}, False),
    ("not answered since", {"badness": 100.0, "reasons": ("down",), "up": False, "last_seen_at": 400.0}, False),
    ("is no longer a target", {"up": False, "is_target": False, "last_seen_at": 400.0}, False),
)
"""Words of each state of a node, its fields, and whether values of it are of now."""


@pytest.mark.parametrize(("words", "fields", "is_live"), NODE_STATES, ids=[one[0] for one in NODE_STATES])
def test_no_value_of_a_node_contradicts_its_state(words: str, fields: dict[str, object], is_live: bool) -> None:
    state = ClusterState()
    state.view, state.now = view(1, nodes=(node(0, rates=RATES, **fields),)), 1001.0
    lines = painted(state, 160, 24).splitlines()
    detail = next(line for line in lines if "▸ node000:" in line)
    cells = next(line for line in lines if line.startswith(("▸ node000", "▸■node000")) and line is not detail)
    assert words in detail
    assert ("80 % of the power limit" in detail) == is_live
    assert ("PCIe rx" in detail) == is_live
    assert ("▇▇▇▇▇▇▇▇" in cells) == is_live
    assert ("■" in cells) == ("badness" in fields)
    assert "badness" not in fields or "OK" not in detail


LATE = LateRank(run="r", rank="1", node="node001", pid="7", seconds=0.1, step_share=0.3)
FAULTS: dict[str, dict[str, object]] = {
    "hung": {"hung": (HungRank(run="r", process_group="0", waiting=8),)},
    "critical": {"grave": (NodeAlert(id="xid", node="node000", value=79.0),)},
    "straggler": {"late": (LATE,)},
    "missing": {"runs": (Run(name="r", world_size=8, ranks_reporting=7),)},
    "down": {"nodes": (node(0, up=False),)},
    "stale": {"nodes": (node(0, is_stale=True),)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_header_does_not_deny_a_fault_below_it(fault: str) -> None:
    state = ClusterState()
    state.view, state.now = view(2, **FAULTS[fault]), 1001.0
    assert "no alerts" not in painted(state, 120, 24)
    harmless = view(2, late=(replace(LATE, step_share=0.03),))
    state.view = harmless
    assert "no alerts" in painted(state, 120, 24)
    assert "stragglers" not in render(harmless)
