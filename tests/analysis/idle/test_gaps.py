"""Idle time divided among causes, on captures whose truth is known to the microsecond."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.report.model import Device, Report
from tests.support.traces import Capture, write_sqlite

STEP = 1000.0


def _report(capture: Capture, folder: Path, engine: str = "nsys") -> Report:
    trace = capture.trace(folder) if engine == "nsys" else capture.chrome_trace(folder)
    return analyze_trace(trace)


def _judged(report: Report) -> Device:
    return next(device for device in report.devices if device.judged)


def _idle_us(report: Report) -> dict[str, float]:
    """Idle time a step by cause, in µs."""
    return {row.cause: round((row.ms_per_step or 0.0) * 1000, 1) for row in report.gaps}


def _steps(make: object, count: int = 5) -> Capture:
    """`count` equal steps; `make(capture, begin)` puts one in."""
    assert callable(make)
    capture = Capture()
    for step in range(count + 1):
        begin = step * STEP
        capture.range("step", begin, begin + STEP)
        make(capture, begin)
    return capture


@pytest.mark.parametrize("engine", ["nsys", "kineto"])
def test_a_range_that_waits_for_input_names_the_gap(tmp_path: Path, engine: str) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.range("dataload", begin, begin + 400)
        capture.kernel(begin + 410, begin + 1000, launched=begin + 402)

    report = _report(_steps(step), tmp_path, engine)
    assert report.verdict == "input_bound"
    assert _idle_us(report) == {"input": 400.0, "launch": 10.0}
    assert _judged(report).idle_pct == pytest.approx(41.0)


def test_a_cause_counts_the_gaps_that_it_has_a_part_of(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.range("dataload", begin, begin + 400)
        capture.kernel(begin + 410, begin + 700, launched=begin + 402)
        capture.kernel(begin + 730, begin + 1000, launched=begin + 702, took=28)

    rows = {row.cause: row for row in _report(_steps(step), tmp_path).gaps}
    assert {cause: row.gaps for cause, row in rows.items()} == {"input": 5, "launch": 10}
    assert {cause: row.longest_us for cause, row in rows.items()} == {"input": 400.0, "launch": 30.0}


def test_without_a_range_quiet_time_before_a_copy_of_input_is_input(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        # 400 µs without any CUDA call, then the batch is copied, then the work is launched.
        capture.copy(begin + 405, begin + 410, 4096, launched=begin + 400)
        capture.kernel(begin + 410, begin + 1000, launched=begin + 406, took=2)

    capture = _steps(step)
    report = _report(capture, tmp_path)
    assert report.verdict == "input_bound"
    assert _idle_us(report)["input"] == pytest.approx(400, abs=10)


def test_quiet_time_before_a_kernel_is_not_taken_for_input(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.kernel(begin + 410, begin + 1000, launched=begin + 402)

    report = _report(_steps(step), tmp_path)
    assert "input" not in _idle_us(report)


@pytest.mark.parametrize("engine", ["nsys", "kineto"])
def test_launching_one_short_kernel_after_the_other_is_launch_bound(tmp_path: Path, engine: str) -> None:
    def step(capture: Capture, begin: float) -> None:
        for kernel in range(50):
            at = begin + kernel * 20
            capture.kernel(at + 7, at + 9, launched=at, took=5)

    report = _report(_steps(step), tmp_path, engine)
    assert report.verdict == "launch_bound"
    assert _idle_us(report) == {"launch": 900.0}
    small = next(finding for finding in report.findings if finding.id == "launch_bound")
    assert small.evidence["kernels_under_10us_pct"] == 100.0
    assert small.saves_at_most_ms == pytest.approx(0.9)


def test_gaps_between_kernels_that_were_launched_in_time_are_not_the_host_s(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        # All launched in the first 150 µs; the device pauses 2 µs before each of 50 kernels.
        for kernel in range(50):
            at = begin + 200 + kernel * 20
            capture.kernel(at, at + 18, launched=begin + kernel * 3, took=2)

    report = _report(_steps(step), tmp_path)
    assert _idle_us(report) == {"queued": 100.0}
    assert _judged(report).lost_pct == {"kernel_gaps": pytest.approx(10.0)}
    assert report.verdict == "launch_bound", "fewer, longer kernels are the cure for both"


def test_what_follows_a_wait_counts_as_the_wait_s_doing(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.kernel(begin + 10, begin + 400, launched=begin)
        capture.call("cudaStreamSynchronize", begin + 20, begin + 410)
        # Python for 100 µs, then the next kernel: it could have been queued, had the host not waited.
        capture.kernel(begin + 520, begin + 1000, launched=begin + 510)
        capture.call("cudaStreamSynchronize", begin + 600, begin + 999)

    report = _report(_steps(step), tmp_path)
    assert report.verdict == "sync_bound"
    assert _idle_us(report) == {"sync": 130.0}


def test_a_short_wait_does_not_pay_for_all_launching_after_it(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.kernel(begin + 7, begin + 17, launched=begin)
        capture.call("cudaStreamSynchronize", begin + 10, begin + 20)
        for kernel in range(1, 50):
            at = begin + kernel * 20
            capture.kernel(at + 7, at + 9, launched=at, took=5)

    idle = _idle_us(_report(_steps(step), tmp_path))
    assert idle["sync"] <= 30
    assert idle["launch"] > 800


@pytest.mark.parametrize("engine", ["nsys", "kineto"])
def test_where_the_waits_are_is_said(tmp_path: Path, engine: str) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.range("optimizer", begin + 50, begin + 950)
        capture.range("clip", begin + 60, begin + 500)
        capture.kernel(begin + 10, begin + 400, launched=begin)
        for call in range(3):
            at = begin + 100 + call * 100
            capture.operator("aten::item", at, at + 90)
            capture.operator("aten::_local_scalar_dense", at + 5, at + 80)
            capture.call("cudaStreamSynchronize", at + 10, at + 70)
        capture.kernel(begin + 600, begin + 1000, launched=begin + 590)
        capture.call("cudaDeviceSynchronize", begin + 700, begin + 990)

    report = _report(_steps(step), tmp_path, engine)
    first, second = report.waits
    assert (first.call, first.phase, first.calls_per_step) == ("cudaStreamSynchronize", "optimizer/clip", 3)
    assert first.operator == ("aten::_local_scalar_dense" if engine == "kineto" else "")
    assert first.host_ms_per_step == pytest.approx(0.18)
    assert (second.call, second.phase) == ("cudaDeviceSynchronize", "optimizer")
    finding = next(finding for finding in report.findings if finding.id == "sync_bound")
    assert finding.evidence["waiting_calls_per_step"] == 4
    assert "cudaStreamSynchronize in optimizer/clip" in finding.evidence["where"]


def test_a_wait_is_of_the_innermost_operator_even_where_both_end_at_once(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.kernel(begin + 10, begin + 400, launched=begin)
        capture.operator("aten::item", begin + 100, begin + 190)
        capture.operator("aten::_local_scalar_dense", begin + 105, begin + 180)
        capture.call("cudaStreamSynchronize", begin + 110, begin + 180)

    (place,) = _report(_steps(step), tmp_path, "kineto").waits
    assert place.operator == "aten::_local_scalar_dense"


def test_reading_a_value_back_is_a_wait(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        for read in range(10):
            at = begin + read * 100
            capture.kernel(at + 8, at + 40, launched=at)
            capture.copy(at + 45, at + 46, 4, "DtoH", "Pinned", launched=at + 38, took=4)
            capture.call("cudaStreamSynchronize", at + 43, at + 55)

    report = _report(_steps(step), tmp_path)
    assert report.verdict == "sync_bound"
    assert _judged(report).lost_pct["sync_bound"] > 60


@pytest.mark.parametrize("engine", ["nsys", "kineto"])
@pytest.mark.parametrize("direction", ["HtoD", "DtoH"])
def test_a_lone_copy_is_lost_time_though_the_device_is_busy(tmp_path: Path, engine: str, direction: str) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.copy(begin, begin + 600, 64 << 20, direction, launched=begin - 5)
        capture.kernel(begin + 600, begin + 1000, launched=begin + 2)

    report = _report(_steps(step), tmp_path, engine)
    assert report.verdict == "h2d_bound"
    assert _judged(report).busy_pct == pytest.approx(100.0, abs=0.5)
    assert _judged(report).copy_only_pct == pytest.approx(60.0, abs=0.5)


def test_a_copy_beside_a_kernel_costs_nothing(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.kernel(begin, begin + 1000, launched=begin - 50)
        capture.copy(begin + 100, begin + 700, 64 << 20, memory="Pinned", launched=begin + 50)

    report = _report(_steps(step), tmp_path)
    assert report.verdict == "gpu_bound"
    assert _judged(report).copy_only_pct == 0.0


def test_long_work_of_the_host_without_a_name_is_idle(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        begin *= 20
        capture.ranges[-1] |= {"start": begin, "end": begin + 20_000}
        capture.kernel(begin + 8_010, begin + 20_000, launched=begin + 8_000)

    report = _report(_steps(step), tmp_path)
    assert report.verdict == "idle"
    assert _idle_us(report)["host"] == pytest.approx(7_995, abs=10)


def test_waits_in_the_c_library_are_named_where_they_were_recorded(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        begin *= 20
        capture.ranges[-1] |= {"start": begin, "end": begin + 20_000}
        capture.wait("sem_wait", begin + 1_000, begin + 7_000)
        capture.kernel(begin + 8_010, begin + 20_000, launched=begin + 8_000)

    assert _idle_us(_report(_steps(step), tmp_path))["os_wait"] == pytest.approx(6_000, abs=10)


def test_another_process_on_the_same_gpu_is_named(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.kernel(begin + 500, begin + 1000, launched=begin)

    mine, other = _steps(step), Capture(pid=200)
    for begin in range(0, 6000, 1000):
        other.kernel(begin + 100, begin + 400, launched=begin + 50)
    report = analyze_trace(_both(tmp_path, mine, other))
    rows = {row.cause: row.share_pct for row in report.gaps if row.pid == mine.pid}
    assert rows["other_process"] == pytest.approx(30.0, abs=1.0)


def _both(folder: Path, *captures: Capture) -> object:
    from llmtop.trace.files.open import open_trace

    return open_trace(write_sqlite(folder / "both.sqlite", list(captures)))


def test_allocations_within_the_step_are_named(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.call("cudaMalloc", begin, begin + 200)
        capture.kernel(begin + 210, begin + 1000, launched=begin + 201)

    report = _report(_steps(step), tmp_path)
    assert _idle_us(report)["allocation"] == 200.0
    assert any(finding.id == "allocations" and finding.severity == "warning" for finding in report.findings)


def test_without_calls_of_the_host_the_cause_stays_unknown(tmp_path: Path) -> None:
    capture = Capture()
    for begin in range(0, 5000, 1000):
        capture.kernel(begin + 500, begin + 1000)
    report = _report(capture, tmp_path)
    assert report.verdict == "unknown"
    assert any("no CUDA calls" in note for note in report.notes)


def test_every_gap_s_causes_add_up_to_its_length(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.range("dataload", begin, begin + 100)
        capture.kernel(begin + 120, begin + 300, launched=begin + 105)
        capture.call("cudaStreamSynchronize", begin + 130, begin + 310)
        capture.call("cudaMalloc", begin + 320, begin + 360)
        capture.kernel(begin + 420, begin + 900, launched=begin + 400)

    report = _report(_steps(step), tmp_path)
    judged = _judged(report)
    assert sum(row.seconds for row in report.gaps) == pytest.approx(
        (judged.idle_pct or 0) / 100 * judged.window_seconds
    )
    for gap in report.longest_gaps:
        assert sum(gap.causes.values()) == pytest.approx(gap.seconds)
