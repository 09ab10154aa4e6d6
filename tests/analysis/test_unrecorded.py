"""Captures that lack kernels which were launched: said, and not taken for idle time of another device's making."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.report.model import Report
from llmtop.trace.files.open import open_trace
from tests.support.traces import Capture, write_chrome, write_sqlite

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
STEPS, FORWARD, BACKWARD = 10, 10, 10
AUTOGRAD = 7


def rank(device: int, keeps: Callable[[int, bool], bool] = lambda step, forward: True) -> Capture:
    """A rank that computes for 700 of 1000 µs and waits in NCCL for the rest.

    The main thread launches the forward's kernels and another one the backward's; `keeps` says of which steps the
    kernels of either are in the capture.
    """
    capture = Capture(pid=100 + device, device=device)
    for step in range(STEPS):
        begin = step * 1000
        capture.range("step", begin, begin + 1000)
        for number in range(FORWARD + BACKWARD):
            forward = number < FORWARD
            at = begin + 35 * number
            launch = {"launched": at - 300, "took": 1.0, "tid": None if forward else AUTOGRAD}
            if keeps(step, forward):
                capture.kernel(at, at + 35, **launch)
            else:
                capture.call("cudaLaunchKernel_v7000", at - 300, at - 299, launch["tid"])
        capture.kernel(begin + 700, begin + 1000, launched=begin + 380, name=NCCL, stream=9)
    return capture


def report_on(folder: Path, *ranks: Capture) -> Report:
    return analyze_trace(open_trace(write_sqlite(folder / "ranks.sqlite", list(ranks))))


def ids(report: Report) -> list[str]:
    return [finding.id for finding in report.findings]


def test_a_thread_whose_kernels_are_missing_is_told_first(tmp_path: Path) -> None:
    report = report_on(tmp_path, rank(0, lambda step, forward: not forward))
    first = report.findings[0]
    assert (first.id, first.severity) == ("records_lost", "critical")
    assert first.evidence == {"pid": 100, "launched": 210, "missing": 100, "launched_by_threads": "100"}
    assert (
        "did not record 100 of the 210 kernels that pid 100 launched (47.6 %): GPU 0 looks idle" in first.summary
    )
    assert report.summary.endswith("and the time that they took is counted as idle.")


def test_the_rank_that_is_whole_is_judged_and_none_is_called_a_straggler(tmp_path: Path) -> None:
    lossy = rank(0, lambda step, forward: not forward)
    report = report_on(tmp_path, lossy, rank(1))
    assert report.verdict == "communication_bound"
    assert [device.judged for device in report.devices] == [False, True]
    assert ids(report)[:2] == ["records_lost", "communication_bound"]
    assert report.findings[0].severity == "warning", "what is said of the other one holds"
    assert "straggler" not in ids(report)
    assert "rely" not in report.summary


def test_a_whole_capture_is_not_accused(tmp_path: Path) -> None:
    assert "records_lost" not in ids(report_on(tmp_path, rank(0)))


@pytest.mark.parametrize("behind_us", [1500, 3500])
def test_what_was_launched_but_had_no_time_to_run_is_not_lost(tmp_path: Path, behind_us: int) -> None:
    """The host is ahead of the device: of what it launched last, no kernel has run when the capture ends."""
    capture = Capture(pid=100)
    for number in range(100):
        at = 100 * number
        if at + behind_us < 10_000:
            capture.kernel(at + behind_us, at + behind_us + 90, launched=at)
        else:
            capture.call("cudaLaunchKernel_v7000", at, at + 5)
        capture.kernel(at + 30, at + 40, launched=at + 20, stream=11)  # which waits for nothing
    assert "records_lost" not in ids(report_on(tmp_path, capture))


def test_a_few_at_the_edges_are_no_loss(tmp_path: Path) -> None:
    capture = rank(0)
    for number in range(19):
        capture.call("cudaLaunchKernel_v7000", number, number + 0.5)
    assert "records_lost" not in ids(report_on(tmp_path, capture))
    capture.call("cudaLaunchKernel_v7000", 20, 20.5)
    assert "records_lost" in ids(report_on(tmp_path, capture))


@pytest.mark.parametrize("seen_to_begin", [True, False])
def test_launches_into_a_cuda_graph_run_nothing(tmp_path: Path, seen_to_begin: bool) -> None:
    capture = rank(0)
    if seen_to_begin:
        capture.call("cudaStreamBeginCapture_v10000", 3000, 3001)
    for number in range(100):
        at = (3002 if seen_to_begin else -400) + number
        capture.call("cudaLaunchKernel_v7000", at, at + 0.5, tid=AUTOGRAD)
    end = 3200 if seen_to_begin else -200
    capture.call("cudaStreamEndCapture_v10000", end, end + 1)
    capture.call("cudaStreamBeginCapture_v10000", 9_500, 9_501)  # and one is not seen to end
    assert "records_lost" not in ids(report_on(tmp_path, capture))
    for number in range(30):
        capture.call("cuLaunchKernelEx", end + 10 + number, end + 10.5 + number)
    assert "records_lost" in ids(report_on(tmp_path, capture)), "those after it are launched"


def test_kernels_that_vanish_while_another_stream_s_are_there_are_lost(
    tmp_path: Path,
) -> None:
    report = report_on(tmp_path, rank(0, lambda step, forward: step < 4))
    lost = report.findings[0]
    assert lost.id == "records_lost"
    assert lost.evidence["missing"] > 80, "NCCL's kernels show that the last six steps have run"


def test_two_gpus_of_one_process_each_have_a_queue_of_their_own(tmp_path: Path) -> None:
    """The default stream of both has the same number, and one GPU is far behind."""
    capture = Capture(pid=100)
    for number in range(100):
        at = 100 * number
        capture.device = 0
        capture.kernel(at + 10, at + 90, launched=at)
        capture.device = 1
        if at + 3000 < 10_000:
            capture.kernel(at + 3000, at + 3090, launched=at + 20)
        else:
            capture.call("cudaLaunchKernel_v7000", at + 20, at + 25)
    assert "records_lost" not in ids(report_on(tmp_path, capture))


@pytest.mark.parametrize("waited_for", [True, False])
def test_no_kernel_at_all_is_a_loss_where_the_host_has_waited_for_them(tmp_path: Path, waited_for: bool) -> None:
    capture = rank(0, lambda step, forward: False)
    capture.ops = []  # or the first of them still runs, and all others are queued behind it
    if waited_for:
        capture.call("cudaStreamSynchronize_v3020", 9900, 9990)
    report = report_on(tmp_path, capture)
    assert report.verdict == "unknown"
    assert [finding.evidence["missing"] for finding in report.findings] == ([210] if waited_for else [])


def test_a_call_within_a_call_is_one_launch(tmp_path: Path) -> None:
    capture = rank(0)
    for call in [call for call in capture.calls if call["name"] == "cudaLaunchKernel"]:
        capture.calls.append(call | {"name": "cuLaunchKernel", "start": call["start"] + 0.2})
    assert "records_lost" not in ids(report_on(tmp_path, capture))


def test_a_tool_that_joins_nothing_has_lost_nothing(tmp_path: Path) -> None:
    capture = rank(0)
    for op in capture.ops:
        op["corr"] = 0
    assert "records_lost" not in ids(report_on(tmp_path, capture))


def test_torch_s_own_traces_are_held_to_the_same(tmp_path: Path) -> None:
    path = write_chrome(tmp_path / "rank0.json", rank(0, lambda step, forward: not forward))
    found = analyze_trace(open_trace(path)).findings[0]
    assert found.id == "records_lost"
    assert found.summary.startswith("kineto ")
