"""Idle time while the launching thread had no CPU, by SCHED_EVENTS of nsys."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.report.model import Report
from tests.analysis.idle.test_causes import STEP, idle_us, report_of, steps
from tests.support.traces import MAIN, Capture

OFF = 4000.0


def _step(capture: Capture, begin: float) -> None:
    """A kernel that is launched 5 ms after the one before it was done."""
    capture.kernel(begin + 5000, begin + STEP, launched=begin + 4990)


def _report(folder: Path, *, off: bool = True, call: str = "", state: int = 0, block: int = 0) -> Report:
    def step(capture: Capture, begin: float) -> None:
        _step(capture, begin)
        if off:
            capture.off_cpu(begin + 500, begin + 500 + OFF, state=state, block=block)
        if call:
            capture.wait(call, begin + 490, begin + 510 + OFF)

    return report_of(steps(step), folder)


@pytest.mark.parametrize(
    ("call", "state", "block", "cause"),
    [
        ("clock_nanosleep", 0, 0, "sleeping"),
        ("usleep", 0, 0, "sleeping"),
        ("pthread_cond_wait", 0, 0, "waiting"),
        ("poll", 0, 0, "waiting"),
        ("", 0, 0, "off_cpu"),
        ("", 0, 4, "sleeping"),
        ("", 2, 0, "waiting"),
        ("", 1, 0, "preempted"),
        ("", 0, 44, "preempted"),
    ],
)
def test_a_thread_off_the_cpu_launches_nothing(
    tmp_path: Path, call: str, state: int, block: int, cause: str
) -> None:
    report = _report(tmp_path, call=call, state=state, block=block)
    assert idle_us(report)[cause] == pytest.approx(OFF, abs=30)
    assert report.verdict == "idle"
    assert "launching thread" in report.summary
    assert "does not show" not in report.summary.partition(".")[0] or cause == "off_cpu"
    finding = report.findings[0]
    assert finding.evidence[f"idle_{cause}_pct"] == pytest.approx(OFF / STEP * 100, abs=1)
    assert "CUDA graph" not in finding.fix


def test_without_the_table_and_on_the_cpu_it_is_launching(tmp_path: Path) -> None:
    report = _report(tmp_path, off=False)
    assert not {"sleeping", "waiting", "preempted", "off_cpu"} & idle_us(report).keys()


def test_where_waits_were_recorded_a_stretch_in_none_is_a_preemption(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        _step(capture, begin)
        capture.wait("read", begin + 100, begin + 110)
        capture.off_cpu(begin + 500, begin + 500 + OFF)

    assert idle_us(report_of(steps(step), tmp_path))["preempted"] == pytest.approx(OFF, abs=30)


def test_a_page_fault_in_managed_memory_is_no_preemption(tmp_path: Path) -> None:
    """As recorded of a program that checks its result in managed memory: each fault moves a page and takes the
    thread off its CPU some 50 µs later, in no call of the C library."""

    def step(capture: Capture, begin: float) -> None:
        _step(capture, begin)
        capture.copy(begin + 400, begin + 450, 65_536, direction="unified DtoH")
        capture.off_cpu(begin + 500, begin + 500 + OFF)
        capture.wait("poll", begin + 100, begin + 110)

    report = report_of(steps(step), tmp_path)
    assert idle_us(report)["waiting"] == pytest.approx(OFF, abs=30)
    assert "preempted" not in idle_us(report)


def test_a_call_that_waits_for_the_gpu_stays_one(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        _step(capture, begin)
        capture.call("cudaDeviceSynchronize", begin + 400, begin + 4900)
        capture.off_cpu(begin + 410, begin + 4890)

    assert report_of(steps(step), tmp_path).verdict == "sync_bound"


def test_another_launching_thread_on_the_cpu_is_no_sleep(tmp_path: Path) -> None:
    def step(capture: Capture, begin: float) -> None:
        _step(capture, begin)
        capture.kernel(begin + 4995, begin + 5000, launched=begin + 4980, tid=MAIN + 1, stream=8)
        capture.off_cpu(begin + 500, begin + 500 + OFF)
        capture.off_cpu(begin + 9000, begin + 9100, tid=MAIN + 1)

    assert "off_cpu" not in idle_us(report_of(steps(step), tmp_path))


def test_the_start_of_a_program_is_no_input(tmp_path: Path) -> None:
    capture = Capture()
    capture.kernel(0, 10, launched=0, name="ncclDevKernel_AllReduce_Sum_u64_RING_LL")
    for copy in range(8):
        at = 900_000 + copy * 1000
        capture.copy(at + 20, at + 900, 1 << 22, launched=at)
    for number in range(20):
        at = 910_000 + number * 100
        capture.kernel(at + 10, at + 95, launched=at, name=f"gemm_{number}")
    report = report_of(capture, tmp_path)
    assert report.verdict == "unknown"
    assert "the program's start" in report.summary
    assert "input" not in idle_us_of_all(report)


def idle_us_of_all(report: Report) -> set[str]:
    """The causes of idle time of a report without steps."""
    return {row.cause for row in report.gaps}
