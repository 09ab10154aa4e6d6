"""Real exporters that stop, die, have a wrong clock or a bad link, behind a real Prometheus with our rules."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from collectors.prometheus.client import Client
from collectors.prometheus.cluster import Cluster
from collectors.prometheus.cluster_view import ClusterView, Node
from tests.support import nvml_stub
from tests.support.clock import Clock
from tests.support.infiniband import Adapter
from tests.support.ports import free_port
from tests.support.processes import REPOSITORY, wait_for
from tests.support.prometheus import NO_PROMETHEUS, Exporter, Prometheus, find
from tests.support.terminal import Terminal

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(find("prometheus") is None, reason=NO_PROMETHEUS),
]
RULES = REPOSITORY / "llmtop" / "data" / "prometheus-rules.yml"
PROGRAM = """
import os, platform, sys
from pathlib import Path
name, links, stop = sys.argv[1:4]
del sys.argv[1:4]
platform.node = lambda: name
import collectors.machine.infiniband as infiniband
infiniband.ROOT = Path(links)
from collectors.exporter.stage import ExportStage
taken = ExportStage.__call__
ExportStage.__call__ = lambda self, snapshot: snapshot if os.path.exists(stop) else taken(self, snapshot)
from llmtop.__main__ import main
main()
"""
"""`llmtop export` on a node of that name, with that folder for /sys/class/infiniband, whose snapshots stop for as
long as a file is there."""


class Site:
    """Exporters of several nodes on one machine."""

    def __init__(self, tmp_path: Path, closing: ExitStack) -> None:
        self.path, self.closing = tmp_path, closing
        self.ports: dict[str, int] = {}
        self.exporters: dict[str, Exporter] = {}

    def start(self, name: str, scenario: Path | None = None, **extra: str) -> None:
        """Start one, on the port that it had before."""
        port = self.ports.setdefault(name, free_port())
        links = self.path / name / "infiniband"
        links.mkdir(parents=True, exist_ok=True)
        command = (sys.executable, "-c", PROGRAM, name, str(links), str(self.path / name / "stop"))
        exporter = Exporter("-i", "0.5", "--port", str(port), command=command, scenario=scenario, **extra)
        self.exporters[name] = self.closing.enter_context(exporter)

    @property
    def targets(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports.values()]


def node(view: ClusterView, name: str) -> Node:
    return next(one for one in view.nodes if one.name == name)


def seen(cluster: Cluster, holds: Callable[[ClusterView], object], seconds: float = 60.0) -> ClusterView:
    """The view as soon as something holds for it."""

    def look() -> ClusterView | None:
        time.sleep(0.3)
        view = cluster.query_view()
        return view if holds(view) else None

    return wait_for(look, seconds) or cluster.query_view()


@pytest.mark.slow(
    "exporters that stop and die; test_old_values_wrong_clocks_and_missing_ranks_are_named has the words"
)
def test_each_node_says_how_old_and_how_sure_its_values_are(tmp_path: Path) -> None:
    names = ("good", "ahead", "frozen", "dead")
    clock = Clock(tmp_path / "clock")
    clock.step(120.0)
    scenario = nvml_stub.Scenario.eight_gpus().write(tmp_path / "scenario")
    with ExitStack() as closing:
        site = Site(tmp_path, closing)
        adapter = Adapter(tmp_path / "good" / "infiniband")
        site.start("good", scenario)
        site.start("ahead", **clock.environment())
        site.start("frozen")
        site.start("dead")
        for exporter in site.exporters.values():
            exporter.when("llmtop_snapshot_seconds_total")
        opened = time.monotonic()
        server = closing.enter_context(Prometheus(tmp_path / "prometheus", site.targets, rules=RULES))
        cluster = Cluster(Client(server.url, limit=60))

        view = seen(cluster, lambda view: view.nodes_up == 4 and node(view, "ahead").clock_ahead_seconds)
        assert node(view, "ahead").clock_ahead_seconds == pytest.approx(120.0, abs=10.0)
        assert [one.name for one in view.nodes if one.clock_ahead_seconds is not None] == ["ahead"]
        assert not any(one.is_stale for one in view.nodes)
        assert (node(view, "ahead").data_age_seconds or 0.0) < 10.0, "the age is by the node's own clock"
        assert (view.data_age_seconds or 0.0) < 10.0

        # The link's rate is right as soon as there is one, and its errors are named.
        began, count = time.monotonic(), 1000
        while time.monotonic() - began < 15.0:
            count += 50_000_000
            adapter.set("counters", {"port_rcv_data": count})
            time.sleep(0.2)
        total = (count - 1000) * 4
        wrote = total / (time.monotonic() - began)
        adapter.set("counters", {"symbol_error": 250})
        view = seen(cluster, lambda view: any(one.id == "link_errors" for one in view.grave))
        seconds = min(time.monotonic() - opened, 60.0)
        is_within_a_minute = time.monotonic() - began < 55.0
        rates = node(view, "good").rates
        assert rates is not None
        assert rates.nic_rx is not None
        # Before the writing began and after it ended it was 0, and the rate is that of a minute at most.
        assert (0.8 * total / seconds if is_within_a_minute else 0.0) < rates.nic_rx < 1.2 * wrote
        assert rates.nic_limit == 50e9
        (errors,) = (one for one in view.grave if one.id == "link_errors")
        assert (errors.node, errors.link, errors.value) == ("good", "mlx5_0 port 1 symbol_error", 250)
        site.exporters["good"].when("llmtop_alert", id="link_errors")

        (tmp_path / "frozen" / "stop").touch()
        site.exporters["dead"].process.kill()
        site.exporters["ahead"].process.send_signal(signal.SIGSTOP)
        view = seen(cluster, lambda view: node(view, "frozen").is_stale and view.nodes_down == 2)
        assert (node(view, "frozen").data_age_seconds or 0.0) > 10.0
        died = node(view, "dead").last_seen_at
        assert died is not None
        assert time.time() - 60.0 < died < time.time()
        with Terminal(
            [sys.executable, "-m", "llmtop", "cluster", "--prometheus", server.url, "-i", "1"], (120, 30)
        ) as pane:
            pane.shows("2 nodes up, 2 down", 60)
            pane.shows("CRITICAL down: dead has not answered since", 60)
            pane.shows("WARNING stale: frozen sends values that are", 60)
            pane.shows("mlx5_0 port 1 symbol_error +250", 60)
            pane.keys("/")
            pane.shows("type letters to find")
            pane.keys("dead\r")
            pane.shows("▸ dead: has not answered since")
            pane.keys("z")
            pane.shows("1 down, 1 acknowledged", 60)
            assert "dead has not" not in pane.text()
            site.start("dead")
            pane.shows("3 nodes up, 1 down", 90)
            site.exporters["dead"].process.kill()
            pane.shows("dead has not answered since", 90)
            pane.keys("Z")
            pane.shows("2 nodes up, 0 down, 2 acknowledged", 60)
            site.exporters["ahead"].process.send_signal(signal.SIGCONT)
            (tmp_path / "frozen" / "stop").unlink()
            pane.shows("3 nodes up, 0 down, 1 acknowledged", 60)
            pane.keys("q")
            assert pane.ends() == 0
        view = seen(cluster, lambda view: not node(view, "frozen").is_stale)
        assert {one.name for one in view.nodes} == set(names)
