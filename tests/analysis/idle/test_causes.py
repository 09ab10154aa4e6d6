"""Idle time by what really happened: one capture made by hand for each mechanism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.report.model import Report
from tests.support.traces import Capture

STEP = 10_000.0
ENGINES = pytest.mark.parametrize("engine", ["nsys", "kineto"])


def report_of(capture: Capture, folder: Path, engine: str = "nsys") -> Report:
    return analyze_trace(capture.trace(folder) if engine == "nsys" else capture.chrome_trace(folder))


def idle_us(report: Report) -> dict[str, float]:
    """Idle time a step by cause, in µs."""
    return {row.cause: round((row.ms_per_step or 0.0) * 1000, 1) for row in report.gaps}


def steps(make: Any, count: int = 5, period: float = STEP) -> Capture:
    """`count` equal steps; `make(capture, begin)` puts one in."""
    capture = Capture()
    for step in range(count + 1):
        capture.range("step", step * period, (step + 1) * period)
        make(capture, step * period)
    return capture


@ENGINES
def test_work_that_was_launched_long_before_it_starts_waited_for_something(tmp_path: Path, engine: str) -> None:
    def step(capture: Capture, begin: float) -> None:
        # Both kernels are launched at once; the second starts 4 ms after the first is done.
        capture.kernel(begin + 20, begin + 3000, launched=begin)
        capture.kernel(begin + 7000, begin + 10_000, launched=begin + 10)

    report = report_of(steps(step), tmp_path, engine)
    assert report.verdict == "idle"
    assert idle_us(report)["dependency"] == pytest.approx(4000)
    assert "waited for an event, another stream" in report.summary
    assert "launch_bound" not in report.devices[0].lost_pct or report.devices[0].lost_pct["launch_bound"] < 1


@ENGINES
def test_from_a_launch_on_an_idle_device_to_a_late_start_is_no_launching(tmp_path: Path, engine: str) -> None:
    def step(capture: Capture, begin: float) -> None:
        # Launched 40 µs into the gap, started 5 ms later: what is slow is not the host.
        capture.kernel(begin + 5045, begin + 10_000, launched=begin + 35, took=5)

    report = report_of(steps(step), tmp_path, engine)
    idle = idle_us(report)
    assert idle.pop("dependency") == pytest.approx(5005)
    assert sum(idle.values()) == pytest.approx(40)
    assert report.verdict == "idle"


@ENGINES
def test_short_pauses_between_queued_kernels_stay_what_they_are(tmp_path: Path, engine: str) -> None:
    def step(capture: Capture, begin: float) -> None:
        for kernel in range(100):
            at = begin + 600 + kernel * 100
            capture.kernel(at, at + 60, launched=begin + kernel * 5, took=2)

    report = report_of(steps(step), tmp_path, engine)
    assert idle_us(report) == {"queued": 100 * 40}


def _with_waits(waited: float, python: float, period: float) -> Any:
    """A step that waits `waited` µs for its kernel and then does `python` µs of launching by halves."""

    def step(capture: Capture, begin: float) -> None:
        at = begin
        while at + waited + python <= begin + period:
            capture.kernel(at + 8, at + 8 + waited, launched=at, took=4)
            capture.call("cudaStreamSynchronize", at + 10, at + 10 + waited)
            at += 10 + waited + python

    return step


@ENGINES
def test_waits_are_charged_for_what_they_block_not_for_a_slow_host(tmp_path: Path, engine: str) -> None:
    # 20 µs of waiting, then 1 ms until the host launches again: without the wait it would be as late.
    report = report_of(steps(_with_waits(20, 1000, STEP)), tmp_path, engine)
    idle, calls = idle_us(report), 10
    assert idle.get("sync", 0) <= calls * 130
    assert idle["launch"] > 5 * idle.get("sync", 0)
    assert report.verdict == "launch_bound"


@ENGINES
def test_waits_that_block_for_long_cost_the_idle_time_after_them(tmp_path: Path, engine: str) -> None:
    report = report_of(steps(_with_waits(600, 300, STEP)), tmp_path, engine)
    assert report.verdict == "sync_bound"


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "hipMemcpyWithStream", "cudaMemcpy", "cudaFree"])
def test_calls_that_block_make_the_host_lose_its_lead(tmp_path: Path, call: str) -> None:
    def step(capture: Capture, begin: float) -> None:
        # The host is blocked while the device works for 6 ms; then it needs 2 ms to launch 20 short kernels.
        capture.kernel(begin + 10, begin + 6000, launched=begin)
        capture.call(call, begin + 20, begin + 6010)
        for kernel in range(20):
            at = begin + 6100 + kernel * 100
            capture.kernel(at + 8, at + 18, launched=at)

    idle = idle_us(report_of(steps(step), tmp_path))
    assert idle["sync"] > 1500
    assert idle.get("launch", 0) < 100


def test_gaps_of_many_seconds_do_not_overflow(tmp_path: Path) -> None:
    """Times in ns that are multiplied leave 64 bits from 3 s on: causes were negative, and others too large."""

    def step(capture: Capture, begin: float) -> None:
        capture.kernel(begin + 10, begin + 1_000_000, launched=begin)
        capture.call("cudaStreamSynchronize", begin + 20, begin + 500_000)
        capture.call("cudaMalloc", begin + 2_000_000, begin + 8_000_000)
        capture.kernel(begin + 9_000_010, begin + 10_000_000, launched=begin + 9_000_000)

    report = report_of(steps(step, period=10_000_000), tmp_path)
    assert all(seconds >= 0 for gap in report.longest_gaps for seconds in gap.causes.values())
    assert all(row.seconds > 0 and 0 <= row.share_pct <= 100 for row in report.gaps)
    assert sum(row.share_pct for row in report.gaps) == pytest.approx(report.devices[0].idle_pct)


def test_a_long_silence_of_the_host_is_no_launching_even_in_a_phase_that_launches(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.range("backward", begin, begin + 40_000)
        capture.kernel(begin + 30_010, begin + 40_000, launched=begin + 30_000)

    report = report_of(steps(step, period=40_000), tmp_path)
    assert report.verdict == "idle"
    assert idle_us(report)["host"] == pytest.approx(29_995, abs=20)


def test_two_causes_that_are_close_are_both_named(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.range("dataload", begin, begin + 2000)
        capture.kernel(begin + 2010, begin + 2020, launched=begin + 2001)
        for kernel in range(18):
            at = begin + 2020 + kernel * 100
            capture.kernel(at + 98, at + 100, launched=at + 90, took=3)
        capture.kernel(begin + 3830, begin + 10_000, launched=begin + 3821, took=2)

    report = report_of(steps(step), tmp_path)
    assert report.verdict == "input_bound"
    assert report.second == "launch_bound"
    assert "Waiting for input and kernel launches are within 5 percentage points" in report.summary


def test_one_cause_far_ahead_is_named_alone(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.range("dataload", begin, begin + 4000)
        capture.kernel(begin + 4010, begin + 10_000, launched=begin + 4001)

    report = report_of(steps(step), tmp_path)
    assert (report.verdict, report.second) == ("input_bound", None)
    assert "points of each other" not in report.summary


def test_the_longest_call_that_sets_up_is_one_of_the_examined_time(tmp_path: Path) -> None:
    capture = Capture()
    capture.call("cudaDeviceGetStreamPriorityRange", 0, 30_000_000)
    capture.kernel(30_000_100, 30_000_200, launched=30_000_050)
    capture.call("cudaFree", 30_000_300, 36_000_300)
    for kernel in range(40):
        at = 36_001_000 + kernel * 100.0
        capture.kernel(at, at + 50, launched=at - 10)
    report = report_of(capture, tmp_path)
    assert "is one-off work (calls that set up once" in report.summary
    assert "the longest cudaFree (6.00 s)" in report.summary


@pytest.mark.parametrize("repeats", [True, False], ids=["passes", "one pass after another kind"])
def test_a_start_up_is_left_out_before_passes_that_repeat_alone(tmp_path: Path, repeats: bool) -> None:
    capture = Capture()
    capture.kernel(10, 100, launched=0, name="first")
    capture.call("cudaFree", 200, 600_000)
    at = 601_000.0
    # Three passes with a backward, then six without one: no period fits all of them.
    for index in range(9):
        kinds = ("forward", "backward") if index < 3 else ("forward",)
        begin = at
        for kind in kinds:
            for kernel in range(40 if kind == "forward" else 120):
                name = f"{kind}_exp_kernel_{kernel % 8 + (0 if repeats else 8 * index)}"
                capture.kernel(at + 20, at + 1018, launched=at, name=name)
                at += 1000
        capture.range("Forward", begin, begin + 40_000)
    report = report_of(capture, tmp_path)
    assert report.steps.count == 0
    if repeats:
        assert report.verdict == "gpu_bound"
        assert "of the time after a start-up of 601 ms is lost" in report.summary
        assert report.steps.left_out == "a start-up of 601 ms"
    else:
        assert report.verdict == "unknown"
        assert "is one-off work" in report.summary


def test_work_without_a_recorded_launch_that_runs_while_the_host_waits_was_launched_before(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(6):
        begin = step * STEP
        capture.range("step", begin, begin + STEP)
        capture.kernel(begin + 20, begin + 60, launched=begin + 10)
        capture.call("cudaDeviceSynchronize", begin + 30, begin + 9_960)
        for kernel in range(99):
            at = begin + 62 + kernel * 100
            capture.kernel(at, at + 98)
    report = report_of(capture, tmp_path)
    assert "sync" not in idle_us(report) or idle_us(report)["sync"] < 100
    assert idle_us(report)["queued"] == pytest.approx(2 * 98, abs=10)
