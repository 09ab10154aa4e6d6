"""The rules that ship, by Prometheus' own promtool: they are well formed, and name who is late, hung or idle."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from collectors.dcgm.page import UntrustedListener
from collectors.exporter import names, text
from collectors.exporter.stage import ExportStage, clock_family
from collectors.prometheus.queries import recorded_expressions
from llmtop.model.health import Checkpoint
from llmtop.model.links import Link
from llmtop.model.snapshot import Alert, CollectiveCount, CommunicatorRank, Host, StuckCommunicator
from tests.collectors.exporter.test_stage import now, training
from tests.support.processes import REPOSITORY
from tests.support.prometheus import NO_PROMETHEUS, find
from tests.support.snapshots import gpu as made_up_gpu

PROMTOOL = find("promtool")
pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMETHEUS),
]
RULES = REPOSITORY / "llmtop" / "data" / "prometheus-rules.yml"
GROUPS = re.findall(r"^  - name: (\S+)$", RULES.read_text(), re.MULTILINE)
RUN = 'run="train.py",uid="1000"'


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    text = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{text}}}", "values": values}


def rank(number: int, **more: str) -> dict[str, str]:
    """The labels of a rank: eight on each node."""
    return {
        "instance": f"node{number // 8}:9401",
        "job": "llmtop",
        "rank": str(number),
        "pid": str(100 + number),
        **more,
    }


def info(ranks: Iterable[int], run: str = "train.py", uid: str = "1000") -> list[dict[str, str]]:
    return [series("llmtop_rank_info", "1x40", run=run, uid=uid, **rank(one)) for one in ranks]


def gpu(number: int, name: str, value: float, **more: str) -> dict[str, str]:
    labels = {"instance": "node0:9401", "job": "llmtop", "gpu": str(number), "UUID": f"GPU-{number}", **more}
    return series(name, f"{value}x40", **{"hostname": "node0", **labels})


def check(
    tmp_path: Path, given: list[dict[str, str]], every: str = "15s", *, recorded: bool = True, **tests: Any
) -> None:
    """Have promtool evaluate the rules over these series, each 15 s or so often, and compare."""
    case = {
        "rule_files": [str(RULES)] if recorded else [],
        # promtool takes groups in any order otherwise, so that an alert sees the values of the time before.
        "group_eval_order": GROUPS if recorded else [],
        "evaluation_interval": every,
        "tests": [{"interval": "15s", "input_series": given, **tests}],
    }
    file = tmp_path / "case.yml"
    file.write_text(json.dumps(case))
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


def query(expr: str, *samples: tuple[str, float], at: str = "5m") -> dict[str, Any]:
    return {
        "expr": expr,
        "eval_time": at,
        "exp_samples": [{"labels": labels, "value": value} for labels, value in samples],
    }


def test_they_are_well_formed() -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "rules", str(RULES)], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


PORT = Link(
    device="mlx5_0",
    port=1,
    layer="InfiniBand",
    state="ACTIVE",
    rate_bytes_per_s=50e9,
    received_bytes=4,
    sent_bytes=4,
    errors={"symbol_error": 0},
)
CHECKPOINT = Checkpoint(
    step=2, at=1.0, seconds=3.0, blocked_seconds=1.0, interval_seconds=60.0, size_bytes=8, disk_free_bytes=9
)
STUCK = StuckCommunicator(
    id="0x1f",
    size=3,
    waiting_count=1,
    behind_count=1,
    behind=(CommunicatorRank(rank=1, host="10.0.0.2", pid=77, called=38),),
    missing_count=1,
    missing=(CommunicatorRank(rank=2, host="10.0.0.2", pid=78),),
)


def test_promtool_finds_no_fault_with_what_is_exported() -> None:
    """DCGM's names aside, which are DCGM's."""
    stage = ExportStage(interval=3600.0, ignored=lambda: UntrustedListener((1000,)))
    stage(
        now(
            host=Host(name="node", links=(PORT,)),
            gpus=(made_up_gpu(1),),
            ranks=(
                training(
                    gpu_uuid="GPU-00000001",
                    last_step_at=1.0,
                    last_work_at=2.0,
                    step_seconds_p50=0.5,
                    step_seconds_p99=0.6,
                    collectives=(CollectiveCount(group="0", enqueued=2, completed=1),),
                    metrics={"loss": 2.0, "grad_norm": 0.5, "loss_scale": 65536.0},
                    roles={"pp": 1},
                    step=5,
                    checkpoint=CHECKPOINT,
                ),
            ),
            alerts=(Alert(id="stalled", severity="critical", pid=100, since=1.0, summary="x"),),
            stuck_communicators=(STUCK,),
        )
    )
    page = generate_latest(stage).decode() + text.page([clock_family()]).decode()
    mine = "".join(f"{line}\n" for line in page.splitlines() if "DCGM" not in line)
    told = {line.split()[2] for line in mine.splitlines() if line.startswith("# TYPE")}
    gpu_times = {one.name for one in names.ALL if "gpu" in one.name and one.kind == "counter"}
    assert told == {one.name for one in names.ALL} - gpu_times
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=mine, capture_output=True, text=True, check=False, timeout=240
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def waiting(slow: int | None, *, by: str = "", ranks: int = 16) -> list[dict[str, str]]:
    """Ranks whose steps take a second, and which wait 0.3 s of it for others; the slow one 0.1 s."""
    found = []
    for one in range(ranks):
        wait = 1.5 if one == slow else 4.5
        found.append(series("llmtop_steps_total", "0+15x40", **rank(one)))
        found.append(series("llmtop_step_seconds_total", "0+15x40", **rank(one)))
        found.append(series(f"llmtop_comm_wait{by}_seconds_total", f"0+{wait}x40", **rank(one)))
        if by:
            found.append(series("llmtop_gpu_timed_steps_total", "0+15x40", **rank(one)))
            found.append(series("llmtop_comm_wait_seconds_total", "0+1x40", **rank(one)))
    return found


@pytest.mark.parametrize("by", ["", "_gpu"])
def test_the_rank_that_the_others_wait_for_is_named(tmp_path: Path, by: str) -> None:
    late = f'{{instance="node1:9401",job="llmtop",pid="111",rank="11",{RUN}}}'
    check(
        tmp_path,
        [*info(range(16)), *waiting(11, by=by)],
        promql_expr_test=[query("round(rank:llmtop_late_seconds:mean1m > 0.05, 0.001)", (late, 0.2))],
        alert_rule_test=[
            {
                "eval_time": "5m",
                "alertname": "LlmtopRankLate",
                "exp_alerts": [
                    {
                        "exp_labels": {**rank(11), "run": "train.py", "uid": "1000", "severity": "warning"},
                        "exp_annotations": {
                            "summary": "train.py waits for rank 11 on node1:9401: 20% of each step"
                        },
                    }
                ],
            }
        ],
    )


def test_nobody_is_named_among_equals_nor_across_runs(tmp_path: Path) -> None:
    check(
        tmp_path,
        [*info(range(8)), *info(range(8, 16), uid="1001"), *waiting(None)],
        promql_expr_test=[query("rank:llmtop_late_seconds:mean1m > 0.01")],
        alert_rule_test=[{"eval_time": "5m", "alertname": "LlmtopRankLate", "exp_alerts": []}],
    )


def test_two_users_runs_of_one_name_are_not_added_up(tmp_path: Path) -> None:
    tokens = [
        series(f"llmtop_{name}_total", f"0+{each}x40", **rank(one))
        for one in range(16)
        for name, each in (("tokens", 1500), ("steps", 15), ("step_seconds", 15))
    ]
    check(
        tmp_path,
        [*info(range(8)), *info(range(8, 16), uid="1001"), *tokens],
        promql_expr_test=[
            query(
                "run:llmtop_tokens:rate1m",
                (f"run:llmtop_tokens:rate1m{{{RUN}}}", 800),
                ('run:llmtop_tokens:rate1m{run="train.py",uid="1001"}', 800),
            )
        ],
    )


def test_the_rank_behind_in_a_collective_is_named_across_nodes(tmp_path: Path) -> None:
    counts = []
    for one in range(16):
        called = 39 if one == 13 else 40
        counts.append(series("llmtop_collective_enqueued", f"{called}x40", pg="0 default_pg", **rank(one)))
        counts.append(series("llmtop_collective_completed", "39x40", pg="0 default_pg", **rank(one)))
    behind = {**rank(13), "run": "train.py", "uid": "1000", "pg": "0 default_pg", "severity": "critical"}
    check(
        tmp_path,
        [*info(range(16)), *counts],
        alert_rule_test=[
            {
                "eval_time": "3m",
                "alertname": "LlmtopRankBehind",
                "exp_alerts": [
                    {
                        "exp_labels": behind,
                        "exp_annotations": {
                            "summary": "train.py hangs: rank 13 on node1:9401 is 1 behind in 0 default_pg",
                            "description": "On that node: py-spy dump --pid 113",
                        },
                    }
                ],
            },
            {
                "eval_time": "3m",
                "alertname": "LlmtopCollectiveHangs",
                "exp_alerts": [
                    {
                        "exp_labels": {
                            "run": "train.py",
                            "uid": "1000",
                            "pg": "0 default_pg",
                            "severity": "critical",
                        },
                        "exp_annotations": {
                            "summary": "train.py hangs: 15 ranks wait in a collective of 0 default_pg"
                        },
                    }
                ],
            },
        ],
    )


def card(
    number: int, util: float, power: float, sm: float | None, mem: float = 40, **more: str
) -> list[dict[str, str]]:
    found = [
        gpu(number, "DCGM_FI_DEV_GPU_UTIL", util, **more),
        gpu(number, "DCGM_FI_DEV_POWER_USAGE", power, **more),
        gpu(number, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 700, **more),
        gpu(number, "DCGM_FI_DEV_MEM_COPY_UTIL", mem, **more),
    ]
    return found if sm is None else [*found, gpu(number, "DCGM_FI_PROF_SM_ACTIVE", sm, **more)]


def test_a_gpu_that_says_full_and_draws_idle_power_is_named_under_both_names_of_its_node(tmp_path: Path) -> None:
    old = {"hostname": "", "Hostname": "node9"}
    given = [
        *card(0, 100, 640, 0.9),
        *card(1, 100, 120, 0.01),
        *card(2, 0, 80, 0.0),
        *card(3, 100, 140, None, mem=0),
        *card(4, 100, 140, None, mem=60),
        *card(5, 100, 120, 0.01, **old),
    ]
    check(
        tmp_path,
        given,
        promql_expr_test=[
            query(
                "gpu:llmtop_busy_but_idle:bool",
                *(
                    (f'gpu:llmtop_busy_but_idle:bool{{UUID="GPU-{n}",gpu="{n}",node="{node}"}}', 1)
                    for n, node in ((1, "node0"), (3, "node0"), (5, "node9"))
                ),
            )
        ],
    )


def test_two_exporters_that_tell_of_one_gpu_are_one(tmp_path: Path) -> None:
    check(
        tmp_path,
        [*card(0, 100, 350, 0.9), *card(0, 100, 350, 0.9, job="another")],
        promql_expr_test=[
            query("gpu:llmtop_power:ratio", ('gpu:llmtop_power:ratio{UUID="GPU-0",gpu="0",node="node0"}', 0.5))
        ],
    )


def test_an_xid_is_told_when_it_comes_and_not_for_ever(tmp_path: Path) -> None:
    labels = {"instance": "node0:9400", "hostname": "node0", "gpu": "0", "UUID": "GPU-0"}
    given = [
        series("DCGM_FI_DEV_XID_ERRORS", "0x8 79x80", **labels),
        series("DCGM_FI_DEV_XID_ERRORS", "_x8 13x80", **{**labels, "gpu": "1"}),
        series("DCGM_FI_DEV_XID_ERRORS", "0x90", **{**labels, "gpu": "2"}),
    ]
    told = {"severity": "warning", "node": "node0", "UUID": "GPU-0"}
    check(
        tmp_path,
        given,
        alert_rule_test=[
            {
                "eval_time": "4m",
                "alertname": "LlmtopXid",
                "exp_alerts": [
                    {
                        "exp_labels": {**told, "gpu": number},
                        "exp_annotations": {"summary": f"Xid {xid} on GPU {number} of node0"},
                    }
                    for number, xid in (("0", 79), ("1", 13))
                ],
            },
            {"eval_time": "19m", "alertname": "LlmtopXid", "exp_alerts": []},
        ],
    )


def test_a_node_that_no_longer_answers_and_one_that_tells_old_values(tmp_path: Path) -> None:
    given = [
        series("up", "1x8 0x40", **node(0)),
        series("llmtop_node_info", "1x8 stale", **node(0), hostname="node0"),
        series("up", "0x40", instance="other:9100", job="node"),
        series("llmtop_snapshot_timestamp_seconds", "0x40", **node(1)),
    ]
    check(
        tmp_path,
        given,
        alert_rule_test=[
            {
                "eval_time": "5m",
                "alertname": name,
                "exp_alerts": [
                    {"exp_labels": {**node(number), "severity": "warning"}, "exp_annotations": {"summary": words}}
                ],
            }
            for name, number, words in (
                (
                    "LlmtopNodeGone",
                    0,
                    "llmtop export on node0:9401 does not answer: the node, or the job there, has ended",
                ),
                ("LlmtopOld", 1, "what node1:9401 tells is 5m 0s old"),
            )
        ],
    )


def node(number: int, **more: str) -> dict[str, str]:
    return {"instance": f"node{number}:9401", "job": "llmtop", **more}


def fired(name: str, at: str, *alerts: tuple[dict[str, str], str]) -> dict[str, Any]:
    """What promtool is to find of one alert, with its summary."""
    return {
        "eval_time": at,
        "alertname": name,
        "exp_alerts": [
            {"exp_labels": {**labels, "severity": "warning"}, "exp_annotations": {"summary": words}}
            for labels, words in alerts
        ],
    }


@pytest.mark.slow("seven days; test_without_recording_rules_the_end_of_a_node_is_known_to_ten_seconds has minutes")
def test_a_node_that_died_three_days_ago_is_still_known_and_one_of_eight_days_ago_is_not(tmp_path: Path) -> None:
    given = [
        series("up", "1x20 0x14400", **node(0)),
        series("llmtop_node_info", "1x20 stale", **node(0), hostname="node0"),
    ]
    seen = 'node:llmtop_last_seen:timestamp{hostname="node0",instance="node0:9401",job="llmtop"}'
    case = [query("node:llmtop_last_seen:timestamp", (seen, 1200), at=at) for at in ("20m", "80m", "3d", "6d23h")]
    check(
        tmp_path,
        given,
        every="10m",
        interval="1m",
        promql_expr_test=[*case, query("node:llmtop_last_seen:timestamp", at="7d2h")],
        alert_rule_test=[
            {
                "eval_time": "3d",
                "alertname": "LlmtopNodeGone",
                "exp_alerts": [
                    {
                        "exp_labels": {**node(0), "severity": "warning"},
                        "exp_annotations": {
                            "summary": "llmtop export on node0:9401 does not answer: the node, or the job there, "
                            "has ended"
                        },
                    }
                ],
            }
        ],
    )


def test_without_recording_rules_the_end_of_a_node_is_known_to_ten_seconds(tmp_path: Path) -> None:
    given = [series("llmtop_node_info", "1x18 stale", **node(0), hostname="node0")]
    seen = recorded_expressions()["node:llmtop_last_seen:timestamp"]
    labels = '{hostname="node0",instance="node0:9401",job="llmtop"}'
    found = [query(seen, (labels, 270), at=at) for at in ("4m50s", "6m10s", "13m")]
    check(tmp_path, given, recorded=False, promql_expr_test=[*found, query(seen, (labels, 240), at="40m")])


def test_a_clock_is_named_above_two_seconds_and_a_slow_scrape_is_no_wrong_clock(tmp_path: Path) -> None:
    """The promtool's clock begins at 0 and a value is of its own instant."""
    offsets = {0: 0.0, 1: 1.9, 2: 2.5, 3: -2.5, 4: -120.0, 5: 4.0}
    given = []
    for number, ahead in offsets.items():
        given.append(series("llmtop_clock_seconds", f"{ahead}+15x40", **node(number)))
        given.append(series("scrape_duration_seconds", f"{3.5 if number == 5 else 0.01}x40", **node(number)))
    check(
        tmp_path,
        given,
        promql_expr_test=[
            query(
                "round(node:llmtop_clock_ahead:seconds, 0.01)",
                *((f'{{instance="node{n}:9401",job="llmtop"}}', v) for n, v in ((2, 2.49), (3, -2.5), (4, -120))),
            )
        ],
    )


def test_values_are_stale_by_the_exporters_own_limit_and_clock_and_a_textfile_by_a_minute(tmp_path: Path) -> None:
    given = []
    for number, (ahead, age, limit, has_clock) in enumerate(
        (
            (500, 9, 10, True),
            (-500, 11, 10, True),
            (0, 100, 180, True),  # llmtop export -i 60
            (0, 45, 10, False),  # a textfile
            (0, 75, 10, False),
        )
    ):
        given.append(series("llmtop_snapshot_timestamp_seconds", f"{ahead - age}+15x40", **node(number)))
        given.append(series("llmtop_snapshot_limit_seconds", f"{limit}x40", **node(number)))
        if has_clock:
            given.append(series("llmtop_clock_seconds", f"{ahead}+15x40", **node(number)))
    check(
        tmp_path,
        given,
        promql_expr_test=[
            query(
                "node:llmtop_stale:seconds",
                *(
                    (f'node:llmtop_stale:seconds{{instance="node{n}:9401",job="llmtop"}}', v)
                    for n, v in ((1, 11), (4, 75))
                ),
            )
        ],
        alert_rule_test=[
            fired(
                "LlmtopOld",
                "5m",
                (node(1), "what node1:9401 tells is 11s old"),
                (node(4), "what node4:9401 tells is 1m 15s old"),
            )
        ],
    )


def test_ports_are_named_by_the_thresholds_of_the_live_rule(tmp_path: Path) -> None:
    def port(number: int, error: str, values: str) -> dict[str, str]:
        return series("llmtop_link_errors_total", values, device="mlx5_0", port="1", error=error, **node(number))

    check(
        tmp_path,
        [
            port(0, "symbol_error", "5x20 14x20"),
            port(1, "symbol_error", "5x20 15x20"),
            port(2, "link_downed", "3x20 4x20"),
            port(3, "out_of_sequence", "0+1000x40"),
            port(4, "symbol_error", "70000x40"),
            port(5, "local_ack_timeout_err", "0x20 40x20"),
        ],
        alert_rule_test=[
            {
                "eval_time": "6m",
                "alertname": "LlmtopLinkErrors",
                "exp_alerts": [
                    {
                        "exp_labels": {
                            **node(number, device="mlx5_0", port="1", error=error, severity="warning"),
                        },
                        "exp_annotations": {
                            "summary": f"mlx5_0 port 1 on node{number}:9401 has {rise} more {error} in 10m",
                            "description": "On that node: ibstat; check the cable and the switch port.",
                        },
                    }
                    for number, error, rise in (
                        (1, "symbol_error", 10),
                        (2, "link_downed", 1),
                        (5, "local_ack_timeout_err", 40),
                    )
                ],
            }
        ],
    )


def test_a_young_counter_s_rate_is_over_its_own_span(tmp_path: Path) -> None:
    """An exporter that was first fetched 30 s ago, at 20 GB/s; one that was started again; one fetched once."""
    port = {"device": "mlx5_0", "port": "1"}
    given = [
        series("llmtop_link_receive_bytes_total", "_x18 9e15+3e11x2", **port, **node(0)),
        series("llmtop_snapshot_seconds_total", "_x18 1+15x2", **node(0)),
        series("llmtop_link_receive_bytes_total", "0+3e11x20", **port, **node(1)),
        series("llmtop_snapshot_seconds_total", "9000+15x18 1 16", **node(1)),
        series("llmtop_link_receive_bytes_total", "_x20 7e15", **port, **node(2)),
        series("llmtop_snapshot_seconds_total", "_x20 1", **node(2)),
    ]
    name = "link:llmtop_receive:bytes_per_second"
    check(
        tmp_path,
        given,
        promql_expr_test=[
            query(name, (f'{name}{{device="mlx5_0",instance="node0:9401",job="llmtop",port="1"}}', 2e10))
        ],
    )


def test_missing_ranks_are_an_alert_once_they_have_reported_and_others_still_step(tmp_path: Path) -> None:
    given = []
    for one in range(4):
        values, step = ("1x12 stale", "0+15x12 stale") if one == 2 else ("1x40", "0+15x40")
        given.append(series("llmtop_rank_info", values, run="train.py", uid="1000", **rank(one)))
        given.append(series("llmtop_world_size", values.replace("1x", "5x"), **rank(one)))
        given.append(series("llmtop_steps_total", step, **rank(one)))
        given.append(series("llmtop_step_seconds_total", step, **rank(one)))
    missing = ("LlmtopRanksMissing", {"run": "train.py", "uid": "1000"}, "train.py: 2 ranks do not report")
    check(
        tmp_path,
        given,
        promql_expr_test=[
            query("run:llmtop_ranks_missing:count", (f"run:llmtop_ranks_missing:count{{{RUN}}}", 1), at="2m"),
            query("run:llmtop_ranks_missing:count", (f"run:llmtop_ranks_missing:count{{{RUN}}}", 2), at="6m"),
        ],
        alert_rule_test=[
            {"eval_time": "2m45s", "alertname": missing[0], "exp_alerts": []},
            {
                "eval_time": "6m",
                "alertname": missing[0],
                "exp_alerts": [
                    {
                        "exp_labels": {**missing[1], "severity": "warning"},
                        "exp_annotations": {"summary": missing[2], "description": "llmtop cluster names them."},
                    }
                ],
            },
        ],
    )


def steps_of(ranks: Iterable[int]) -> list[dict[str, str]]:
    """The steps of a run: one a second."""
    counters = ("llmtop_steps_total", "llmtop_step_seconds_total")
    return [series(name, "0+15x40", **rank(one)) for one in ranks for name in counters]


def alerts(tmp_path: Path, given: list[dict[str, str]], *expected: tuple[str, dict[str, str]], at: str) -> None:
    """Compare the alerts on health and risk, by name, severity and rank."""
    names_of = {"LlmtopLossNotFinite", "LlmtopLossScaleCollapsed", "LlmtopWorkAtRisk", "LlmtopCheckpointInterval"}
    found = []
    for name in sorted(names_of | {"LlmtopCheckpointDiskFull"}):
        samples = [(labels, 1) for alert, labels in expected if alert == name]
        text = [
            (
                "ALERTS{"
                + ",".join(f'{k}="{v}"' for k, v in {"alertname": name, "alertstate": "firing", **labels}.items())
                + "}",
                1,
            )
            for labels, _ in samples
        ]
        found.append(query(f'ALERTS{{alertname="{name}",alertstate="firing"}}', *text, at=at))
    check(tmp_path, given, promql_expr_test=found)


RUN_LABELS = {"run": "train.py", "uid": "1000"}


def saved(age: str, **values: str) -> list[dict[str, str]]:
    """The checkpoint of rank 0 of a run of two ranks; the node's clock starts at 100,000 s."""
    return [
        *info(range(2)),
        *steps_of(range(2)),
        series("llmtop_snapshot_timestamp_seconds", "100000+15x40", instance="node0:9401", job="llmtop"),
        series("llmtop_checkpoint_timestamp_seconds", age, **rank(0)),
        *(series(f"llmtop_checkpoint_{name}", value, **rank(0)) for name, value in values.items()),
    ]


def test_a_loss_of_nan_is_named_with_its_rank(tmp_path: Path) -> None:
    given = [
        *info(range(2)),
        series("llmtop_loss", "2.5x10" + " NaN" * 25, **rank(1)),
        series("llmtop_loss", "2.5x40", **rank(0)),
    ]
    alerts(tmp_path, given, at="1m")
    alerts(tmp_path, given, ("LlmtopLossNotFinite", {"severity": "critical", **rank(1, **RUN_LABELS)}), at="4m")


def test_a_loss_scale_below_one_has_collapsed_and_a_large_one_has_not(tmp_path: Path) -> None:
    given = [
        *info(range(2)),
        series("llmtop_loss_scale", "1024 256 16 0.5x40", **rank(1)),
        series("llmtop_loss_scale", "16777216 65536 1024x40", **rank(0)),
    ]
    alerts(
        tmp_path, given, ("LlmtopLossScaleCollapsed", {"severity": "critical", **rank(1, **RUN_LABELS)}), at="5m"
    )


def test_work_is_at_risk_from_two_hours_on_and_only_while_steps_are_made(tmp_path: Path) -> None:
    at_risk = ("LlmtopWorkAtRisk", {"severity": "warning", **RUN_LABELS})
    alerts(tmp_path, saved("92950x40"), at="1m")
    alerts(tmp_path, saved("92950x40"), at_risk, at="5m")
    still = [one for one in saved("92950x40") if "steps" not in one["series"] and "step_s" not in one["series"]]
    alerts(tmp_path, still, at="5m")


def test_the_interval_far_from_the_optimum_is_named(tmp_path: Path) -> None:
    """Two ranks: a failure in 25,000 h; 30 s each 60 s lose half of the time, 0.01 s each 60 s nothing."""
    often = ("LlmtopCheckpointInterval", {"severity": "info", **RUN_LABELS})
    alerts(tmp_path, saved("100000+15x40", interval_seconds="60x40", blocked_seconds="30x40"), often, at="5m")
    alerts(tmp_path, saved("100000+15x40", interval_seconds="60x40", blocked_seconds="0.01x40"), at="5m")


def test_a_disk_without_room_for_the_next_checkpoint_is_named(tmp_path: Path) -> None:
    given = saved("100000+15x40", size_bytes="1000x40", disk_free_bytes="1500-100x40")
    full = ("LlmtopCheckpointDiskFull", {"severity": "critical", **rank(0, **RUN_LABELS)})
    alerts(tmp_path, given, at="1m")
    alerts(tmp_path, given, full, at="5m")
