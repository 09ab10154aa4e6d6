"""Two exporters on two made-up nodes, real gloo ranks, a real Prometheus with the rules that ship."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import nvml_stub
from tests.support.gloo_ranks import GlooRanks
from tests.support.processes import REPOSITORY, wait_for
from tests.support.prometheus import NO_PROMETHEUS, Exporter, Prometheus, find
from tests.support.terminal import Terminal

pytestmark = [
    pytest.mark.torch,
    pytest.mark.prometheus,
    pytest.mark.skipif(find("prometheus") is None, reason=NO_PROMETHEUS),
]
RULES = REPOSITORY / "llmtop" / "data" / "prometheus-rules.yml"
SLOW, HUNG = 2, 1


@pytest.fixture
def nodes() -> Iterator[list[Path]]:
    """The folders of two nodes' sockets, with short paths."""
    made = [Path(tempfile.mkdtemp(prefix="lt-")) for _ in range(2)]
    yield made
    for one in made:
        shutil.rmtree(one, ignore_errors=True)


@pytest.mark.slow("test_what_is_wrong_comes_first_and_enter_shows_a_node finds the same fault")
def test_the_slow_rank_the_idle_gpu_and_then_the_hung_rank_are_named(nodes: list[Path], tmp_path: Path) -> None:
    eight = nvml_stub.Scenario.eight_gpus()
    eight.set(3, util=100, power_watts=120, sm_active=1, dram_active=0)
    scenario = eight.write(tmp_path / "scenario")
    with (
        GlooRanks(tmp_path, nodes, a_node=2, slow=SLOW, hung=HUNG) as job,
        Exporter("-i", "0.5", scenario=scenario, LLMTOP_DIR=str(nodes[0])) as first,
        Exporter("-i", "0.5", LLMTOP_DIR=str(nodes[1])) as second,
    ):
        for node, exporter in enumerate((first, second)):
            exporter.when("llmtop_comm_wait_seconds_total", least=2, seconds=110)
            assert {
                one[1]["rank"] for one in exporter.when("llmtop_rank_info") if one[0] == "llmtop_rank_info"
            } == {
                str(2 * node),
                str(2 * node + 1),
            }
        with Prometheus(tmp_path / "prometheus", [first.target, second.target], rules=RULES) as server:
            assert len(server.finds('up{job="llmtop"} == 1', 2)) == 2
            server.finds("rank:llmtop_late_seconds:mean1m", 4)
            # A stall of another rank leads the mean of few steps, but not that of a minute.
            late_seconds = "rank:llmtop_late_seconds:mean1m"
            slow = f'topk(1, {late_seconds}) > 0.02 and {late_seconds}{{rank="{SLOW}"}}'
            ((late, seconds),) = server.finds(slow, seconds=90)
            assert late["instance"] == second.target
            # Where a scrape came too late, the ranks of that node are missing until the next.
            server.finds("count by (run, uid) (pid:llmtop_rank:info) == 4")  # one run, on both nodes
            ((run, _),) = server.finds("run:llmtop_ranks:count == 4")
            assert run["run"] == late["run"]
            assert 0.02 < seconds < 60, "in seconds: other work makes a late rank later"
            with Terminal(
                [sys.executable, "-m", "llmtop", "cluster", "--prometheus", server.url, "-i", "1"], (140, 40)
            ) as pane:
                pane.shows("1 node up, 0 down", 60)  # both exporters are on this host
                pane.shows(f"WARNING straggler: rank {SLOW} on", 60)
                pane.shows("train.py", 60)
                pane.keys("q")
                assert pane.ends() == 0
            ((idle, _),) = server.finds("gpu:llmtop_busy_but_idle:bool")
            assert idle["gpu"] == "3"
            job.hang()
            ((behind, by),) = server.finds("rank:llmtop_collectives_behind:count > 0", seconds=90)
            assert (behind["rank"], behind["instance"], by) == (str(HUNG), first.target, 1)
            # Exporters that end take what they told with them.
            second.end()
            wait_for(lambda: not server.query('llmtop_rank_info{rank="3"}'), 60)
            server.finds('llmtop_rank_info{rank="0"}')
            assert "error" not in server.log.read_text().lower(), server.log.read_text()
