"""Several runs in one log folder: the newest is read, and a sentence at the top of the report names the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.document.text import write_text
from llmtop.report.document import brief_document
from llmtop.report.model import Report
from llmtop.trace.files.open import open_trace
from tests.support.traces import Capture, steady, write_chrome

STEP = 10_000.0
MINUTE = 60e6


def _trace(folder: Path, name: str, begin: float, pid: int, rank: int | None = None, steps: int = 6) -> None:
    more = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
    capture = steady(steps, STEP, capture=Capture(pid=pid))
    folder.mkdir(exist_ok=True)
    write_chrome(folder / name, capture, zero_us=begin, baseTimeNanoseconds=1_700_000_000_000_000_000, **more)


def _report(folder: Path) -> Report:
    return analyze_trace(open_trace(folder))


@pytest.mark.parametrize("rank", [None, 0])
def test_of_two_runs_in_a_flat_folder_the_newest_is_judged_and_the_report_begins_with_that(
    tmp_path: Path, rank: int | None
) -> None:
    _trace(tmp_path, "b.json", 0, 42, rank, steps=9)
    _trace(tmp_path, "a.json", MINUTE, 77, rank, steps=6)
    report = _report(tmp_path)
    assert [device.pid for device in report.devices] == [77]
    assert report.devices[0].kernels == len(steady(6).ops), "not the sum of both runs"
    lines = " ".join(write_text(brief_document(report), width=80).split())
    assert f"{tmp_path} holds 2 runs: this report is of the newest, a.json; not in it: b.json." in lines


def test_of_two_runs_of_two_ranks_both_ranks_of_the_newest_are_judged(tmp_path: Path) -> None:
    for run, begin in enumerate((0.0, MINUTE)):
        for rank in (0, 1):
            # The second rank begins a moment later, and is still recorded when the first has ended.
            _trace(tmp_path, f"run{run}_rank{rank}.json", begin + 500 * rank, 100 * (run + 1) + rank, rank)
    report = _report(tmp_path)
    assert sorted(device.pid for device in report.devices) == [200, 201]
    assert (report.which_run or "").endswith(
        "of the newest, run1_rank0.json and 1 more file; not in it: run0_rank0.json and 1 more file"
    )


def test_processes_of_one_run_without_ranks_are_no_runs(tmp_path: Path) -> None:
    _trace(tmp_path, "a.json", 0, 42)
    _trace(tmp_path, "b.json", 1000.0, 43)
    report = _report(tmp_path)
    assert len(report.devices) == 2
    assert report.which_run is None


def test_windows_of_one_process_are_no_runs(tmp_path: Path) -> None:
    _trace(tmp_path, "node_42.1700000000000.pt.trace.json", 0, 42)
    _trace(tmp_path, "node_42.1700000060000.pt.trace.json", MINUTE, 42)
    report = _report(tmp_path)
    assert report.which_run is None
    assert report.devices[0].kernels == 2 * len(steady(6).ops)


def test_containers_whose_runs_have_the_same_pid_are_runs(tmp_path: Path) -> None:
    _trace(tmp_path, "2f0c41d7_42.1700000000000.pt.trace.json", 0, 42, steps=9)
    _trace(tmp_path, "91be77a2_42.1700000060000.pt.trace.json", MINUTE, 42)
    report = _report(tmp_path)
    assert report.devices[0].kernels == len(steady(6).ops)
    assert "newest, 91be77a2_42" in (report.which_run or "")


def test_one_level_down_the_report_begins_with_the_run_as_well(tmp_path: Path) -> None:
    _trace(tmp_path / "run1", "host_42.1700000000000.pt.trace.json", 0, 42)
    _trace(tmp_path / "run2", "host_77.1700000060000.pt.trace.json", MINUTE, 77)
    report = _report(tmp_path)
    assert [device.pid for device in report.devices] == [77]
    lines = " ".join(write_text(brief_document(report), width=80).split())
    assert "holds 2 runs: this report is of the newest, run2; not in it: run1." in lines
