"""Traces of torch_xla's profiler, recorded on its CPU backend, with and without the script's marks of steps."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.report.model import Report
from llmtop.trace import model
from tests.support.processes import REPOSITORY
from tests.support.xla_traces import HOST, meta, timed, written
from tests.trace.files.test_xspace import with_xprof, xprof

DATA = REPOSITORY / "tests" / "data" / "torch_xla"
__all__ = ["xprof"]


def recorded(name: str, folder: Path) -> Path:
    path = folder / f"{name}.trace.json.gz"
    path.write_bytes(gzip.compress(lzma.decompress((DATA / f"{name}.trace.json.xz").read_bytes())))
    return path


def words(report: Report) -> str:
    return " ".join((report.summary, *(f"{one.fix} {one.next} {one.summary}" for one in report.findings)))


@pytest.mark.parametrize(
    ("name", "found_by"),
    [
        ("cpu_steptrace", "the range 'train step'"),
        ("cpu_sync", "from one mark of torch_xla's (torch_xla.sync, mark_step) to the next"),
    ],
)
def test_steps_are_the_script_s_marks_else_torch_xla_s(name: str, found_by: str, tmp_path: Path) -> None:
    report = analyze(recorded(name, tmp_path))
    assert (report.engine, report.steps.found_by) == ("xla.profiler", found_by)
    assert report.steps.count > 5
    assert report.steps.clock == "host", "which mark handed over which work is not in the file"
    assert report.makeup is not None
    assert (report.makeup.framework, report.makeup.vendor) == ("torch_xla", "CPU")
    assert any("may lie in the next" in note for note in report.notes)
    assert [device.name for device in report.devices] == [model.CPU]
    assert report.devices[0].launches_per_step is None, "no call that launches is in the file"
    assert {phase.name for phase in report.phases} <= {"StepMarker", "outside"}, "nothing of torch_xla's insides"
    assert {row.module.partition(".")[0] for row in report.operators} == {"SyncTensorsGraph"}


def test_its_advice_is_torch_xla_s(tmp_path: Path) -> None:
    said = words(analyze(recorded("cpu_sync", tmp_path)))
    assert "torch_xla" in said
    assert not [word for word in ("jax", "nsys", "cudaMalloc", "DataLoader(num_workers") if word in said.lower()]


@with_xprof
@pytest.mark.usefixtures("xprof")
def test_xla_s_own_file_is_read_the_same(tmp_path: Path) -> None:
    space = tmp_path / "pid1.xplane.pb"
    space.write_bytes(lzma.decompress((DATA / "cpu_steptrace.xplane.pb.xz").read_bytes()))
    ours, theirs = analyze(space), analyze(recorded("cpu_steptrace", tmp_path))
    assert (ours.steps, ours.verdict) == (theirs.steps, theirs.verdict)
    assert ours.devices[0].rank is None
    again = analyze(space.rename(tmp_path / "rank3.xplane.pb"))
    assert (again.devices[0].rank, again.steps) == (3, ours.steps), "as a capture names it"


@pytest.mark.parametrize(("marks", "framework"), [([], "JAX"), (["SyncTensorsGraph"], "torch_xla")])
def test_where_no_verdict_can_be_had_the_advice_speaks_of_the_program_s_own_tools(
    marks: list[str], framework: str, tmp_path: Path
) -> None:
    thread = (HOST, 77)
    events = [meta(HOST, "/host:CPU"), meta(HOST, "python", 77)]
    events += [timed(thread, mark, 5.0, 1.0) for mark in marks]
    events += [timed((HOST, 78), "dot.1", at, 10.0, hlo_op="dot.1", hlo_module="jit_f") for at in (10.0, 1000.0)]
    report = analyze(written(tmp_path / "a.trace.json.gz", events))
    assert report.verdict == "unknown"
    said = words(report)
    assert ("StepTraceAnnotation" if framework == "JAX" else "StepTrace ") in said
    assert "torch.profiler" not in said
    assert "nsys" not in said


def test_on_a_tpu_its_steps_and_the_device_s_work_are_told(tmp_path: Path) -> None:
    """Made up: what runs of a step begins when the mark at its end hands it over, and takes 600 of 1000 µs."""
    thread, ops = (HOST, 77), (3, 5)
    events = [meta(HOST, "/host:CPU"), meta(HOST, "python", 77), meta(3, "/device:TPU:0"), meta(3, "XLA Ops", 5)]
    for step in range(12):
        at = 1000.0 * step
        events.append(timed(thread, "StepMarker", at, 300.0))
        events.append(timed(thread, "SyncTensorsGraph", at + 5, 290.0))
        args = {"hlo_op": "fusion.3", "hlo_category": "convolution fusion", "hlo_module": "SyncTensorsGraph.9"}
        events.append(timed(ops, "fusion.3", at + 200, 600.0, **args))
    report = analyze(written(tmp_path / "t.trace.json.gz", events))
    assert report.makeup is not None
    assert (report.engine, report.makeup.framework, report.makeup.vendor) == (
        "xla.profiler",
        "torch_xla",
        "Google",
    )
    assert (report.steps.count, report.steps.clock) == (11, "host")
    assert report.steps.seconds_p50 == pytest.approx(1e-3)
    assert report.devices[0].idle_pct == pytest.approx(40, abs=0.1)
    assert "ncu" not in words(report)
