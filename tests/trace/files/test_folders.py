"""Folders of traces some levels down: of ranks together, of runs the newest, with a note on the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmtop.errors import UnusableInput
from llmtop.trace.files.open import open_trace
from tests.support.traces import Capture, steady, write_chrome, write_sqlite


def _trace(folder: Path, pid: int, rank: int | None = None, name: str = "host.pt.trace.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    place = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 4}}
    return write_chrome(folder / name, steady(capture=Capture(pid=pid)), zero_us=pid * 7.0, **place)


def _ranks(folder: Path) -> list[int]:
    return sorted(one.rank for one in open_trace(folder).ranks)


@pytest.mark.parametrize(
    "layout",
    [
        ["rank0", "rank1", "rank2"],
        ["run/rank_0", "run/rank_1", "run/rank_2"],
        ["0", "1", "2"],
        ["node0/rank0", "node0/rank1", "node1/rank2"],
        ["rank0/plugins/profile/2026_01_01", "rank1", "rank2/logs/traces"],
    ],
)
def test_folders_of_ranks_are_one_capture(tmp_path: Path, layout: list[str]) -> None:
    for rank, folder in enumerate(layout):
        _trace(tmp_path / folder, 100 + rank, rank)
    assert _ranks(tmp_path) == [0, 1, 2]


def test_of_one_rank_the_newest_window_is_read(tmp_path: Path) -> None:
    for rank in (0, 1):
        for run in ("2026_01_01", "2026_01_02"):
            path = _trace(tmp_path / f"rank{rank}" / "plugins" / "profile" / run, 100 + rank, rank, f"{run}.json")
            os.utime(path, (1e9, 1e9))
    trace = open_trace(tmp_path)
    assert sorted(one.rank for one in trace.ranks) == [0, 1]
    assert len(trace.ops) == 2 * len(steady().ops)


def test_of_several_runs_the_newest_is_read_and_the_others_are_named(tmp_path: Path) -> None:
    for age, run in enumerate(("c", "a", "b")):
        path = _trace(tmp_path / "logs" / run / "plugins" / "profile" / f"2026_01_0{age}", 100 + age)
        os.utime(path, (1e9 - age, 1e9 - age))
    trace = open_trace(tmp_path)
    assert trace.ops.process.tolist() == [100] * len(trace.ops)
    assert "holds 3 runs: this report is of the newest, logs/c/plugins/profile/2026_01_00" in trace.which_run
    assert "logs/a/" in trace.which_run
    assert "logs/b/" in trace.which_run


def test_traces_of_one_log_folder_are_told_apart_by_their_names(tmp_path: Path) -> None:
    for place, run in enumerate(("2026_01_01_10_00_00", "2026_01_02_10_00_00")):
        path = _trace(tmp_path / "plugins" / "profile" / run, 100 + place)
        os.utime(path, (1e9 - place, 1e9 - place))  # a copy has the times of copying
    assert set(open_trace(tmp_path).ops.process.tolist()) == {101}


def test_exports_of_nsys_are_found_as_well(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}").mkdir()
        write_sqlite(tmp_path / f"rank{rank}" / "report.sqlite", [steady(capture=Capture(pid=100 + rank))])
    assert set(open_trace(tmp_path).ops.process.tolist()) == {100, 101}


def test_what_lies_in_the_folder_itself_comes_first(tmp_path: Path) -> None:
    _trace(tmp_path, 7)
    _trace(tmp_path / "old", 8)
    assert set(open_trace(tmp_path).ops.process.tolist()) == {7}


def test_a_folder_without_captures_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "notes.txt").write_text("nothing")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    with pytest.raises(UnusableInput, match=r"holds no capture: .* in the folders below it"):
        open_trace(tmp_path)
