"""A verdict needs evidence: what shows no steady steps is unknown, with the reason and what to capture instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmtop.report.model import Report
from tests.analysis.idle.test_causes import ENGINES, idle_us, report_of, steps
from tests.support.traces import Capture


def told_how(report: Report) -> None:
    """The reason stands in the summary and in the first finding, with the command that helps."""
    assert report.verdict == "unknown"
    assert report.summary.startswith("unknown: ")
    assert "llmtop capture --steps" in report.summary
    of_the_work = {"fp32_matrix", "unfused_attention", "elementwise", "copies_casts", "pageable_copies"}
    assert report.findings[0].id == "unknown"
    assert {finding.id for finding in report.findings[1:]} <= of_the_work, "which need no step"
    assert "llmtop capture" in report.findings[0].next


def _launching(capture: Capture, begin: float, kernels: int = 40, name: str = "gemm_kernel") -> float:
    """Kernels of 20 µs that the host launches every 50 µs; returns when it is done."""
    for kernel in range(kernels):
        at = begin + kernel * 50
        capture.kernel(at + 10, at + 30, launched=at, took=5, name=name)
    return begin + kernels * 50


@ENGINES
def test_a_first_launch_that_loads_its_module_is_no_launching(tmp_path: Path, engine: str) -> None:
    capture = Capture()
    capture.range("ProfilerStep#1", 0, 12_000)
    done = _launching(capture, 0)
    capture.kernel(done + 8010, done + 8030, launched=done, took=8000, name="loaded_kernel")
    _launching(capture, done + 8050)
    report = report_of(capture, tmp_path, engine)
    told_how(report)
    assert "of loaded_kernel (8.00 ms)" in report.summary


def test_one_that_is_a_small_part_is_left_out_and_said(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        _launching(capture, begin, 160)
        if begin == 20_000:
            capture.kernel(begin + 9810, begin + 9830, launched=begin + 8000, took=1800, name="loaded_kernel")

    report = report_of(steps(step), tmp_path)
    assert report.verdict == "launch_bound"
    assert "One-off work" in report.summary
    assert idle_us(report)["one_off"] == pytest.approx(1800 / 5, abs=10)
    assert next(finding for finding in report.findings if finding.id == "one_off").severity == "info"
    lost = report.devices[0].lost_pct
    assert "one_off" not in lost
    assert sum(lost.values()) <= 100


def test_a_long_launch_of_the_same_kernel_in_each_step_is_launching(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.kernel(begin + 4010, begin + 10_000, launched=begin, took=4000)

    report = report_of(steps(step), tmp_path)
    assert report.verdict == "launch_bound"
    assert "one_off" not in idle_us(report)


def test_allocations_of_a_cold_start_are_one_off_and_those_of_each_step_are_not(tmp_path: Path) -> None:
    cold = Capture()
    done = _launching(cold, 0)
    cold.call("cudaMalloc", done, done + 30_000)
    cold.call("cudaStreamCreateWithFlags", done + 30_000, done + 60_000)
    _launching(cold, done + 60_000)
    told_how(report_of(cold, tmp_path))

    def step(capture: Capture, begin: float) -> None:
        capture.call("cudaMalloc", begin, begin + 3000)
        capture.kernel(begin + 3010, begin + 10_000, launched=begin + 3001)

    assert idle_us(report_of(steps(step), tmp_path))["allocation"] == 3000


@ENGINES
def test_a_graph_that_is_being_captured_shows_no_step(tmp_path: Path, engine: str) -> None:
    capture = Capture()
    _launching(capture, 0, 20)
    capture.call("cudaStreamBeginCapture_v10000", 1000, 1005)
    for launch in range(300):
        capture.call("cudaLaunchKernel", 1010 + launch * 50, 1015 + launch * 50)
    capture.call("cudaStreamEndCapture", 16_010, 16_050)
    capture.call("cudaGraphInstantiate", 16_050, 18_000)
    _launching(capture, 18_000, 20)
    report = report_of(capture, tmp_path, engine)
    told_how(report)
    assert "capturing CUDA graphs" in report.summary
    assert report.gaps[0].cause == "capture"


@ENGINES
def test_steps_that_compile_show_none_either(tmp_path: Path, engine: str) -> None:
    capture = Capture()
    _launching(capture, 0, 20)
    capture.range("compile_fx_inner (dynamo_timed)", 1000, 41_000)
    _launching(capture, 41_000, 20)
    report = report_of(capture, tmp_path, engine)
    told_how(report)
    assert "compiling kernels" in report.summary


def test_one_kernel_in_a_long_capture_is_not_a_busy_gpu(tmp_path: Path) -> None:
    capture = Capture()
    capture.kernel(10, 12, launched=0)
    capture.call("cudaDeviceSynchronize", 13_000_000, 13_000_020)
    report = report_of(capture, tmp_path)
    told_how(report)
    assert "2.00 µs" in report.summary
    assert "13.0 s" in report.summary


def test_copies_alone_show_no_step(tmp_path: Path) -> None:
    capture = Capture()
    for at in range(0, 100_000, 1000):
        capture.copy(at + 10, at + 900, 1 << 20, launched=at)
    told_how(report_of(capture, tmp_path))


@pytest.mark.parametrize("kernels", [12, 200])
def test_a_capture_without_steps_that_shows_steady_work_keeps_its_verdict(tmp_path: Path, kernels: int) -> None:
    launching, busy = Capture(), Capture()
    _launching(launching, 0, kernels)
    assert report_of(launching, tmp_path).verdict == "launch_bound"
    for kernel in range(kernels):
        busy.kernel(1000 + kernel * 1000, 1999 + kernel * 1000, launched=kernel * 5, took=3)
    assert report_of(busy, tmp_path).verdict == "gpu_bound"


def test_a_few_kernels_are_enough_where_steps_repeat(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.range("dataload", begin, begin + 6000)
        capture.kernel(begin + 6010, begin + 10_000, launched=begin + 6001)

    assert report_of(steps(step, 3), tmp_path).verdict == "input_bound"


def _frames(capture: Capture, *nested: tuple[str, float, float]) -> Any:
    for name, start, end in nested:
        capture.operator(name, start, end)


def test_the_deepest_that_the_host_was_in_reaches_the_finding(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        _frames(
            capture,
            ("train.py(10): main", begin, begin + 9999),
            ("data.py(33): __getitem__", begin + 10, begin + 6000),
            ("data.py(33): __getitem__", begin + 20, begin + 5990),
            ("image.py(7): resize", begin + 100, begin + 5900),
        )
        capture.range("dataload", begin, begin + 6000)
        capture.kernel(begin + 6010, begin + 10_000, launched=begin + 6001)

    report = report_of(steps(step), tmp_path, "kineto")
    finding = next(finding for finding in report.findings if finding.id == "input_bound")
    assert "image.py(7): resize" in finding.summary
    assert finding.evidence["host_in"] == "image.py(7): resize"
    for gap in report.longest_gaps:
        lines = dict(line.rsplit(": ", 1) for line in gap.host)
        assert lines["image.py(7): resize"] == "5.80 ms"
        assert "train.py(10): main" not in lines
        assert "data.py(33): __getitem__" not in lines or lines["data.py(33): __getitem__"].endswith("µs")


def test_before_a_gap_is_what_ended_last(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.kernel(begin, begin + 6000, launched=begin - 20, name="long_kernel")
        capture.kernel(begin + 100, begin + 200, launched=begin - 10, name="short_kernel", stream=8)
        capture.kernel(begin + 8000, begin + 10_000, launched=begin + 7990, name="next_kernel")

    report = report_of(steps(step), tmp_path)
    gap = report.longest_gaps[0]
    assert (gap.before, gap.after) == ("long_kernel", "next_kernel")


def test_two_threads_do_not_make_an_item_longer_than_its_gap(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        for thread in (100, 101):
            capture.operator("aten::copy_", begin, begin + 6000, tid=thread)
            capture.call("cudaHostAlloc", begin + 100, begin + 5900, tid=thread)
        capture.kernel(begin + 6010, begin + 8000, launched=begin + 6001, tid=100)
        capture.kernel(begin + 8000, begin + 10_000, launched=begin + 6020, tid=101)

    report = report_of(steps(step), tmp_path, "kineto")
    lines = dict(line.rsplit(": ", 1) for line in report.longest_gaps[0].host)
    assert lines["in cudaHostAlloc"] == "5.80 ms"
    assert lines["aten::copy_"] == "6.00 ms"


def test_no_less_than_nothing_of_communication_is_overlapped(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        capture.kernel(begin + 10, begin + 2000, launched=begin)
        capture.kernel(
            begin + 2000, begin + 7000, launched=begin + 8, took=2, name="ncclDevKernel_AllReduce_Sum_f32"
        )
        if begin == 20_000:
            capture.kernel(begin + 9510, begin + 9990, launched=begin + 7100, took=2400, name="loaded_kernel")

    report = report_of(steps(step), tmp_path)
    finding = next(finding for finding in report.findings if finding.id == "communication_bound")
    assert finding.evidence["overlapped_pct_of_nccl"] == pytest.approx(0, abs=1e-6)


def test_kernels_that_come_once_each_show_no_step_however_busy(tmp_path: Path) -> None:
    capture = Capture()
    for number in range(3):
        begin = 1000 + number * 1000
        capture.kernel(begin, begin + 990, launched=number * 5, took=3, name=f"once_{number}")
    report = report_of(capture, tmp_path)
    told_how(report)
    assert "in 3 kernels: too little to see a step in" in report.summary
