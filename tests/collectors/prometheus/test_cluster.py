"""64 made-up nodes, fetched by real servers: what is planted is named, by rules or without."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.prometheus.client import Client
from collectors.prometheus.cluster import Cluster
from collectors.prometheus.cluster_view import ClusterView
from collectors.prometheus.queries import Queries, recorded_expressions, union_query
from collectors.prometheus.source import poll_interval
from tests.support.processes import REPOSITORY, environment, repeat_until, wait_for
from tests.support.prometheus import NO_PROMETHEUS, VictoriaMetrics, find
from tests.support.simulated_nodes import SLOW_BY, Nodes

RULES = REPOSITORY / "llmtop" / "data" / "prometheus-rules.yml"
needs_prometheus = pytest.mark.skipif(find("prometheus") is None, reason=NO_PROMETHEUS)
needs_victoria = pytest.mark.skipif(find("victoria-metrics") is None, reason="no VictoriaMetrics")
SLOW, IDLE = 77, (30, 5)


def seen_when(cluster: Cluster, holds: Callable[[ClusterView], object], seconds: float = 90.0) -> ClusterView:
    """The view as soon as something holds for it."""
    last: list[ClusterView] = []

    def look() -> ClusterView | None:
        last[:] = [cluster.query_view()]
        time.sleep(0.5)
        return last[0] if holds(last[0]) else None

    try:
        return wait_for(look, seconds) or last[0]
    except AssertionError:
        view = last[0]
        found = (view.nodes_down, view.hung[:3], view.problems, view.runs, view.late, view.grave)
        raise AssertionError(found) from None


def both_named(view: ClusterView) -> bool:
    return bool(view.late) and any("1 GPU at low power" in node.reasons for node in view.nodes)


def all_there(view: ClusterView) -> bool:
    """Rules may have been evaluated when some nodes had been fetched only."""
    complete = all(len(node.cells) == 8 for node in view.nodes)
    return complete and view.nodes_up == 64 and [run.ranks for run in view.runs] == [512]


@pytest.mark.slow("64 nodes for a minute; test_what_is_wrong_comes_first_and_enter_shows_a_node has 12")
@pytest.mark.prometheus
@needs_prometheus
@pytest.mark.parametrize(
    "rules",
    [True, pytest.param(False, marks=pytest.mark.slow("the same plants without recording rules"))],
    ids=["rules", "no rules"],
)
def test_what_is_planted_among_64_nodes_is_named(tmp_path: Path, rules: bool) -> None:
    nodes = Nodes(64)
    nodes.slow, nodes.idle = SLOW, IDLE
    # 64 pages a second are a fifth of a core: with less than that, some node is always "down" (too late).
    with nodes, nodes.prometheus(tmp_path, RULES if rules else None, "5s") as server:
        cluster = Cluster(Client(server.url, limit=60))
        view = seen_when(cluster, lambda view: all_there(view) and both_named(view) and view.rules is rules)
        fetched = max(value for _, value in server.query("count_over_time(up[5m])"))
        (late,) = view.late
        assert (late.rank, late.node) == (str(SLOW), f"node{SLOW // 8:03d}")
        assert late.seconds == pytest.approx(SLOW_BY, rel=0.05)
        worst = view.nodes[0]
        assert worst.name == f"node{IDLE[0]:03d}"
        assert "1 GPU at low power" in worst.reasons
        assert worst.cells[IDLE[1]].power_ratio < 0.2
        assert view.nodes[1].name == late.node
        assert not [node.name for node in view.nodes[2:] if node.badness]
        assert [(run.name, run.ranks) for run in view.runs] == [("train.py · slurm 4711", 512)]
        assert view.problems == ()
        assert fetched >= 2, "a rate is of two"
        nodes.behind, nodes.down = 200, {5}
        nodes.xid, nodes.ecc, nodes.hot = (7, 1), (8, 2), (9, 3)
        gone = seen_when(
            cluster,
            lambda view: (
                view.nodes_down == 1
                and any(one.rank == "200" and one.waiting > 400 for one in view.hung)
                and len(view.grave) > 3
            ),
        )
        assert gone.nodes[0].name == "node005"
        assert "down" in gone.nodes[0].reasons
        assert {("xid", "node007", "1"), ("ecc", "node008", "2"), ("hot", "node009", "3")} <= {
            (one.id, one.node, one.gpu) for one in gone.grave
        }
        hung = next(one for one in gone.hung if one.rank == "200")
        assert (hung.node, hung.behind, hung.process_group) == ("node025", 1, "0 default_pg")
        assert hung.waiting > 400
        charts = cluster.charts("node030", 60)
        assert charts.problems == ()
        assert all(any(value is not None for value in series.values) for series in charts.series)
        past = cluster.query_view(at=time.time() - 3600)
        assert past.pinned
        assert (past.nodes_up, past.late, past.rules) == (None, (), None)
        seen_when(cluster, lambda view: view.nodes_up == 63)


@pytest.mark.slow("test_what_is_wrong_comes_first_and_enter_shows_a_node finds the same fault")
@pytest.mark.prometheus
@needs_victoria
def test_victoriametrics_tells_the_same(tmp_path: Path) -> None:
    nodes = Nodes(16)
    nodes.slow, nodes.idle = SLOW, (3, 5)
    with nodes, VictoriaMetrics(tmp_path, nodes.scrape_configs()) as server:
        cluster = Cluster(Client(server.url, limit=60))
        view = seen_when(cluster, lambda view: view.nodes_up == 16 and both_named(view))
        assert view.problems == ()
        assert (view.late[0].rank, view.late[0].node) == (str(SLOW), f"node{SLOW // 8:03d}")
        assert view.nodes[0].name == "node003"
        assert view.rules is False
        nodes.behind = 100
        hung = seen_when(cluster, lambda view: any(one.rank == "100" for one in view.hung))
        assert hung.problems == ()
        assert all(series.values for series in cluster.charts("node003", 60).series)


@pytest.mark.slow("test_an_odd_answer_is_a_sentence finds the same fault")
@pytest.mark.prometheus
@needs_prometheus
def test_a_thousand_labels_more_and_one_run_alone(tmp_path: Path) -> None:
    nodes = Nodes(2)
    nodes.slow = 3
    nodes.extra = "".join(f',label_{number}="x"' for number in range(1000))
    with nodes, nodes.prometheus(tmp_path, interval="3s") as server:  # on a busy machine pages take over 1 s
        client = Client(server.url, limit=60)
        mine = seen_when(Cluster(client, "train.py · slurm 4711"), lambda view: view.late and view.nodes_up == 2)
        assert mine.problems == ()
        assert mine.late[0].rank == "3"
        other = seen_when(Cluster(client, 'an"other'), lambda view: view.nodes_up == 2)
        assert (other.runs, other.late, other.problems) == ((), (), ())


@pytest.mark.slow("test_what_is_wrong_comes_first_and_enter_shows_a_node finds the same fault")
@pytest.mark.prometheus
@needs_prometheus
def test_once_and_json_say_the_same_without_a_screen(tmp_path: Path) -> None:
    def llmtop(*arguments: str, code: int = 0, **extra: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "llmtop", "cluster", *arguments],
            env=environment(**extra),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    nodes = Nodes(4)
    nodes.slow = 20
    with nodes, nodes.prometheus(tmp_path, interval="3s") as server:  # on a busy machine pages take over 1 s
        seen_when(Cluster(Client(server.url, limit=60)), lambda view: view.late and view.nodes_up == 4)
        text, _ = repeat_until(
            lambda: llmtop("--prometheus", server.url, "--once"),
            lambda found: "4 nodes up, 0 down" in found[0] and "rank 20" in found[0],
        )
        assert "rank 20 on node002 (pid 1004) adds 120 ms per step" in text
        view = repeat_until(
            lambda: json.loads(llmtop("--once", "--json", LLMTOP_PROMETHEUS=server.url)[0]),
            lambda view: view["nodes_up"] == 4 and view["late"],
        )
        assert view["late"][0]["rank"] == "20"
        stream = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "cluster", "--prometheus", server.url, "--json", "-i", "1"],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert stream.stdout is not None
        for _ in range(2):
            assert any(json.loads(line)["nodes_up"] == 4 for line in stream.stdout)
        stream.terminate()
        assert stream.wait(240) == 0
    _, said = llmtop("--prometheus", server.url, "--once", code=3)
    assert "cannot be reached: Connection refused" in said
    _, said = llmtop(code=2)
    assert "--prometheus http://node:9090" in said
    _, said = llmtop("--prometheus", "http://127.0.0.1:1", code=2)
    assert "--once" in said, "no terminal"


def test_without_rules_the_same_is_asked_as_the_rules_record() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the rules")
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = {one["record"]: one["expr"] for group in groups for one in group["rules"] if "record" in one}
    assert set(recorded_expressions()) == set(rules)
    for name, expr in rules.items():
        expected = " ".join(expr.split())
        for other in sorted(set(rules) - {name}, key=len, reverse=True):
            expected = expected.replace(other, f"({recorded_expressions()[other]})")
        assert " ".join(recorded_expressions()[name].split()) == expected
        # A rule that names itself holds longer once it holds: nothing replaces that name.
        held = [other for other, made in rules.items() if other in made]
        rest = recorded_expressions()[name]
        for other in held:
            rest = rest.replace(other, "")
        assert ":llmtop" not in rest


def test_six_questions_a_refresh_and_no_more() -> None:
    asked: list[str] = []

    class Counting(Client):
        def query(self, promql: str, at: float | None = None):  # type: ignore[no-untyped-def]
            asked.append(promql)
            return super().query(promql, at)

    Cluster(Counting("http://127.0.0.1:1")).query_view()
    assert len(asked) == 1, "nobody is there"
    assert union_query(("a", "x"), ("b", "y")).count("label_replace") == 2
    assert "pid:llmtop_rank:info" not in Queries(rules=False).ranks


def test_it_asks_no_faster_than_the_server_bears() -> None:
    assert poll_interval(5.0, 0.1, True) == 5.0
    assert poll_interval(5.0, 4.0, True) == 16.0
    assert poll_interval(5.0, 100.0, True) == 60.0
    assert poll_interval(5.0, 0.1, False) == 15.0
    assert poll_interval(300.0, 100.0, True) == 300.0
