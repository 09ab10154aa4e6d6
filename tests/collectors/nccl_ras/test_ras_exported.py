"""What NCCL says of a job, past one machine: two exporters ask a stand-in in turn, and the pane names the rank."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from collectors.exporter.stage import ExportStage
from collectors.nccl_ras.stage import node_position
from collectors.prometheus.client import Client, SeriesValue
from collectors.prometheus.cluster import Cluster
from collectors.prometheus.hung import hung_ranks
from collectors.prometheus.words import hung_text
from llmtop.model.snapshot import CollectiveCount, CommunicatorRank, StuckCommunicator
from tests.support.gloo_ranks import GlooRanks
from tests.support.processes import REPOSITORY, wait_for
from tests.support.prometheus import NO_PROMETHEUS, Exporter, Prometheus, find, of, samples
from tests.support.ras_server import RasServer, communicator, missing, rank
from tests.support.snapshots import rank as training
from tests.support.snapshots import snapshot
from tests.support.terminal import Terminal

RULES = REPOSITORY / "llmtop" / "data" / "prometheus-rules.yml"
STUCK = StuckCommunicator(
    id="0x1f",
    size=16,
    operation="AllReduce",
    number=40,
    waiting_count=14,
    behind_count=1,
    behind=(CommunicatorRank(rank=9, host="10.0.0.2", pid=77, called=38),),
    missing_count=1,
    missing=(CommunicatorRank(rank=12, host="10.0.0.2", pid=80),),
    pids=(100, 101),
)


def _counts(*groups: str) -> tuple[CollectiveCount, ...]:
    return tuple(CollectiveCount(group=group, enqueued=40, completed=39) for group in groups)


def test_what_nccl_told_is_told_with_the_run_and_the_process_group_in_which_its_ranks_wait() -> None:
    stage = ExportStage(interval=1.0)
    ranks = tuple(
        training(pid, rank=number, job="train.py", uid=7, collectives=_counts("1 tp_group"))
        for number, pid in enumerate((100, 101))
    )
    stage(snapshot(time.time(), monotonic=time.monotonic(), ranks=ranks, stuck_communicators=(STUCK,)))
    page = samples(generate_latest(stage).decode())
    which = {"run": "train.py", "uid": "7", "communicator": "0x1f", "pg": "1 tp_group", "operation": "AllReduce"}
    assert of(page, "llmtop_ras_waiting") == [("llmtop_ras_waiting", which, 14.0)]
    behind = {**which, "rank": "9", "host": "10.0.0.2", "rank_pid": "77"}
    assert of(page, "llmtop_ras_behind") == [("llmtop_ras_behind", behind, 2.0)]
    assert of(page, "llmtop_ras_missing", rank="12", rank_pid="80")[0][2] == 1.0


def test_ranks_that_wait_in_two_groups_do_not_tell_which_it_is() -> None:
    stage = ExportStage(interval=1.0)
    ranks = (training(100, rank=0, job="train.py", collectives=_counts("0 default_pg", "1 tp_group")),)
    stage(snapshot(time.time(), monotonic=time.monotonic(), ranks=ranks, stuck_communicators=(STUCK,)))
    assert of(samples(generate_latest(stage).decode()), "llmtop_ras_waiting")[0][1]["pg"] == ""


def test_a_communicator_that_only_waits_for_another_one_is_not_told() -> None:
    stage = ExportStage(interval=1.0)
    level = StuckCommunicator(id="0x2", size=4, waiting_count=4, pids=(100,))
    stage(snapshot(time.time(), monotonic=time.monotonic(), stuck_communicators=(level,)))
    assert of(samples(generate_latest(stage).decode()), "llmtop_ras_waiting") == []


@pytest.mark.parametrize(("first", "place"), [(0, (0, 8)), (8, (1, 8)), (56, (7, 8))])
def test_nodes_ask_in_the_order_of_their_ranks(first: int, place: tuple[int, int]) -> None:
    ranks = tuple(training(100 + n, rank=first + n, world_size=64, job="train.py") for n in range(8))
    assert node_position(snapshot(0.0, ranks=ranks), {100: 100}) == place


def test_one_who_is_named_by_counts_and_by_nccl_is_told_once_and_two_nodes_say_the_same_once() -> None:
    def sample(value: float, **labels: str) -> SeriesValue:
        return SeriesValue({"run": "r", "uid": "7", **labels}, value)

    which = {"communicator": "0x1f", "pg": "", "operation": "AllReduce"}
    found = {
        "waiting": [sample(3, pg="0 default_pg")],
        "behind": [sample(1, pg="0 default_pg", rank="9", instance="b:9401", pid="77")],
        "ras waiting": [sample(14, **which), sample(14, **which, uid="8")],
        "ras behind": [sample(1, **which, rank="9", host="10.0.0.2", rank_pid="77")],
        "ras missing": [
            sample(1, **which, rank="12", host="10.0.0.2", rank_pid="80"),
            sample(1, **{**which, "pg": "0 default_pg"}, rank="12", host="10.0.0.2", rank_pid="80"),
        ],
    }
    words = [hung_text(one) for one in hung_ranks(found, lambda name: {"10.0.0.2": "node-b"}.get(name, name))]
    assert words == [
        "rank 12 on node-b (pid 80) does not reply to NCCL; 14 ranks wait in NCCL communicator 0x1f",
        "rank 9 on b:9401 (pid 77) is 1 collective behind in 0 default_pg; 3 ranks wait",
    ]


@pytest.fixture
def nodes() -> Iterator[list[Path]]:
    made = [Path(tempfile.mkdtemp(prefix="lt-")) for _ in range(2)]
    yield made
    for one in made:
        shutil.rmtree(one, ignore_errors=True)


@pytest.mark.slow(
    "test_one_who_is_named_by_counts_and_by_nccl_is_told_once_and_two_nodes_say_the_same_once finds the same fault"
)
@pytest.mark.torch
@pytest.mark.prometheus
@pytest.mark.skipif(find("prometheus") is None, reason=NO_PROMETHEUS)
def test_a_rank_that_does_not_answer_nccl_is_named_on_the_pane_of_the_cluster(
    nodes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RasServer()
    monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{server.address[1]}")
    with (
        GlooRanks(tmp_path, nodes, a_node=2, hung=1) as job,
        Exporter("-i", "0.5", LLMTOP_DIR=str(nodes[0])) as first,
        Exporter("-i", "0.5", LLMTOP_DIR=str(nodes[1])) as second,
    ):
        pids = [one.pid for one in job.processes]
        there = [rank(n, pids[n], "127.0.0.1", AllReduce=40) for n in (0, 1, 2)]
        server.communicators = [communicator(*there, gone=(missing(3, pids[3], "10.0.0.9"),))]
        for exporter in (first, second):
            exporter.when("llmtop_steps_total", least=2, seconds=110)
        job.hang()
        page = first.when("llmtop_ras_missing", seconds=90)
        until = time.monotonic() + 30
        while of(page, "llmtop_ras_missing", pg="") and time.monotonic() < until:
            page = first.when("llmtop_ras_missing", seconds=30)  # the group is known once the ranks have said so
        (told,) = of(page, "llmtop_ras_missing")
        assert (told[1]["rank"], told[1]["host"], told[1]["pg"]) == ("3", "10.0.0.9", "0 default_pg")
        # The second node waits for its turn: one answer is of all nodes.
        assert server.asked <= 4
        with Prometheus(tmp_path / "prometheus", [first.target, second.target], rules=RULES) as prometheus:
            cluster = Cluster(Client(prometheus.url, limit=60))
            hung = wait_for(
                lambda: [one for one in cluster.query_view().hung if one.missing], 60, "the missing rank"
            )
            assert [(one.rank, one.node, one.process_group) for one in hung] == [("3", "10.0.0.9", "0 default_pg")]
            with Terminal(
                [sys.executable, "-m", "llmtop", "cluster", "--prometheus", prometheus.url, "-i", "1"], (140, 40)
            ) as pane:
                pane.shows("CRITICAL hung: rank 3 on 10.0.0.9", 60)
                pane.keys("q")
                assert pane.ends() == 0
    server.close()
