"""Rules for Prometheus, rendered from the live rules: with their thresholds, and in agreement with them."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from collectors.prometheus import fleet_rules
from llmtop.model import links
from llmtop.model.bottlenecks import AlertId
from llmtop.model.links import Link
from llmtop.model.snapshot import Host
from llmtop.rules.engine import Rules
from tests.support import fleet_agreement
from tests.support.processes import REPOSITORY, environment
from tests.support.prometheus import NO_PROMETHEUS, find
from tests.support.snapshots import snapshot

CONFIGURED = """
[alerts]
off = ["memory_bound", "hung_collective"]
[alerts.low_power_full_util]
power_pct = 30
sm_pct = 40
[alerts.straggler]
step_pct = 15
"""


def exported(tmp_path: Path, text: str) -> str:
    """What `llmtop export --rules` prints with a configuration."""
    (tmp_path / "llmtop").mkdir()
    (tmp_path / "llmtop" / "config.toml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", "export", "--rules"],
        env=environment(XDG_CONFIG_HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return done.stdout


def test_the_file_that_ships_is_what_is_rendered_without_a_configuration(tmp_path: Path) -> None:
    shipped = (REPOSITORY / "llmtop" / "data" / "prometheus-rules.yml").read_text()
    assert exported(tmp_path, "") == shipped, "llmtop export --rules > llmtop/data/prometheus-rules.yml"


def test_configured_thresholds_and_alerts_that_are_off_are_followed(tmp_path: Path) -> None:
    rules = exported(tmp_path, CONFIGURED)
    assert "gpu:llmtop_power:ratio < bool 0.3)" in rules
    assert "(DCGM_FI_PROF_SM_ACTIVE) < 0.4\n" in rules
    assert "run:llmtop_step_seconds:median1m > 0.15\n" in rules
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    usual = set(re.findall(r"- alert: (\w+)", fleet_rules.render()))
    assert usual - alerts == {
        "LlmtopGpuMemoryBound",
        "LlmtopRankBehind",
        "LlmtopCollectiveHangs",
        "LlmtopNcclHangs",
    }
    if find("promtool"):
        (tmp_path / "rules.yml").write_text(rules)
        subprocess.run(
            [str(find("promtool")), "check", "rules", str(tmp_path / "rules.yml")], check=True, timeout=240
        )


def test_each_live_rule_has_a_fleet_rule_or_a_missing_series() -> None:
    assert fleet_rules.covered_ids() | set(fleet_rules.MISSING) == set(get_args(AlertId))
    assert not fleet_rules.covered_ids() & set(fleet_rules.MISSING)
    for alert_id, series in fleet_rules.MISSING.items():
        assert f"# - {alert_id}: {series[:60]}" in fleet_rules.render()


@pytest.mark.slow("24 situations by promtool; test_ports_whose_errors_rise_are_the_same_for_both has one")
@pytest.mark.prometheus
@pytest.mark.skipif(find("promtool") is None, reason=NO_PROMETHEUS)
def test_fleet_and_live_rules_agree() -> None:
    """24 situations; `python -m tests.support.fleet_agreement` has 200."""
    observed = fleet_agreement.by_promtool(24, 3)
    missed, extra, both = fleet_agreement.disagreements(observed)
    assert not extra
    assert len(missed) <= 1
    assert both.total() >= 4


@pytest.mark.prometheus
@pytest.mark.skipif(find("promtool") is None, reason=NO_PROMETHEUS)
def test_ports_whose_errors_rise_are_the_same_for_both(tmp_path: Path) -> None:
    """Sixty ports over 25 minutes: quiet, with rare errors, bursts and restarted adapters, by chance.

    promtool evaluates groups of rules in no fixed order, so an alert may be of values one round old.
    A port that changes in the last round is left out.
    """
    dice, moments = random.Random(11), range(0, 1501, 15)
    ports = {number: _error_counts(dice, len(moments)) for number in range(60)}
    rules, live = Rules(), set[str]()
    before: set[str] = set()
    for place, at in enumerate(moments):
        shown = tuple(
            Link(device=f"mlx5_{number}", port=1, errors={error: counts[place]})
            for number, (error, counts) in ports.items()
        )
        alerts = rules.apply(snapshot(float(at), host=Host(name="node", links=shown))).alerts
        before, live = live, {str(alert.evidence["device"]) for alert in alerts if alert.id == "link_errors"}
    changed = "|".join(sorted(live ^ before))
    labels = 'instance="node:9401",job="llmtop",port="1"'
    case = {
        "rule_files": [str(REPOSITORY / "llmtop" / "data" / "prometheus-rules.yml")],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    {
                        "series": f'llmtop_link_errors_total{{device="mlx5_{number}",error="{error}",{labels}}}',
                        "values": " ".join(map(str, counts)),
                    }
                    for number, (error, counts) in ports.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": 'count by (device) (ALERTS{alertname="LlmtopLinkErrors",alertstate="firing",'
                        f'device!~"{changed}"}})',
                        "eval_time": "25m",
                        "exp_samples": [
                            {"labels": f'{{device="{device}"}}', "value": 1} for device in sorted(live & before)
                        ],
                    }
                ],
            }
        ],
    }
    (tmp_path / "case.json").write_text(json.dumps(case))
    command = [str(find("promtool")), "test", "rules", str(tmp_path / "case.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 10 <= len(live) <= 50, "both kinds are among them"


def _error_counts(dice: random.Random, count: int) -> tuple[str, list[int]]:
    """The name of a counter, and its values over time."""
    error = dice.choice((*links.ALERTING, "out_of_sequence"))
    chance, size = dice.choice(((0.0, 0), (0.05, 1), (0.2, 1), (0.02, 30), (0.1, 4)))
    found, now = [], dice.choice((0, 3, 65_000))
    for _ in range(count):
        now += dice.randint(1, size) if dice.random() < chance else 0
        now = 0 if dice.random() < 0.002 else now
        found.append(now)
    return error, found
