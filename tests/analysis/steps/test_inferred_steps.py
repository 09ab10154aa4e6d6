"""Steps that no range marks, seen in what repeats, and numbered ranges that count steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.report.model import Report
from tests.analysis.idle.test_causes import ENGINES, report_of
from tests.support.traces import Capture

PERIOD = 10_000.0
LAYERS = 8


def _kernels() -> Iterator[str]:
    """A step's kernels in order: layers repeat within it, the embedding and the loss do not."""
    yield "embedding"
    for _ in range(LAYERS):
        yield from ("norm", "qkv_gemm", "attention", "out_gemm", "mlp_gemm")
    yield "loss"
    for _ in range(LAYERS):
        yield from ("mlp_backward", "attention_backward", "norm_backward")


def _step(capture: Capture, begin: float) -> None:
    for number, name in enumerate(_kernels()):
        at = begin + number * 100
        capture.kernel(at + 10, at + 90, launched=at, name=name)


def _steps(count: int, period: float = PERIOD) -> Capture:
    capture = Capture()
    for step in range(count):
        _step(capture, step * period)
    return capture


def _report(capture: Capture, folder: Path) -> Report:
    return analyze_trace(capture.trace(folder))


@ENGINES
def test_a_kernel_that_each_step_launches_once_divides_the_capture(tmp_path: Path, engine: str) -> None:
    report = report_of(_steps(10), tmp_path, engine)
    assert report.steps.inferred
    assert report.steps.count == 9
    assert report.steps.seconds_p50 == pytest.approx(PERIOD / 1e6)
    assert report.steps.found_by.startswith("inferred from what repeats")
    assert "inferred" in report.steps.found_by
    hot = next(finding for finding in report.findings if finding.id == "hot_kernel")
    assert hot.evidence["launches_per_step"] == pytest.approx(LAYERS, abs=1), "not those of the whole capture"


def test_layers_of_one_step_are_no_steps(tmp_path: Path) -> None:
    report = _report(_steps(1), tmp_path)
    assert report.steps.count == 0
    assert not report.steps.inferred


def test_half_steps_at_the_edges_do_not_hide_the_whole_ones(tmp_path: Path) -> None:
    capture = Capture()
    for number, name in enumerate(list(_kernels())[40:]):
        at = -PERIOD + 4000 + number * 100
        capture.kernel(at + 10, at + 90, launched=at, name=name)
    for step in range(6):
        _step(capture, step * PERIOD)
    report = _report(capture, tmp_path)
    assert report.steps.inferred
    assert report.steps.count in (5, 6)
    assert report.steps.seconds_p50 == pytest.approx(PERIOD / 1e6)


def test_a_kernel_that_comes_once_does_not_hide_them_either(tmp_path: Path) -> None:
    capture = _steps(12)
    capture.kernel(7_500, 7_510, launched=7_490, name="logged_once")
    assert _report(capture, tmp_path).steps.count == 11


def test_where_steps_launch_other_kernels_each_time_the_optimizer_divides_them(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(8):
        for number in range(60):
            at = step * PERIOD + number * 100
            capture.kernel(at + 10, at + 90, launched=at, name=f"gemm_of_shape_{(step * 7 + number) % 23}_{step}")
        for number in range(6):
            at = step * PERIOD + 6000 + number * 20
            capture.kernel(at + 5, at + 15, launched=at, name="multi_tensor_apply_kernel_adam")
    report = _report(capture, tmp_path)
    assert report.steps.inferred
    assert report.steps.count == 7
    assert "optimizer" in report.steps.found_by


def test_what_never_repeats_has_no_steps(tmp_path: Path) -> None:
    capture = Capture()
    for number in range(400):
        capture.kernel(number * 100 + 10, number * 100 + 90, launched=number * 100, name=f"kernel_{number}")
    report = _report(capture, tmp_path)
    assert report.steps.count == 0
    assert report.steps.found_by == "the capture has no ranges"


def test_one_kernel_over_and_over_is_no_step(tmp_path: Path) -> None:
    capture = Capture()
    for number in range(400):
        capture.kernel(number * 100 + 10, number * 100 + 90, launched=number * 100)
    assert not _report(capture, tmp_path).steps.inferred


def test_what_repeats_in_a_small_part_of_a_capture_is_no_step(tmp_path: Path) -> None:
    capture = Capture()
    for number in range(600):
        capture.kernel(number * 20 + 10, number * 20 + 15, launched=number * 20, took=8)
    for number in range(20):
        at = 12_100 + number * 100
        capture.kernel(at, at + 90, launched=at - 50, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    assert not _report(capture, tmp_path).steps.inferred


def test_ranges_come_before_what_is_inferred(tmp_path: Path) -> None:
    capture = _steps(10)
    for step in range(5):
        capture.range("step", step * 2 * PERIOD, (step + 1) * 2 * PERIOD)
    report = _report(capture, tmp_path)
    assert not report.steps.inferred
    assert report.steps.seconds_p50 == pytest.approx(2 * PERIOD / 1e6)


@pytest.mark.parametrize("pattern", ["Step {}", "iter_{}", "decode step {}", "epoch_0_step_{}", "Iteration: {}"])
def test_numbered_ranges_are_steps_and_those_of_a_warm_up_are_not(tmp_path: Path, pattern: str) -> None:
    capture = Capture()
    for step in range(3):
        capture.range(f"Warm-up {pattern.format(step)}", step * 50_000, (step + 1) * 50_000)
        _step(capture, step * 50_000)
    for step in range(5):
        begin = 150_000 + step * PERIOD
        capture.range(pattern.format(step), begin, begin + PERIOD)
        _step(capture, begin)
    report = _report(capture, tmp_path)
    assert not report.steps.inferred
    assert report.steps.count in (4, 5)
    assert report.steps.seconds_max == pytest.approx(PERIOD / 1e6, rel=0.01)
    assert all("step" not in phase.name.lower() for phase in report.phases if "Warm" not in phase.name)


@pytest.mark.parametrize("pattern", ["layer {}", "optimizer step {}", "load batch {}", "block_{}"])
def test_other_numbers_count_no_steps(tmp_path: Path, pattern: str) -> None:
    capture = Capture()
    for number in range(6):
        capture.range(pattern.format(number), number * PERIOD, (number + 0.5) * PERIOD)
        for kernel in range(20):
            at = number * PERIOD + kernel * 50
            capture.kernel(at + 10, at + 40, launched=at, name=f"kernel_{number}_{kernel}")
    assert repr(pattern.format(0)[:5]) not in _report(capture, tmp_path).steps.found_by


def test_the_stub_that_a_stopped_profiler_leaves_is_no_step(tmp_path: Path) -> None:
    capture = Capture()
    capture.range("ProfilerStep#1", 0, PERIOD)
    _step(capture, 0)
    capture.range("ProfilerStep#2", PERIOD, PERIOD + 8)
    capture.kernel(PERIOD + 15, PERIOD + 20, launched=PERIOD + 2)
    assert _report(capture, tmp_path).steps.count == 1
