"""Thresholds that several packages use have one place."""

from __future__ import annotations

from collectors.prometheus.cluster import LATE_SHARE
from llmtop.model.gpu_busy import COPIES_OF_LINK
from llmtop.model.stall_thresholds import quiet_seconds
from llmtop.rules.recent_steps import RX_OF_LINK
from llmtop.rules.straggler import BEHIND_PCT


def test_a_training_is_quiet_after_five_seconds_and_five_usual_steps() -> None:
    assert [quiet_seconds(usual) for usual in (0.0, 1.0, 2.0)] == [5.0, 5.0, 10.0]


def test_live_rules_and_the_cluster_view_share_their_thresholds() -> None:
    assert LATE_SHARE == BEHIND_PCT[0] / 100 == 0.1
    assert RX_OF_LINK == COPIES_OF_LINK
