"""Thresholds that several packages use have one place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import llmtop
from collectors.prometheus.cluster_view import LateRank
from llmtop.model import stall_thresholds
from llmtop.model.gpu_busy import COPIES_OF_LINK
from llmtop.model.stall_thresholds import quiet_seconds
from llmtop.rules import rule_text
from llmtop.rules.recent_steps import RX_OF_LINK
from llmtop.rules.straggler import BEHIND_PCT
from tests.support.processes import environment


def test_a_training_is_quiet_after_five_seconds_and_five_usual_steps() -> None:
    assert [quiet_seconds(usual) for usual in (0.0, 1.0, 2.0)] == [5.0, 5.0, 10.0]


def test_live_rules_and_the_cluster_view_share_their_thresholds() -> None:
    assert BEHIND_PCT[0] == 10.0
    late = [
        LateRank(run="r", rank="0", node="n", pid="1", seconds=1.0, step_share=share)
        for share in (0.09, 0.1, None)
    ]
    assert [one.is_straggler for one in late] == [False, True, False]
    rules = (Path(llmtop.__file__).parent / "data" / "prometheus-rules.yml").read_text()
    assert f"run:llmtop_step_seconds:median1m > {BEHIND_PCT[0] / 100:g}\n" in rules
    assert RX_OF_LINK == COPIES_OF_LINK


def test_the_cluster_view_holds_ranks_to_the_configured_threshold(tmp_path: Path) -> None:
    folder = tmp_path / "llmtop"
    folder.mkdir()
    (folder / "config.toml").write_text("[alerts.straggler]\nstep_pct = 5\n")
    program = (
        "from llmtop import config; config.load()\n"
        "from collectors.prometheus.cluster_view import LateRank\n"
        "made = lambda share: LateRank(run='r', rank='0', node='n', pid='1', seconds=1.0, step_share=share)\n"
        "print([made(0.04).is_straggler, made(0.06).is_straggler])"
    )
    env = environment(XDG_CONFIG_HOME=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout == "[False, True]\n"


def test_what_alerts_say_of_a_hang_is_made_of_its_thresholds() -> None:
    stalled, hung = rule_text("stalled").condition, rule_text("hung_collective").condition
    assert (
        f"for {stall_thresholds.STALLED_SECONDS:.0f} s and for {stall_thresholds.STALLED_STEPS:.0f} times"
        in stalled
    )
    assert (
        f"no step ends for {stall_thresholds.QUIET_S:.0f} s and for {stall_thresholds.QUIET_STEPS:.0f} times"
        in hung
    )
    assert f"no rank enters another one for {stall_thresholds.COUNTS_STILL_S:.0f} s" in hung
