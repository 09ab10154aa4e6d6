"""Several ranks: what of NCCL is exposed, who is judged, who holds the others up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.report.model import Report
from llmtop.trace.files.open import open_trace
from tests.support.traces import Capture, steady, write_chrome, write_sqlite

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def _rank(device: int, compute: float, beside: float, exposed: float, steps: int = 6, idle: float = 0) -> Capture:
    """A rank whose step is compute (with NCCL beside its end), exposed NCCL, and idle time in a dataload range."""
    capture = Capture(pid=100 + device, device=device)
    period = compute + exposed + idle
    for step in range(steps):
        begin = step * period
        capture.range("step", begin, begin + period)
        capture.range("dataload", begin, begin + idle)
        begin += idle
        capture.kernel(begin + 5, begin + 5 + compute, launched=begin - 2 if idle else begin - 20, took=1)
        capture.kernel(
            begin + 5 + compute - beside, begin + 5 + compute + exposed, launched=begin, name=NCCL, stream=9
        )
    return capture


def _report(folder: Path, *ranks: Capture) -> Report:
    return analyze_trace(open_trace(write_sqlite(folder / "ranks.sqlite", list(ranks))))


def test_a_device_without_collectives_hides_none_of_the_others(tmp_path: Path) -> None:
    report = _report(tmp_path, steady(6, 1000.0, capture=Capture(pid=99)), _rank(1, 990, 400, 10))
    assert [(one.pid, one.name) for one in report.collectives] == [(101, "AllReduce")]


def test_overlapped_nccl_costs_nothing(tmp_path: Path) -> None:
    report = _report(tmp_path, _rank(0, 990, 400, 10), _rank(1, 990, 400, 10))
    assert report.verdict == "gpu_bound"
    for device in report.devices:
        assert device.nccl_pct == pytest.approx(41, abs=1)
        assert device.nccl_exposed_pct == pytest.approx(1, abs=0.3)
    assert report.collectives[0].name == "AllReduce"
    assert report.collectives[0].exposed_ms_per_step == pytest.approx(0.01, rel=0.1)


def test_nccl_with_nothing_beside_it_is_communication_bound(tmp_path: Path) -> None:
    report = _report(tmp_path, _rank(0, 700, 0, 300), _rank(1, 700, 0, 300))
    assert report.verdict == "communication_bound"
    finding = report.findings[0]
    assert finding.id == "communication_bound"
    assert finding.share_pct == pytest.approx(30, abs=1)
    assert finding.evidence["overlapped_pct_of_nccl"] == pytest.approx(0, abs=2)
    assert not any(finding.id == "straggler" for finding in report.findings)


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"pids": [100, 101], "ranks": [4, 7]}, 7),
        ({"pids": [100, 101], "ranks": [None, None]}, None),
        ({"pids": [100, 101], "ranks": [7]}, None),
        ({"pids": ["101"], "ranks": ["7"]}, None),
        ({"pids": [100, 101], "ranks": [4, 7], "hosts": ["a", "b"]}, None),
        (None, None),
    ],
    ids=["told", "not attached", "too few", "words", "of several hosts", "nothing told"],
)
def test_ranks_that_the_file_does_not_tell_are_those_that_were_asked_for(
    tmp_path: Path, told: dict[str, object] | None, named: int | None
) -> None:
    write_sqlite(tmp_path / "trace.sqlite", [_rank(0, 700, 0, 300), _rank(1, 980, 0, 20)])
    if told is not None:
        (tmp_path / "capture.json").write_text(json.dumps(told))
    report = analyze(tmp_path)
    finding = next(finding for finding in report.findings if finding.id == "straggler")
    assert finding.evidence["culprit_pid"] == 101
    assert finding.evidence.get("culprit_rank") == named
    assert [device.rank for device in report.devices] == [named and 4, named]
    assert ("rank 7" in finding.summary) == (named == 7)


def test_a_rank_that_waits_less_is_the_straggler_and_is_judged(tmp_path: Path) -> None:
    report = _report(tmp_path, _rank(0, 700, 0, 300), _rank(1, 980, 0, 20))
    assert report.verdict == "gpu_bound", "the others wait for rank 1, which waits for nobody"
    finding = next(finding for finding in report.findings if finding.id == "straggler")
    assert finding.evidence["culprit_device"] == 1
    assert finding.severity == "critical"
    assert "--" not in finding.summary
    assert "GPU 1" in finding.summary
    assert [device.judged for device in report.devices] == [False, True]


def test_the_straggler_s_own_cause_is_the_verdict(tmp_path: Path) -> None:
    report = _report(tmp_path, _rank(0, 600, 0, 400), _rank(1, 600, 0, 10, idle=390))
    assert report.verdict == "input_bound"
    assert any(finding.id == "straggler" for finding in report.findings)


def test_a_process_that_only_touches_a_gpu_is_not_judged(tmp_path: Path) -> None:
    passing = Capture(pid=900, device=0)
    passing.kernel(100, 101, launched=50)
    passing.kernel(5000, 5001, launched=4950)
    worker = _rank(1, 980, 0, 0)
    worker.ops = [op for op in worker.ops if op["name"] != NCCL]
    report = _report(tmp_path, passing, worker)
    assert [device.pid for device in report.devices if device.judged] == [101]
    assert report.verdict == "gpu_bound"


def test_one_rank_alone_is_told_to_be_so(tmp_path: Path) -> None:
    path = write_chrome(
        tmp_path / "rank0.json", _rank(0, 700, 0, 300), distributedInfo={"rank": 0, "world_size": 2}
    )
    report = analyze(path)
    assert report.verdict == "communication_bound"
    assert report.devices[0].rank == 0
    assert any("alone" in note for note in report.notes)


def test_ranks_are_named_where_the_files_name_them(tmp_path: Path) -> None:
    for rank, capture in enumerate((_rank(0, 700, 0, 300), _rank(1, 980, 0, 20))):
        write_chrome(tmp_path / f"r{rank}.json", capture, distributedInfo={"rank": rank + 4, "world_size": 8})
    report = analyze(tmp_path)
    finding = next(finding for finding in report.findings if finding.id == "straggler")
    assert finding.summary.startswith("rank 5 (GPU 1)")
    assert finding.evidence["culprit_rank"] == 5


@pytest.mark.parametrize(
    ("name", "torch_name", "elements", "dtype", "ranks", "factor"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "allreduce", (1_000_000, 1_000_000), "BFloat16", 8, 1.75),
        ("ncclDevKernel_AllGather_RING_LL", "_allgather_base", (125_000, 1_000_000), "BFloat16", 8, 0.875),
        ("ncclDevKernel_ReduceScatter_Sum", "_reduce_scatter_base", (500_000, 125_000), "Float", 4, 0.75),
        ("ncclDevKernel_SendRecv", "send", (1_000, 1_000), "Half", 2, 1.0),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "allreduce", (500, 500), "Float", 2, 1.0),
    ],
)
def test_bus_bandwidth_is_as_nccl_tests_counts_it(
    tmp_path: Path,
    name: str,
    torch_name: str,
    elements: tuple[int, int],
    dtype: str,
    ranks: int,
    factor: float,
) -> None:
    made = steady()
    size = max(elements) * {"BFloat16": 2, "Half": 2, "Float": 4}[dtype]
    what = {"Collective name": torch_name, "In msg nelems": elements[0], "Out msg nelems": elements[1]}
    for step in range(6):
        begin = step * 10_000.0
        for took in (100, 300):  # the second waited for somebody
            begin += 1_000
            more = what | {"Group size": ranks, "dtype": dtype}
            made.kernel(begin, begin + took, launched=step * 10_000 + 20, name=name, stream=9, **more)
    rows = analyze_trace(made.chrome_trace(tmp_path)).collectives
    assert len(rows) == 1
    row = rows[0]
    assert row.ranks == ranks
    assert row.message_bytes == size
    assert row.algorithm_gb_per_s == pytest.approx(2 * size / 400e-6 / 1e9)
    assert row.bus_gb_per_s == pytest.approx(factor * 2 * size / 400e-6 / 1e9)
    assert row.fastest_bus_gb_per_s == pytest.approx(factor * size / 100e-6 / 1e9)
    if torch_name == "allreduce":
        assert row.name == "AllReduce"


def test_without_sizes_there_is_no_bandwidth(tmp_path: Path) -> None:
    made = steady()
    for step in range(6):
        begin = step * 10_000.0 + 1_000
        made.kernel(begin, begin + 100, launched=begin - 900, name="ncclDevKernel_AllReduce_Sum_f32", stream=9)
    row = analyze_trace(made.chrome_trace(tmp_path)).collectives[0]
    assert (row.message_bytes, row.ranks, row.bus_gb_per_s) == (None, None, None)
