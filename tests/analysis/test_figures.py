"""Figures and words of findings: absent where nothing says them, and no time counted twice."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.report.model import Finding, Report
from llmtop.trace.files.merge import merge
from llmtop.trace.files.open import open_trace
from tests.support import written
from tests.support.data import DATA
from tests.support.traces import Capture, write_sqlite

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def _finding(report: Report, kind: str) -> Finding | None:
    return next((finding for finding in report.findings if finding.id == kind), None)


@pytest.fixture(scope="module")
def stepless(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A capture without a range: 600 short kernels, 20 collectives, a copy."""
    capture = Capture()
    for i in range(600):
        capture.kernel(i * 20 + 10, i * 20 + 15, launched=i * 20, took=8)
    for i in range(20):
        capture.kernel(12_100 + i * 100, 12_190 + i * 100, launched=12_050 + i * 100, name=NCCL, stream=9)
    capture.copy(14_200, 16_000, 8 << 20, launched=14_190)
    return analyze_trace(capture.trace(tmp_path_factory.mktemp("stepless")))


def test_without_steps_no_figure_is_a_step_s(stepless: Report) -> None:
    assert stepless.steps.count == 0
    assert [row.share_pct > 0 for row in stepless.collectives] == [True]
    for row in stepless.collectives:
        assert (row.count_per_step, row.ms_per_step, row.exposed_ms_per_step) == (None, None, None)
        assert row.exposed_pct == pytest.approx(row.share_pct), "nothing runs beside it"
    for finding in stepless.findings:
        assert not [key for key in finding.evidence if key.endswith("per_step")], finding
        assert finding.saves_at_most_ms is None
    assert stepless.devices[0].launches_per_step is None


def test_without_steps_no_word_is_of_a_step(stepless: Report) -> None:
    for finding in stepless.findings:
        assert "of the step" not in finding.summary
        assert "a step" not in finding.summary
    assert _finding(stepless, "small_kernels") is not None, "620 in all are many"
    assert "of the step" not in stepless.roofline
    assert "of the time from first to last device activity is lost" in stepless.summary
    hot = _finding(stepless, "hot_kernel")
    assert hot is not None
    assert "--launch-skip" not in hot.next, "how many launches warm up cannot be told"
    assert "--launch-count 5" in hot.next
    for render in (written.text, written.markdown, written.html):
        assert "of steps" not in render(stepless)


def test_exposed_communication_is_named_without_a_verdict(tmp_path: Path) -> None:
    capture = Capture()
    capture.call("cudaDeviceSynchronize", 0, 1_000_000)
    for i in range(6):
        at = 10_000 + i * 100
        capture.kernel(at, at + 48, launched=at - 50, name=NCCL if i % 2 else f"gemm_{i}")
    report = analyze_trace(capture.trace(tmp_path))
    assert report.verdict == "unknown"
    finding = _finding(report, "communication_bound")
    assert finding is not None
    assert finding.severity == "info"
    assert "most of it AllReduce" in finding.summary


def test_one_is_told_in_the_singular(tmp_path: Path) -> None:
    capture = Capture()
    for begin in (0, 1000, 2000):
        capture.range("dataload", begin, begin + 500)
    capture.kernel(400, 1000, launched=350, name="only_one")
    capture.kernel(1400, 2000, launched=1350, name=NCCL)
    report = analyze_trace(capture.trace(tmp_path), steps=1)
    assert report.steps.count == 1
    text = " ".join(written.text(report).split())
    assert "1 whole step)" in text
    assert "1 launch of" in text
    assert "1 whole step " in report.summary
    assert "1 whole steps" not in text
    assert "1 launches" not in text


def test_exposed_communication_is_not_said_to_be_lost_before_a_kernel_runs(tmp_path: Path) -> None:
    capture = Capture()
    for begin in range(0, 6000, 1000):
        capture.range("step", begin, begin + 1000)
        capture.kernel(begin + 10, begin + 600, launched=begin + 5)
        capture.kernel(begin + 600, begin + 1005, launched=begin + 5.5, name=NCCL, took=0.2)
    report = analyze_trace(capture.trace(tmp_path))
    assert report.verdict == "communication_bound"
    assert "before one runs" not in report.roofline
    assert "is lost to idle time, unoverlapped copies and exposed communication" in report.roofline


def test_pinned_copies_are_not_counted_as_pageable(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(6):
        begin = step * 10_000
        capture.range("step", begin, begin + 10_000)
        capture.copy(begin + 100, begin + 4400, 64 << 20, memory="Pinned", launched=begin + 20)
        capture.kernel(begin + 4400, begin + 10_050, launched=begin + 50)
        capture.copy(begin + 6000, begin + 6000 + (100 if step == 2 else 0.001), 2 << 20, launched=begin + 60)
    report = analyze_trace(capture.trace(tmp_path))
    found = _finding(report, "pageable_copies")
    assert found is None or (found.share_pct or 0.0) <= 0.2


def test_pageable_copies_are_told_with_their_own_share(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(6):
        begin = step * 10_000
        capture.range("step", begin, begin + 10_000)
        capture.copy(begin + 100, begin + 2100, 64 << 20, memory="Pinned", launched=begin + 20)
        capture.copy(begin + 2100, begin + 3100, 16 << 20, launched=begin + 40)
        capture.kernel(begin + 3100, begin + 10_050, launched=begin + 50)
    report = analyze_trace(capture.trace(tmp_path))
    found = _finding(report, "pageable_copies")
    assert found is not None
    assert found.evidence["copies_pct"] == pytest.approx(10, abs=0.2)
    assert found.share_pct is None, "that time is h2d_bound's already"


@pytest.mark.slow("reads all labelled captures")
@pytest.mark.parametrize("name", ["nsys-held_d2h.sqlite", "kineto-held_d2h.rank0.json"])
def test_the_shares_of_findings_are_no_more_than_all(tmp_path: Path, name: str) -> None:
    with tarfile.open(DATA / "labelled" / "held-out.tar.xz") as tar:
        tar.extract(name, tmp_path)
    report = analyze(tmp_path / name)
    assert sum(finding.share_pct or 0.0 for finding in report.findings) <= 100.0


def test_allocations_name_the_call_that_is_made_most(tmp_path: Path) -> None:
    capture = Capture()
    for begin in range(0, 6000, 1000):
        capture.range("step", begin, begin + 1000)
        capture.call("cudaMalloc", begin + 10, begin + 210)
        for call in range(5):
            capture.call("cudaFreeAsync", begin + 220 + call, begin + 220.5 + call)
        capture.kernel(begin + 300, begin + 1005, launched=begin + 290)
    found = _finding(analyze_trace(capture.trace(tmp_path)), "allocations")
    assert found is not None
    assert found.summary == "1 call per step allocate or free device memory, mostly cudaMalloc."


def _ranks(slower: dict[str, float]) -> list[Capture]:
    """Two ranks of which the second spends more in some phases (host), and the first waits for it in NCCL."""
    made = []
    for rank in (0, 1):
        capture, begin = Capture(pid=100 + rank, device=rank), 0.0
        more = sum(slower.values())
        for _ in range(6):
            at = begin
            capture.range("step", begin, begin + 600 + more)
            for phase, took in (("dataload", 3.0 + 0.03 * rank), ("forward", 200.0), ("backward", 300.0)):
                extra = slower.get(phase, 0.0) if rank else 0.0
                capture.range(phase, at, at + took + extra)
                if phase != "dataload":
                    capture.kernel(at + extra + 5, at + extra + took, launched=at + extra + 2, took=1)
                at += took + extra
            capture.kernel(at + 5, begin + 600 + more, launched=at - 1, name=NCCL, stream=9, took=0.5)
            begin += 600 + more
        made.append(capture)
    return made


def test_a_straggler_s_slower_phase_is_found_on_the_host_too(tmp_path: Path) -> None:
    path = write_sqlite(tmp_path / "slow.sqlite", _ranks({"dataload": 400.0}))
    found = _finding(analyze_trace(open_trace(path)), "straggler")
    assert found is not None
    assert found.evidence["slower_phase"] == "dataload: 403 µs against 3.00 µs on the host"


def test_a_difference_that_explains_nothing_names_no_phase(tmp_path: Path) -> None:
    captures = _ranks({"dataload": 400.0})
    captures[1].ranges = [mark for mark in captures[1].ranges if mark["name"] != "dataload"]
    captures[0].ranges = [mark for mark in captures[0].ranges if mark["name"] != "dataload"]
    path = write_sqlite(tmp_path / "unnamed.sqlite", captures)
    found = _finding(analyze_trace(open_trace(path)), "straggler")
    assert found is not None
    assert "slower_phase" not in found.evidence, "not what is by chance the longer of two"


def test_a_wait_takes_no_operator_of_another_rank_with_the_same_thread_id(tmp_path: Path) -> None:
    traces = []
    for rank in (0, 1):
        capture = Capture(pid=100 + rank, device=rank)
        for begin in range(0, 6000, 1000):
            capture.range("step", begin, begin + 1000, tid=1)
            capture.kernel(begin + 10, begin + 500 + 300 * rank, launched=begin + 2, tid=1, took=2)
            if rank:
                capture.operator("aten::of_another", begin + 25, begin + 999, tid=1)
            else:
                capture.operator("aten::item", begin + 20, begin + 600, tid=1)
                capture.call("cudaStreamSynchronize", begin + 30, begin + 510, tid=1)
        traces.append(capture.chrome_trace(tmp_path))
    for order in (traces, traces[::-1]):
        report = analyze_trace(merge(list(order), "both"))
        assert {(place.pid, place.operator) for place in report.waits} == {(100, "aten::item")}


def test_no_command_has_a_pid_that_may_be_gone_or_never_was(tmp_path: Path) -> None:
    traces = []
    for rank in (0, 1):
        capture = Capture(pid=100, device=rank)
        for begin in range(0, 6000, 1000):
            capture.range("step", begin, begin + 1000)
            capture.kernel(begin + 900 - 300 * rank, begin + 1000, launched=begin + 880 - 300 * rank)
        traces.append(capture.chrome_trace(tmp_path))
    for order in (traces, traces[::-1]):
        report = analyze_trace(merge(list(order), "two containers"))
        assert {device.pid for device in report.devices} == {100, 10_000_100}
        assert report.findings[0].next.startswith("llmtop capture --engine py-spy ")
        for finding in report.findings:
            assert not re.search(r"(-p|--pid)[ =]\d", finding.next)
            assert "10000100" not in finding.next
