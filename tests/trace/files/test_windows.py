"""Files that are several windows of one process, and files of processes that only share a pid."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.document.markdown import write_markdown
from llmtop.report.document import report_document
from llmtop.report.model import Report
from llmtop.trace.files.open import open_trace, open_traces
from tests.support.traces import Capture, steady, write_chrome

STEP = 10_000.0
WINDOW = 6 * STEP


def _window(folder: Path, name: str, begin: float, rank: int | None = None, pid: int = 42) -> None:
    more = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
    capture = steady(6, STEP, capture=Capture(pid=pid))
    write_chrome(folder / name, capture, zero_us=begin, baseTimeNanoseconds=1_700_000_000_000_000_000, **more)


def _report(folder: Path) -> Report:
    return analyze_trace(open_trace(folder))


@pytest.mark.parametrize("rank", [None, 0])
def test_two_windows_of_one_process_are_one_process(tmp_path: Path, rank: int | None) -> None:
    _window(tmp_path, "a.json", 0, rank)
    _window(tmp_path, "b.json", 60e6, rank)
    report = _report(tmp_path)
    (device,) = report.devices
    assert (device.pid, device.rank) == (42, rank)
    assert device.steps == 11, "those of both windows, and one across the seam"
    assert (report.steps.seconds_max or 1) < 1.5 * STEP / 1e6, "the minute between is in no step"
    assert report.verdict == "gpu_bound"
    assert not any(finding.id == "straggler" for finding in report.findings)
    assert any("windows of one process" in note for note in report.notes)


def test_a_rank_that_was_started_again_is_one_rank_in_files_given_by_name(tmp_path: Path) -> None:
    _window(tmp_path, "a.json", 0, 3, pid=42)
    _window(tmp_path, "b.json", 60e6, 3, pid=77)
    report = analyze_trace(open_traces([tmp_path / "a.json", tmp_path / "b.json"]))
    assert [device.pid for device in report.devices] == [42]
    assert any("windows of one rank, which was started again" in note for note in report.notes)


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_window_that_begins_where_the_one_before_ends_is_of_the_same_process(tmp_path: Path, names: str) -> None:
    """Files are read by name, so the later window may be the first."""
    for number in range(2):
        capture = Capture(pid=42)
        for begin in range(0, 60_000, 10_000):
            capture.kernel(begin + 10, begin + 10_000, launched=begin)
        write_chrome(tmp_path / f"{names[number]}.json", capture, zero_us=60_000.0 * number, baseTimeNanoseconds=1)
    assert {device.pid for device in _report(tmp_path).devices} == {42}


def test_two_windows_of_two_ranks_stay_aligned(tmp_path: Path) -> None:
    for rank in (0, 1):
        _window(tmp_path, f"a{rank}.json", 0, rank, pid=42 + rank)
        _window(tmp_path, f"b{rank}.json", 60e6, rank, pid=42 + rank)
    report = _report(tmp_path)
    assert [(device.pid, device.rank, device.steps) for device in report.devices] == [(42, 0, 11), (43, 1, 11)]


@pytest.mark.parametrize("ranks", [(None, None), (0, 1)])
def test_one_pid_at_one_time_is_two_processes_whose_pid_is_shown(
    tmp_path: Path, ranks: tuple[int | None, int | None]
) -> None:
    _window(tmp_path, "a.json", 0, ranks[0])
    _window(tmp_path, "b.json", 1.0, ranks[1])  # not at the same ns, as a copy of the file would be
    report = _report(tmp_path)
    assert len(report.devices) == 2
    text = write_markdown(report_document(report))
    assert "42 (file 2)" in text
    assert "10000042" not in text
    assert "10,000,042" not in text


def test_other_ranks_of_one_pid_are_two_processes_whenever_they_ran(tmp_path: Path) -> None:
    _window(tmp_path, "a.json", 0, 0)
    _window(tmp_path, "b.json", 60e6, 1)
    assert len(_report(tmp_path).devices) == 2


def test_calls_of_two_windows_with_the_same_ids_launch_their_own_work(tmp_path: Path) -> None:
    _window(tmp_path, "a.json", 0)
    _window(tmp_path, "b.json", 60e6)
    trace = open_trace(tmp_path)
    calls = trace.calls.select(trace.launched_by)
    assert (trace.launched_by >= 0).all()
    assert (trace.ops.start - calls.start).max() <= WINDOW * 1000
    assert (trace.ops.start >= calls.start).all()
