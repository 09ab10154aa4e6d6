"""The pane of a cluster over a real Prometheus: a refresh at 512 and at 4,096 GPUs, with the rules that ship.

Nodes are made up: some 220 series each, fetched each second at 512 GPUs and every 15 s at 4,096. The pane's own
time and memory are those of `llmtop cluster` in a terminal, at its usual interval.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.result import Result, SkipBenchmark, part
from collectors.prometheus.client import Client
from collectors.prometheus.cluster import Cluster
from tests.support.processes import REPOSITORY, wait_for
from tests.support.prometheus import NO_PROMETHEUS, Prometheus, find
from tests.support.simulated_nodes import Nodes
from tests.support.terminal import Terminal

RULES = REPOSITORY / "llmtop" / "data" / "prometheus-rules.yml"
REFRESHES = 20
PANE_SECONDS = float(os.environ.get("LLMTOP_BENCH_SECONDS", "40"))
SIZES = ((64, "1s", 0.5, 25.0), (512, "15s", 2.0, 75.0))
"""Nodes of eight GPUs, how often they are fetched, the promised seconds of a refresh, and those to settle."""


def run() -> Iterator[Result]:
    """Both sizes, one after the other."""
    if find("prometheus") is None:
        raise SkipBenchmark(NO_PROMETHEUS)
    for count, interval, promised, settle in SIZES:
        with tempfile.TemporaryDirectory(prefix="lt-") as directory:
            nodes = Nodes(count)
            nodes.slow, nodes.idle = count * 4, (count // 2, 3)
            with nodes, nodes.prometheus(Path(directory), RULES, interval) as server:
                yield from _measured(server, count, promised, settle)


def _measured(server: Prometheus, count: int, promised: float, settle: float) -> Iterator[Result]:
    client = Client(server.url, limit=60)
    cluster = Cluster(client)
    time.sleep(settle * part())
    wait_for(
        lambda: (view := cluster.query_view()).nodes_up == count and view.late and view.rules,
        120,
        "all to be known",
    )
    taken = []
    for _ in range(REFRESHES):
        time.sleep(0.3)
        view = cluster.query_view(slice(0, 200))
        taken.append(view.took_seconds)
        if view.problems or not view.late:
            raise AssertionError(view.problems or "the slow rank is not named")
    p95 = statistics.quantiles(taken, n=20)[-1]
    note = f"median {statistics.median(taken) * 1000:.0f} ms; six questions, 200 nodes' cells"
    yield Result(f"refresh p95, {8 * count:,} GPUs", p95, "s", promised, note)
    yield from _pane(server.url, count)


def _pane(url: str, count: int) -> Iterator[Result]:
    command = [sys.executable, "-m", "llmtop", "cluster", "--prometheus", url]
    with Terminal(command, (200, 50)) as terminal:
        terminal.shows("straggler: rank", 120)
        pane = psutil.Process(terminal.process.pid)
        before, started = pane.cpu_times(), time.monotonic()
        time.sleep(PANE_SECONDS)
        after, took = pane.cpu_times(), time.monotonic() - started
        share = 100 * (after.user + after.system - before.user - before.system) / took
        yield Result(f"pane, of a core, {8 * count:,} GPUs", share, "%", 5.0, "200x50, every 5 s where it may")
        memory = float(pane.memory_full_info().pss) / 2**20
        yield Result(f"pane, memory (PSS), {8 * count:,} GPUs", memory, "MiB", 80)
