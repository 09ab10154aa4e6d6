"""Two reports against each other: what moved, and what is noise."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.compare.compare import ComparedFigure, Comparison, compare_reports, is_regression
from llmtop.report.model import Report
from tests.support import written
from tests.support.data import HEALTHY, LAUNCH_BOUND
from tests.support.traces import Capture


def _training(
    folder: Path, period: float, jitter: float = 0.0, seed: int = 1, input_us: float = 0, steps: int = 21
) -> Report:
    capture, chance, begin = Capture(), random.Random(seed), 0.0
    for _ in range(steps):
        length = period + chance.uniform(-jitter, jitter)
        capture.range("step", begin, begin + length)
        capture.range("dataload", begin, begin + input_us)
        capture.kernel(begin + input_us + 10, begin + length - 5, launched=begin + input_us, took=4)
        begin += length
    return analyze_trace(capture.trace(folder))


def _step(comparison: Comparison) -> ComparedFigure:
    assert comparison.step is not None
    return comparison.step


def test_a_faster_step_is_told_with_its_size(tmp_path: Path) -> None:
    comparison = compare_reports(_training(tmp_path, 10_000), _training(tmp_path, 8_000))
    assert _step(comparison).change_pct == pytest.approx(-20, abs=0.1)
    assert _step(comparison).moved
    assert "faster" in comparison.summary
    assert not comparison.bottleneck_changed
    assert not is_regression(comparison, 0)


def test_what_lies_within_the_spread_of_the_steps_is_noise(tmp_path: Path) -> None:
    noisy = compare_reports(
        _training(tmp_path, 10_000, jitter=2_000, seed=1), _training(tmp_path, 10_300, jitter=2_000, seed=2)
    )
    assert not _step(noisy).moved
    assert "did not move" in noisy.summary
    assert not is_regression(noisy, 1.0)
    steady = compare_reports(_training(tmp_path, 10_000, jitter=20), _training(tmp_path, 10_300, jitter=20))
    assert _step(steady).moved, "the same 3 % with steady steps is real"
    assert is_regression(steady, 1.0)
    assert not is_regression(steady, 5.0)


def test_the_same_capture_twice_moved_nothing() -> None:
    report = analyze(HEALTHY)
    comparison = compare_reports(report, report)
    changes = [_step(comparison), *comparison.figures, *comparison.phases]
    assert not any(change.moved for change in changes)
    assert {finding.state for finding in comparison.findings} == {"stayed"}


def test_few_steps_are_not_trusted(tmp_path: Path) -> None:
    comparison = compare_reports(_training(tmp_path, 10_000, steps=3), _training(tmp_path, 10_200, steps=3))
    assert not _step(comparison).moved
    assert any("only" in note for note in comparison.notes)


def test_a_fix_that_moves_the_bottleneck(tmp_path: Path) -> None:
    before, after = _training(tmp_path, 10_000, input_us=5_000), _training(tmp_path, 5_200, input_us=20)
    comparison = compare_reports(before, after)
    assert (comparison.verdict_before, comparison.verdict_after) == ("input_bound", "gpu_bound")
    assert comparison.bottleneck_changed
    assert (
        "The bottleneck changed: input-bound (the GPU waits for the next batch) to gpu-bound" in comparison.summary
    )
    states = {finding.id: finding.state for finding in comparison.findings}
    assert states["input_bound"] == "gone"
    phases = {change.name: change for change in comparison.phases}
    assert phases["dataload, host"].moved
    lost = {change.name: change for change in comparison.figures}
    assert lost["lost: input_bound"].before == pytest.approx(50, abs=1)
    assert lost["lost: input_bound"].after == pytest.approx(0, abs=1)


def test_real_captures_compare_too() -> None:
    comparison = compare_reports(analyze(LAUNCH_BOUND), analyze(HEALTHY))
    assert comparison.bottleneck_changed
    text = written.comparison(comparison)
    assert "launch-bound" in text
    assert "* GPU idle" in text
    assert text.replace("\n", "").isprintable()


def test_different_engines_and_gpus_are_noted() -> None:
    report = analyze(HEALTHY)
    devices = (msgspec.structs.replace(report.devices[0], name="NVIDIA A100"),)
    other = msgspec.structs.replace(report, engine="kineto", devices=devices)
    notes = " ".join(compare_reports(report, other).notes)
    assert "different engines" in notes
    assert "NVIDIA A100" in notes


def test_without_steps_only_shares_are_compared(tmp_path: Path) -> None:
    capture = Capture()
    for begin in range(0, 5000, 1000):
        capture.kernel(begin + 100, begin + 1000, launched=begin)
    bare = analyze_trace(capture.trace(tmp_path))
    comparison = compare_reports(bare, _training(tmp_path, 1000))
    assert comparison.step is None
    assert not is_regression(comparison, 0)
    assert "No step time" in comparison.summary
    assert any(change.name == "GPU idle" for change in comparison.figures)


def test_what_moved_is_the_same_from_both_sides(tmp_path: Path) -> None:
    reports = [
        _training(tmp_path, period, jitter=jitter, seed=seed, input_us=input_us, steps=steps)
        for seed, (period, jitter, input_us, steps) in enumerate(
            [(10_000, 20, 0, 21), (10_000, 2_500, 900, 6), (4_000, 900, 700, 9), (10_100, 30, 1_000, 3),
             (5_000, 1_500, 1_300, 12)]
        )
    ]  # fmt: skip
    for one in reports:
        for other in reports:
            there, back = compare_reports(one, other), compare_reports(other, one)
            assert _moved(there) == _moved(back)
            assert _step(there).noise == pytest.approx(_step(back).noise)
            noise = {row.name: row.noise for row in there.figures}
            assert noise == pytest.approx({row.name: row.noise for row in back.figures})


def _moved(comparison: Comparison) -> set[str]:
    rows = [_step(comparison), *comparison.figures, *comparison.phases]
    return {row.name for row in rows if row.moved}
