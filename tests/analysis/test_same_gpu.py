"""Which processes share a GPU: a number is a process's own, so every rank may call its GPU 0."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.trace.files.open import open_trace
from tests.support import written
from tests.support.data import DATA
from tests.support.traces import Capture, write_chrome, write_sqlite


def _beside_each_other(first_device: int = 0, second_device: int = 0) -> list[Capture]:
    """Two ranks of which one works while the other is idle."""
    made = []
    for rank, device in enumerate((first_device, second_device)):
        capture = Capture(pid=100 + rank, device=device)
        for step in range(6):
            begin = step * 1000
            capture.range("step", begin, begin + 1000)
            capture.kernel(
                begin + 500 * rank + 10, begin + 500 * rank + 490, launched=begin + 500 * rank + 5, took=2
            )
        made.append(capture)
    return made


def _shared(report_gaps: object) -> set[str]:
    return {row.cause for row in report_gaps}  # type: ignore[attr-defined]  # GapTime has


def test_ranks_of_several_files_that_say_device_0_share_nothing(tmp_path: Path) -> None:
    for rank, capture in enumerate(_beside_each_other()):
        write_chrome(tmp_path / f"r{rank}.json", capture, distributedInfo={"rank": rank, "world_size": 2})
    report = analyze(tmp_path)
    assert [(device.device, device.rank) for device in report.devices] == [(0, 0), (0, 1)]
    assert "other_process" not in _shared(report.gaps)
    assert "GPU 0 (pid 10" in report.summary, "which of the two it is"
    text = written.text(report)
    assert "GPU 0, pid 100: " in text
    assert "GPU 0, pid 101: " in text


@pytest.mark.slow("reads all real traces; test_steps and test_calls_a_step read one")
def test_a_real_run_s_verdict_is_the_same_when_each_rank_calls_its_gpu_0(tmp_path: Path) -> None:
    reports = []
    for renumbered in (False, True):
        folder = tmp_path / str(renumbered)
        folder.mkdir()
        with tarfile.open(DATA / "labelled" / "tuning.tar.xz") as tar:
            for rank in (0, 1):
                file = tar.extractfile(f"kineto-ddp_healthy_medium.rank{rank}.json")
                assert file is not None
                trace = json.load(io.TextIOWrapper(file))
                for event in trace["traceEvents"] if renumbered and rank else ():
                    if "device" in event.get("args", {}):
                        event["args"]["device"] = 0
                (folder / f"rank{rank}.json").write_text(json.dumps(trace))
        reports.append(analyze(folder))
    plain, renumbered_report = reports
    assert renumbered_report.verdict == plain.verdict
    assert [device.lost_pct for device in renumbered_report.devices] == [
        device.lost_pct for device in plain.devices
    ]


def test_processes_of_one_file_on_one_device_share_it(tmp_path: Path) -> None:
    report = analyze_trace(open_trace(write_sqlite(tmp_path / "one.sqlite", _beside_each_other())))
    assert "other_process" in _shared(report.gaps)


@pytest.mark.parametrize(("second", "shared"), [(0, True), (1, False)])
def test_nsys_says_which_gpu_a_process_calls_0(tmp_path: Path, second: int, shared: bool) -> None:
    path = write_sqlite(tmp_path / "visible.sqlite", _beside_each_other())
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, uuid TEXT);"
        "INSERT INTO TARGET_INFO_GPU VALUES (0, 'one', 'uuid-0'), (1, 'other', 'uuid-1');"
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);"
        f"INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 100), ({second}, 0, 101);"
    )
    database.close()
    report = analyze_trace(open_trace(path))
    assert [device.uuid for device in report.devices] == ["uuid-0", f"uuid-{second}"]
    assert ("other_process" in _shared(report.gaps)) == shared


def test_files_of_ranks_on_one_gpu_are_known_by_its_uuid(tmp_path: Path) -> None:
    for rank, capture in enumerate(_beside_each_other()):
        database = sqlite3.connect(write_sqlite(tmp_path / f"r{rank}.sqlite", [capture]))
        database.executescript(
            "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, uuid TEXT);"
            "INSERT INTO TARGET_INFO_GPU VALUES (0, 'one', 'uuid-0');"
        )
        database.close()
    assert "other_process" in _shared(analyze(tmp_path).gaps)
