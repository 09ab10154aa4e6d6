"""Each bottleneck has one id and one set of words, wherever it is told."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from llmtop.analysis.verdict import CAUSE_OF
from llmtop.model.bottlenecks import BOTTLENECKS, AlertId, BottleneckId, BoundId, LossId, Verdict, find_bottleneck
from llmtop.model.severity import SEVERITIES, Severity, severity_rank
from llmtop.model.snapshot import Alert
from llmtop.report.advice.table import ADVICE, FindingId
from llmtop.rules import COMMUNICATOR_RULES, GPU_RULES, JOB_RULES, LINK_RULES, RANK_RULES
from tui.paint import alert_style

RULES = (*GPU_RULES, *RANK_RULES, *JOB_RULES, *COMMUNICATOR_RULES, *LINK_RULES)
HERE = Path(__file__).parents[2]


def test_the_ids_are_those_of_the_contract() -> None:
    assert set(get_args(Verdict)) == {
        *("gpu_bound", "launch_bound", "input_bound", "sync_bound", "h2d_bound", "communication_bound"),
        *("idle", "unknown"),
    }
    assert set(get_args(AlertId)) == {
        *("low_power_full_util", "stalled", "launch_bound", "input_bound", "sync_bound", "h2d_bound"),
        *("memory_bound", "communication_bound", "straggler", "throttled", "power_capped", "memory_pressure"),
        *("memory_growth", "gpu_error", "hung_collective", "slower", "outside", "rare_steps", "low_activity"),
        *("link_errors", "non_finite", "loss_spike", "grad_norm_jump", "loss_scale_collapse", "loss_flat"),
        *("ranks_diverged", "work_at_risk", "checkpoint_interval", "checkpoint_disk_full", "imbalance"),
    }
    assert get_args(Severity) == ("info", "warning", "critical")


def test_every_id_has_words_and_every_producer_uses_known_ids() -> None:
    assert set(BOTTLENECKS) == set(get_args(BottleneckId))
    assert {rule.id for rule in RULES} == set(get_args(AlertId))
    assert {name for rule in RULES for name in rule.covered_by} <= set(get_args(AlertId))
    assert {*CAUSE_OF.values(), "communication_bound"} == set(get_args(LossId))
    assert set(ADVICE) == set(get_args(FindingId))
    assert set(get_args(BoundId)) <= set(get_args(AlertId)) & set(get_args(Verdict)) & set(get_args(LossId))


@pytest.mark.parametrize("field", ["badge", "title", "sentence"])
def test_no_two_bottlenecks_share_their_words(field: str) -> None:
    words = [getattr(known, field) for known in BOTTLENECKS.values()]
    assert len(set(words)) == len(words)
    assert all(words)


def test_the_words_stand_in_no_second_file() -> None:
    """A second table would drift from the first; screens and reports ask for the words."""
    own = HERE / "llmtop" / "model" / "bottlenecks.py"
    files = [file for folder in ("llmtop", "tui", "collectors") for file in (HERE / folder).rglob("*.py")]
    assert own in files
    others = "\n".join(file.read_text() for file in files if file != own)
    for known in BOTTLENECKS.values():
        assert f'"{known.badge}"' not in others
        assert known.sentence not in others


def test_severities_are_ordered_and_a_word_of_a_newer_version_is_mild() -> None:
    assert sorted(["critical", "info", "warning"], key=severity_rank) == list(SEVERITIES)
    assert severity_rank("fatal") == 0


def test_what_a_newer_version_tells_is_shown_by_its_id() -> None:
    assert find_bottleneck("from_a_newer_version") is None
    newer = Alert(id="of_tomorrow", severity="critical", since=0.0, summary="")
    assert alert_style.alert_word(newer) == "OF TOMORROW"
    assert alert_style.sentence(newer) == alert_style.title(newer) == ""
    known = Alert(id="h2d_bound", severity="warning", since=0.0, summary="")
    assert alert_style.alert_word(known) == "H2D-BOUND"
    assert alert_style.sentence(known) == "The GPU waits for copies between host and device. "
