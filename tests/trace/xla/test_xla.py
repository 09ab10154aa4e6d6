"""Traces of jax.profiler: recorded ones of JAX on the CPU, and made-up ones as of a GPU or a TPU."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmtop.analysis.analyze import analyze
from llmtop.cli.report.kernel import read_hot_kernels
from llmtop.errors import UnusableInput
from llmtop.naming.kernel_names import kind_of
from llmtop.report.model import Report
from llmtop.trace import model
from llmtop.trace.files.open import open_trace, open_traces
from llmtop.trace.xla.names import operation_category
from tests.support.xla_traces import GPU, HOST, meta, on_gpu, timed, unpacked, written


def of(path: Path) -> Report:
    return analyze(path)


def test_a_window_of_the_cpu_has_steps_phases_operations_and_the_cause_of_its_idle_time(tmp_path: Path) -> None:
    """Recorded: 8 whole steps of tests/support/jax_loop.py, which waits 5 ms for its input in each."""
    report = of(unpacked("cpu_window", tmp_path))
    assert (report.engine, report.steps.count, report.steps.clock) == ("jax.profiler", 8, "device")
    assert report.verdict == "input_bound"
    assert [device.name for device in report.devices] == [model.CPU]
    assert {"dataload", "update of the weights"} <= {phase.name for phase in report.phases}
    assert not {name for phase in report.phases for name in [phase.name] if "::" in name or "Pjit" in name}
    (busy,) = (device.busy_pct for device in report.devices)
    assert busy == pytest.approx(union_pct(unpacked("cpu_window", tmp_path)), abs=0.01)
    assert report.gaps[0].cause == "input"
    assert report.devices[0].launches_per_step == 1
    assert {row.module for row in report.operators} == {"jit_train_step"}
    assert sum(row.share_pct for row in report.operators) == pytest.approx(100)
    assert report.makeup is not None
    assert (report.makeup.vendor, report.makeup.framework) == ("CPU", "JAX")
    assert sum(part.share_pct for part in report.makeup.operations) == pytest.approx(100)
    assert any("the device is the CPU" in note for note in report.notes)
    assert "ncu" not in str([finding.next for finding in report.findings])


def test_a_script_s_own_trace_with_frames_of_python_is_read(tmp_path: Path) -> None:
    """Recorded: five steps marked by StepTraceAnnotation("train") and waited for at the end; one ran before."""
    report = of(unpacked("cpu_own", tmp_path))
    assert report.steps.found_by == "from the start of one range 'train step' to the next"
    assert (report.steps.count, report.steps.clock) == (3, "device")
    assert 2e-3 < (report.steps.seconds_p50 or 0) < 4e-3, "the device's; the host dispatched one in 20 µs"
    assert not report.phases or {phase.name for phase in report.phases} <= {"outside"}


def union_pct(path: Path) -> float:
    """How much of the time from first to last some operation ran, without llmtop."""
    import json

    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if "hlo_op" in e.get("args", {}))
    busy, until = 0.0, spans[0][0]
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return float(100 * busy / (until - spans[0][0]))


def test_where_the_end_was_not_waited_for_steps_of_the_host_are_not_taken_for_the_device_s(tmp_path: Path) -> None:
    path = unpacked("cpu_own", tmp_path)
    text = gzip.decompress(path.read_bytes()).replace(b"PjRtBuffer::Await", b"PjRtBuffer::Other")
    path.write_bytes(gzip.compress(text))
    report = of(path)
    assert any("which step handed over which work cannot be told" in note for note in report.notes)
    assert report.steps.inferred or not report.steps.count


def test_made_up_of_a_gpu_streams_are_work_and_what_is_made_up_of_them_is_not(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "node.trace.json.gz", on_gpu()))
    kinds, counts = np.unique(trace.ops.kind, return_counts=True)
    assert dict(zip(kinds.tolist(), counts.tolist(), strict=True)) == {model.KERNEL: 18, model.MEMCPY: 6}
    copy = trace.ops.select(trace.ops.kind == model.MEMCPY)
    assert set(copy.bytes.tolist()) == {4194304}
    assert set(copy.direction.tolist()) == {model.HOST_TO_DEVICE}
    assert set(copy.source_memory.tolist()) == {model.PINNED}
    assert (trace.launched_by >= 0).all()
    assert len(trace.overhead) == 1
    assert set(trace.ops.device.tolist()) == {0}
    assert set(trace.ops.stream.tolist()) == {14, 18}


def test_made_up_of_a_gpu_the_report_names_what_it_waits_for(tmp_path: Path) -> None:
    report = of(written(tmp_path / "node.trace.json.gz", on_gpu()))
    assert report.verdict == "input_bound"
    (device,) = report.devices
    assert device.busy_pct == pytest.approx(100 * 6 * 800 / (5 * 2100 + 800), abs=0.01)
    assert device.name == "NVIDIA H100 80GB HBM3"
    assert (device.steps, device.step_seconds) == (5, pytest.approx(2.1e-3))
    assert report.makeup is not None
    assert report.makeup.vendor == "NVIDIA"
    shares = {part.name: part.share_pct for part in report.makeup.operations}
    assert shares == pytest.approx(
        {"gemm fusion": 62.5, "loop fusion": 18.75, "all-reduce": 6.25, "(no XLA operation)": 12.5}
    )
    passes = {part.name: part.share_pct for part in report.makeup.passes}
    assert passes == pytest.approx({"forward": 62.5, "backward": 18.75, "other": 18.75})
    rows = {row.name: row for row in report.operators}
    assert rows["gemm_fusion_dot.3"].source.endswith("jvp(mlp)/dot_general")
    assert rows["all-reduce-start.1"].source.endswith("psum")
    assert [row.name for row in report.collectives] == ["AllReduce"]
    assert "torch" not in str([(one.fix, one.next) for one in report.findings])


def test_a_category_that_the_file_says_is_taken_as_it_stands(tmp_path: Path) -> None:
    """As on a TPU, whose operations stand on one line of its plane."""
    events = [meta(3, "/device:TPU:0"), meta(3, "XLA Ops", 5), meta(3, "XLA Modules", 6), meta(HOST, "/host:CPU")]
    for at in range(3):
        args = {"hlo_op": "fusion.3", "hlo_category": "convolution fusion", "hlo_module": "jit_f"}
        events.append(timed((3, 5), "fusion.3", 100.0 * at, 60.0, **args))
        events.append(timed((3, 6), "jit_f", 100.0 * at, 90.0))
    report = of(written(tmp_path / "t.trace.json.gz", events))
    assert [(part.name, part.share_pct) for part in report.makeup.operations] == [  # type: ignore[union-attr]
        ("convolution fusion", pytest.approx(100))
    ]
    assert report.devices[0].busy_pct == pytest.approx(100 * 180 / 260)
    assert (report.devices[0].name, report.makeup.vendor) == ("TPU", "Google")  # type: ignore[union-attr]
    said = " ".join(
        (report.summary, *report.notes, *(f"{one.summary} {one.fix} {one.next}" for one in report.findings))
    )
    assert not [word for word in ("ncu", "nsys", "nvidia-smi", "cudaMalloc") if word in said]
    with pytest.raises(UnusableInput, match="is from a TPU, which ncu does not support"):
        read_hot_kernels(tmp_path / "t.trace.json.gz", 3)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("loop_add_fusion.12", "loop fusion"),
        ("input_add_reduce_fusion", "reduce fusion"),
        ("input_transpose_fusion", "transpose fusion"),
        ("input_concatenate_fusion.4", "concatenate fusion"),
        ("gemm_fusion_dot.1.0", "gemm fusion"),
        ("triton_softmax.4", "triton_softmax"),
        ("multiply_subtract_fusion.1", "fusion"),
        ("wrapped_tanh", "tanh"),
        ("all-gather-start.3", "all-gather"),
        ("custom-call.17.0", "library call"),
        ("dot.1", "dot"),
        ("copy.1", "copy"),
        (".5", "other"),
    ],
)
def test_an_operation_is_of_a_kind_by_its_name(name: str, category: str) -> None:
    assert operation_category(name) == category


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("loop_multiply_fusion_2", "elementwise"),
        ("input_add_reduce_fusion", "reduction"),
        ("gemm_fusion_dot_3", "GEMM"),
        ("dot_general.25", "GEMM"),
        ("wrapped_tanh", "elementwise"),
        ("ynn_fusion.1", "other"),
        ("all-reduce-start.1", "NCCL"),
    ],
)
def test_what_xla_names_itself_has_a_class(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_ranks_whose_traces_say_whose_they_are_are_read_together(tmp_path: Path) -> None:
    for rank in range(2):
        path = tmp_path / f"rank{rank}.trace.json.gz"
        written(path, on_gpu(), llmtop={"pid": 1000 + rank, "rank": rank, "world_size": 2})
    report = of(tmp_path)
    assert [(device.pid, device.rank) for device in report.devices] == [(1000, 0), (1001, 1)]


def test_without_a_pid_two_traces_do_not_fall_together(tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path / f"{name}.trace.json.gz", on_gpu())
    trace = open_traces([tmp_path / "a.trace.json.gz", tmp_path / "b.trace.json.gz"])
    assert len(set(trace.ops.process.tolist())) == 2


def test_the_folder_that_a_script_gives_to_start_trace_is_a_capture(tmp_path: Path) -> None:
    for run in ("2026_01_01_00_00_00", "2026_01_02_00_00_00"):
        (tmp_path / "plugins" / "profile" / run).mkdir(parents=True)
    steps = {"2026_01_01_00_00_00": 3, "2026_01_02_00_00_00": 9}
    for run, number in steps.items():
        written(tmp_path / "plugins" / "profile" / run / "node.trace.json.gz", on_gpu(number))
    assert of(tmp_path).steps.count == 8, "the newest"


def test_a_full_file_is_said_to_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmtop.trace.xla.events.MOST_EVENTS", 50)
    assert any("this one is full" in note for note in of(written(tmp_path / "t.json.gz", on_gpu())).notes)


def test_a_trace_with_nothing_that_ran_says_so(tmp_path: Path) -> None:
    events = [meta(HOST, "/host:CPU"), timed((HOST, 1), "PjitFunction(f)", 1.5, 2.5)]
    report = of(written(tmp_path / "t.trace.json", events))
    assert "no device activity" in report.notes[0]


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
def test_a_trace_that_is_cut_is_read_as_far_as_it_goes(tmp_path: Path, keep: float) -> None:
    path = written(tmp_path / "t.trace.json.gz", on_gpu(60))
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])
    trace = open_trace(path)
    assert 0 < len(trace.ops) < 240
    assert any("cut" in note for note in trace.notes)


@pytest.mark.parametrize(
    "damage",
    [
        {"ts": None},
        {"ts": 1e300},
        {"dur": "x"},
        {"tid": None},
        {"pid": "a"},
        {"name": None},
        {"args": {"hlo_op": 3, "correlation_id": "x", "hlo_module": None}},
        {"args": {"correlation_id": "9" * 40}},
        {"args": {"memcpy_details": "size:99999999999999999999999"}},
        {"args": []},
    ],
)
def test_an_odd_event_costs_at_most_itself(tmp_path: Path, damage: dict[str, Any]) -> None:
    events = on_gpu()
    odd = {**next(event for event in events if event["pid"] == GPU and event["ph"] == "X"), **damage}
    report = of(written(tmp_path / "t.trace.json.gz", [*events, odd]))
    assert report.steps.count >= 4
    assert report.devices[0].kernels in (18, 19)
