"""Sentences that were false or unfit in public captures of CUDA programs, each with the case beside it."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.document.text import write_text
from llmtop.report.document import report_document
from llmtop.report.model import Report
from tests.support.nsys_tables import NsysTables
from tests.support.traces import MAIN, Capture, write_sqlite

TEMPLATE = re.compile(r"\{[a-z_]+\}")


def _named(path: Path, process: str) -> Path:
    """The export with the process's name, as nsys writes it."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE IF NOT EXISTS PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)")
        database.execute("INSERT INTO PROCESSES VALUES (?, ?, ?)", (MAIN << 24, MAIN, process))
    return path


def _program(capture: Capture, folder: Path) -> Report:
    return analyze(_named(write_sqlite(folder / "report1.sqlite", [capture]), "./add_gpu"))


def _said(report: Report) -> str:
    return " ".join(write_text(report_document(report), 100).split())


def test_a_program_that_runs_each_kernel_once_is_not_told_to_capture_steps(tmp_path: Path) -> None:
    made = Capture()
    made.copy(0, 8_000, 8 << 20, launched=0)
    made.kernel(8_100, 9_000, launched=8_050, name="vector_add(float*, float*)")
    made.copy(9_100, 12_000, 4 << 20, direction="DtoH", launched=9_050)
    report = _program(made, tmp_path)
    assert report.verdict == "unknown"
    assert "Each kernel ran once, so there is no step to judge" in report.summary
    assert "Capture some whole steps" not in _said(report)
    copies = next(one for one in report.findings if one.id == "pageable_copies")
    assert "host-to-device from pageable memory" in copies.summary


def test_a_program_that_repeats_its_kernel_is(tmp_path: Path) -> None:
    made = Capture()
    for number in range(6):
        made.kernel(number * 1000, number * 1000 + 20, launched=number * 1000 - 5, name="vector_add(float*)")
    assert "Capture some whole steps" in _said(_program(made, tmp_path))


def _with_set_up(made: Capture) -> Capture:
    """A loop of one long kernel, whose module the second launch loads for 30 ms."""
    for number in range(30):
        at = number * 10_000.0 + (30_000 if number else 0)
        made.kernel(at + 100, at + 9_950, launched=at + 20, name="fit_lines", took=29_000 if number == 1 else 5)
    return made


def test_no_finding_keeps_the_braces_of_a_template(tmp_path: Path) -> None:
    report = _program(_with_set_up(Capture()), tmp_path)
    assert not [one.id for one in report.findings if TEMPLATE.search(one.next + one.fix + one.summary)]
    assert "--delay=10" not in _said(report), "the program ends before that"


def test_where_nothing_of_the_gpu_was_recorded_no_gpu_looks_idle(tmp_path: Path) -> None:
    """As on WSL 2: calls of CUDA and no kernel."""
    made = Capture()
    for number in range(40):
        made.call("cudaLaunchKernel_v7000", number * 100, number * 100 + 10)
    made.call("cudaDeviceSynchronize_v3020", 5_000, 9_000)
    report = _program(made, tmp_path)
    first = report.findings[0]
    assert first.id == "records_lost"
    assert "recorded nothing of the GPU, although pid 100 launched 40 kernels" in first.summary
    said = _said(report)
    for unfit in ("looks idle", "python train.py", "save a checkpoint"):
        assert unfit not in said


@pytest.mark.parametrize(("busy_us", "told"), [(10.0, False), (9_000.0, True)])
def test_what_a_gpu_that_hardly_works_could_save_is_no_advice(tmp_path: Path, busy_us: float, told: bool) -> None:
    made = Capture()
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
    for number in range(4):
        at = number * 10_000.0
        made.kernel(at, at + busy_us, launched=at - 5, name=name)
    report = analyze_trace(made.trace(tmp_path))
    assert (report.verdict == "unknown") == (not told)
    assert ("elementwise" in {one.id for one in report.findings}) == told


def test_copies_within_the_device_are_counted_whatever_launched_them(tmp_path: Path) -> None:
    made = Capture()
    for number in range(4):
        at = number * 1_000.0
        made.kernel(at, at + 600, launched=at - 5, name="gemm_kernel")
        made.copy(at + 600, at + 900, 1 << 20, direction="DtoD", memory="Device", launched=at - 3)
    report = analyze_trace(made.trace(tmp_path))
    assert report.makeup is not None
    assert report.makeup.copy_cast_pct == pytest.approx(100 * 300 / 900)


def test_a_phase_is_idle_before_the_first_kernel_as_well(tmp_path: Path) -> None:
    """One step of 10 ms whose only kernel runs for 1 ms in its backward phase, from 6 to 9 ms."""
    made = Capture()
    made.range("ProfilerStep#3", 0, 10_000)
    made.range("forward", 100, 5_900)
    made.range("backward", 6_000, 9_000)
    made.kernel(7_000, 8_000, launched=6_990)
    report = analyze_trace(made.trace(tmp_path))
    idle = {row.name: row.gpu_idle_seconds for row in report.phases}
    assert idle["forward"] == pytest.approx(5.8e-3)
    assert idle["backward"] == pytest.approx(2e-3)


def test_samples_of_a_capture_without_ranges_are_not_of_threads_with_ranges(tmp_path: Path) -> None:
    made = Capture()
    made.call("cudaGetDeviceCount_v3020", 0, 5)
    path = _named(write_sqlite(tmp_path / "report1.sqlite", [made]), "./test")
    NsysTables(path).samples(MAIN, MAIN, [10.0 * n for n in range(20)], [("GOMP_barrier", "/l/libgomp.so")])
    said = _said(analyze(path))
    assert "Stack samples of all threads" in said
    assert "threads with ranges" not in said


def test_the_phase_of_a_long_gap_is_the_one_that_the_host_was_in_for_most_of_it(tmp_path: Path) -> None:
    """The gap begins in the last 40 µs of the optimizer's step and goes on for 4 ms in the loader."""
    made = Capture()
    for step in range(6):
        at = step * 10_000.0
        made.range("optimizer", at + 3_000, at + 5_040)
        made.range("dataload", at + 5_050, at + 9_000)
        made.kernel(at + 20, at + 5_000, launched=at + 5)
        made.kernel(at + 9_100, at + 9_990, launched=at + 9_050)
    report = analyze_trace(made.trace(tmp_path))
    assert report.longest_gaps[0].seconds == pytest.approx(4.1e-3, rel=0.1)
    assert report.longest_gaps[0].phase == "dataload"


@pytest.mark.parametrize(("process", "command"), [("./solver", "./solver"), ("regression_shar", "./PROGRAM")])
def test_a_process_name_that_linux_cut_is_no_command(tmp_path: Path, process: str, command: str) -> None:
    made = Capture()
    for number in range(30):
        made.kernel(number * 1_000, number * 1_000 + 990, launched=number * 1_000 - 5, name="fused_kernel(float*)")
    path = _named(write_sqlite(tmp_path / "report1.sqlite", [made]), process)
    hot = next(one for one in analyze(path).findings if one.id == "hot_kernel")
    assert hot.next.endswith(command)
