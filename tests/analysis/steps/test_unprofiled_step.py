"""Shares by the undisturbed run: device time over the step before and after, what the profiler added left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.report.model import Report
from tests.support import written
from tests.support.traces import Capture, write_sqlite

CAPTURED = 0.100
"""Seconds; the step as the profiler makes it."""


def _capture(launch: float = 30_000, input_us: float = 10_000) -> Capture:
    """Steps of 100 ms: waiting for input, then launching so slowly that the GPU waits, then the GPU's own work."""
    capture = Capture()
    for step in range(6):
        begin = step * 100_000
        capture.range("step", begin, begin + 100_000)
        if input_us:
            capture.range("dataload", begin, begin + input_us)
        at, done = begin + input_us, begin + input_us + launch
        while at + 1000 <= done:
            capture.kernel(at + 20, at + 30, launched=at + 5, took=5)
            at += 1000
        capture.kernel(done, begin + 100_000, launched=done - 5, took=3)
    return capture


def _report(folder: Path, step_seconds: Any, capture: Capture | None = None) -> Report:
    write_sqlite(folder / "trace.sqlite", [capture or _capture()])
    if step_seconds is not None:
        (folder / "capture.json").write_text(json.dumps({"command": "python t.py", "step_seconds": step_seconds}))
    return analyze(folder)


def test_without_the_undisturbed_step_shares_are_marked_as_the_profiler_s_too(tmp_path: Path) -> None:
    report = _report(tmp_path, None)
    assert report.verdict == "launch_bound"
    assert report.correction is not None
    assert report.correction.reason == "the step time without the profiler is unknown"
    assert any("the profiler itself" in note for note in report.notes)


def test_the_verdict_is_made_from_the_undisturbed_step(tmp_path: Path) -> None:
    # Of the 30 ms that launching takes, the profiler adds 25.
    report = _report(tmp_path, {"before_p50": 0.074, "after_p50": 0.076})
    found = report.correction
    assert found is not None
    assert found.reason == ""
    assert found.undisturbed_seconds == pytest.approx(0.075)
    assert found.captured_seconds == pytest.approx(CAPTURED)
    assert found.device_seconds == pytest.approx(0.060, abs=0.0005)
    assert found.busy_pct == pytest.approx(80, abs=1)
    assert report.verdict == "input_bound"
    assert found.lost_pct["input_bound"] == pytest.approx(13.3, abs=0.5)
    assert found.lost_pct["launch_bound"] == pytest.approx(6.5, abs=0.7)
    assert found.busy_pct + sum(found.lost_pct.values()) == pytest.approx(100, abs=0.5)


def test_the_report_leads_with_it_and_says_what_the_profiler_added(tmp_path: Path) -> None:
    report = _report(tmp_path, {"before_p50": 0.075, "after_p50": 0.075})
    assert report.summary.startswith(
        "input-bound: the GPU waits for the next batch. A step takes 75.0 ms without the profiler, and the GPU "
        "works"
    )
    assert "the profiler added 25.0 ms (33.3 %), which is not counted" in report.summary
    assert "without the profiler" in " ".join(written.text(report).split())
    finding = next(finding for finding in report.findings if finding.id == "input_bound")
    assert finding.share_pct == pytest.approx(13.3, abs=0.5)
    assert finding.saves_at_most_ms == pytest.approx(10, abs=0.5)


def test_steps_that_a_profiler_leaves_longer_are_no_measure(tmp_path: Path) -> None:
    report = _report(tmp_path, {"before_p50": 0.075, "after_p50": 0.099, "profiler_stays": True})
    assert report.correction is not None
    assert report.correction.reason == ""
    assert report.correction.undisturbed_seconds == pytest.approx(0.075)


def test_steps_that_got_shorter_are_not_the_profiler_s_doing(tmp_path: Path) -> None:
    report = _report(tmp_path, {"before_p50": 0.099, "after_p50": 0.075, "profiler_stays": True})
    assert report.correction is not None
    assert "differ by 32 %" in report.correction.reason


def test_two_engines_agree_once_corrected(tmp_path: Path) -> None:
    """The same training under a profiler that slows launching down much, and under one that does so little."""
    shares = []
    for name, added in (("slow", 35_000), ("fast", 3_000)):
        capture = Capture()
        period = 65_000 + added
        for step in range(6):
            begin = step * period
            capture.range("step", begin, begin + period)
            launching = 10_000 + added
            for kernel in range(100):
                at = begin + kernel * launching / 100
                capture.kernel(at + launching / 100 - 10, at + launching / 100, launched=at, took=5)
            capture.kernel(begin + launching, begin + period, launched=begin + launching - 6, took=3)
        (tmp_path / name).mkdir()
        report = _report(tmp_path / name, {"before_p50": 0.065, "after_p50": 0.065}, capture)
        assert report.correction is not None
        shares.append(report.correction.busy_pct)
    assert shares[0] == pytest.approx(shares[1], abs=1)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"before_p50": 0.060, "after_p50": 0.080}, "the steps before and after the capture differ by 33 %"),
        ({"before_p50": 0.030, "after_p50": None}, "is not the step that takes 30.0 ms"),
        ({"before_p50": 2.0}, "is not the step that takes 2.00 s"),
        ({"before_p50": None, "after_p50": None}, "is unknown"),
        ({"before_p50": -1, "after_p50": "fast"}, "is unknown"),
        ({"before_p50": float("1e300")}, "is unknown"),
        ([1, 2], "is unknown"),
    ],
)
def test_what_does_not_fit_leaves_the_shares_as_they_are_and_says_why(
    tmp_path: Path, steps: Any, words: str
) -> None:
    plain = _report(tmp_path, None)
    report = _report(tmp_path, steps)
    assert report.correction is not None
    assert words in report.correction.reason
    assert report.correction.lost_pct == {}
    assert report.verdict == plain.verdict
    assert report.devices[0].lost_pct == plain.devices[0].lost_pct
    assert any(words in note for note in report.notes)


def test_one_side_is_enough(tmp_path: Path) -> None:
    report = _report(tmp_path, {"before_p50": 0.075, "after_p50": None})
    assert report.correction is not None
    assert report.correction.undisturbed_seconds == 0.075


def test_no_share_is_above_a_hundred_percent(tmp_path: Path) -> None:
    for number, seconds in enumerate((0.0605, 0.061, 0.09, 0.1, 0.11, 0.12)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = _report(folder, {"before_p50": seconds}).correction
        assert found is not None
        assert found.reason == ""
        assert found.busy_pct is not None
        assert 0 <= found.busy_pct <= 100
        assert all(0 <= share <= 100 for share in found.lost_pct.values())
        assert found.busy_pct + sum(found.lost_pct.values()) == pytest.approx(100, abs=0.5)


def test_a_capture_that_disturbs_nothing_stays_what_it_is(tmp_path: Path) -> None:
    report = _report(tmp_path, {"before_p50": CAPTURED, "after_p50": CAPTURED})
    assert report.verdict == "launch_bound"
    assert "the profiler added no measurable time" in report.summary
    assert report.correction is not None
    assert report.correction.lost_pct == pytest.approx(report.devices[0].lost_pct, abs=0.1)
