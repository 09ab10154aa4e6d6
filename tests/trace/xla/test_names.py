"""What XLA's names of copies and operations mean, and what of its files is the device's."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.trace import model
from llmtop.trace.files.open import open_trace
from llmtop.trace.xla.names import operation_category, parse_bytes, parse_copy
from tests.support.xla_traces import GPU as GPU_PLANE
from tests.support.xla_traces import HOST as HOST_PLANE
from tests.support.xla_traces import meta, timed, written

GPU, HOST = (GPU_PLANE, 14), (HOST_PLANE, 77)


@pytest.mark.parametrize(
    ("name", "details", "found"),
    [
        (
            "MemcpyH2D",
            "kind_src:pinned kind_dst:device size:4096 dest:0 async:1",
            (model.HOST_TO_DEVICE, (model.PINNED, model.DEVICE), 4096),
        ),
        ("MemcpyD2H", "kind_src:device kind_dst:pageable size:7", (model.DEVICE_TO_HOST, (2, 0), 7)),
        ("MemcpyD2D", "kind_dst:device num_bytes:12", (model.DEVICE_TO_DEVICE, (7, 2), 12)),
        ("MemcpyP2P", "kind_src:host", (model.PEER, (model.PAGEABLE, 7), 0)),
        ("Memcpy", "kind_src:strange", (model.UNKNOWN, (7, 7), 0)),
    ],
)
def test_a_copy_s_details(name: str, details: str, found: tuple[int, tuple[int, int], int]) -> None:
    assert parse_copy(name, details) == found


@pytest.mark.parametrize(
    ("details", "size"),
    [("size:12", 12), ("num_bytes:3 size:4", 3), ("size:x", 0), ("", 0), ("size:" + "9" * 18, int("9" * 18))],
)
def test_bytes_are_read_where_they_are_given(details: str, size: int) -> None:
    assert parse_bytes(details) == size


@pytest.mark.parametrize(
    ("operation", "category"),
    [
        ("fusion.3", "fusion"),
        ("loop_add_fusion", "loop fusion"),
        ("input_reduce_fusion.7", "reduce fusion"),
        ("gemm_fusion_dot_general.1.0", "gemm fusion"),
        ("triton_softmax_fusion", "softmax fusion"),
        ("input_scatter_fusion", "scatter fusion"),
        ("loop_transpose_fusion_2", "transpose fusion"),
        ("input_concatenate_fusion", "concatenate fusion"),
        ("input_slice_fusion", "input fusion"),
        ("dot.1", "dot"),
        ("all-reduce-start", "all-reduce"),
        ("all-reduce-done.1", "all-reduce"),
        ("wrapped_tanh", "tanh"),
        ("custom-call.5", "library call"),
        ("cublas-gemm.2", "library call"),
        ("cudnn-conv", "library call"),
        ("confusion", "confusion"),
        ("", "other"),
    ],
)
def test_the_kind_of_an_operation_is_in_its_name(operation: str, category: str) -> None:
    assert operation_category(operation) == category


def _trace(folder: Path, *events: dict[str, object], **properties: object) -> model.Trace:
    planes = [
        meta(HOST[0], "/host:CPU"),
        meta(GPU[0], "/device:GPU:3"),
        meta(GPU[0], "Stream #14(Compute)", GPU[1]),
        meta(GPU[0], "CUPTI overhead", 77),
        meta(GPU[0], "XLA Ops", 78),
    ]
    return open_trace(written(folder / "made.trace.json.gz", [*planes, *events], **properties))


def test_work_of_a_stream_is_the_device_s(tmp_path: Path) -> None:
    trace = _trace(
        tmp_path,
        timed(GPU, "fusion_3", 10, 5, hlo_op="fusion.3", hlo_module="jit_f", correlation_id="8",
              tf_op="jit(f)/add:", hlo_category="loop"),
        timed(GPU, "MemcpyH2D", 20, 1, memcpy_details="kind_src:pinned kind_dst:device size:64"),
        timed(GPU, "Memset", 30, 2, memset_details="num_bytes:16"),
        timed(GPU, "graph", 40, 3, cuda_graph_exec_id="5"),
        timed(GPU, "void foo<int>(int*)", 50, 1),
        timed(GPU, "free", 60, 1, memfree_details="x"),
        timed(GPU, "alloc", 60, 1, memalloc_details="x"),
        timed((GPU[0], 77), "overhead", 70, 4),
        timed((GPU[0], 78), "fusion.3", 80, 1),
        llmtop={"pid": 55, "rank": 1, "world_size": 4},
    )  # fmt: skip
    ops = trace.ops
    assert ops.kind.tolist() == [model.KERNEL, model.MEMCPY, model.MEMSET, model.GRAPH, model.KERNEL]
    assert ops.start.tolist() == [10_000, 20_000, 30_000, 40_000, 50_000]
    assert (ops.end - ops.start).tolist() == [5000, 1000, 2000, 3000, 1000]
    assert set(ops.device.tolist()) == {3}
    assert set(ops.stream.tolist()) == {14}
    assert set(ops.process.tolist()) == {55}
    assert ops.bytes.tolist() == [0, 64, 16, 0, 0]
    assert ops.correlation.tolist() == [8, -1, -1, -1, -1]
    assert (int(ops.source_memory[1]), int(ops.target_memory[1])) == (model.PINNED, model.DEVICE)
    columns = [ops.name, ops.full_name, ops.hlo, ops.hlo_module, ops.hlo_category, ops.hlo_source]
    assert [trace.names[int(column[0])] for column in columns] == [
        "fusion_3", "fusion_3", "fusion.3", "jit_f", "loop", "jit(f)/add"
    ]  # fmt: skip
    assert trace.names[int(ops.name[4])] == "foo"
    assert ops.hlo.tolist()[1:] == [0, 0, 0, 0]
    assert (trace.overhead.start.tolist(), trace.overhead.end.tolist()) == ([70_000], [74_000])
    assert trace.ranks == [model.TracedRank(55, 1, 4)]


def test_an_operation_without_a_category_has_that_of_its_name(tmp_path: Path) -> None:
    trace = _trace(
        tmp_path,
        timed(GPU, "k", 10, 5, hlo_op="wrapped_tanh.2", tf_op="XlaModule:", name="jit(f)/tanh"),
        timed(GPU, "k", 20, 5, hlo_op="dot.2", tf_op="Thunk:#x"),
    )
    assert [trace.names[number] for number in trace.ops.hlo_category.tolist()] == ["tanh", "dot"]
    assert [trace.names[number] for number in trace.ops.hlo_source.tolist()] == ["jit(f)/tanh", ""]


def test_events_without_a_time_are_counted(tmp_path: Path) -> None:
    broken = {"ph": "X", "pid": GPU[0], "tid": GPU[1], "name": "k", "ts": 5}
    far = timed(GPU, "k", 4e15, 1)
    trace = _trace(tmp_path, timed(GPU, "k", 10, 5, hlo_op="dot.1"), broken, far)
    assert len(trace.ops) == 1
    assert "2 events have no time and are left out" in trace.notes


def test_the_host_s_lines_are_steps_phases_calls_and_frames(tmp_path: Path) -> None:
    trace = _trace(
        tmp_path,
        timed(GPU, "k", 10, 5, hlo_op="dot.1"),
        timed(HOST, "train 7", 0, 100, step_num="7"),
        timed(HOST, "dataload", 5, 10, llmtop_phase="1"),
        timed(HOST, "NVTX:mark", 16, 2),
        timed(HOST, "cuLaunchKernel", 20, 2, correlation_id="8"),
        timed(HOST, "PjRtBuffer::Await", 30, 9),
        timed(HOST, "$train.py:12 step", 50, 5),
        timed(HOST, "PjitFunction(f)", 60, 10),
        timed(HOST, "mine", 61, 2),
        timed(HOST, "my own", 80, 2),
    )
    ranges = {trace.names[name] for name in trace.ranges.name.tolist()}
    assert ranges == {"train step#7", "dataload", "mark", "my own"}, "what JAX does within a call is its own"
    calls = [trace.names[name] for name in trace.calls.name.tolist()]
    assert calls == ["cuLaunchKernel", "PjRtBuffer::Await"]
    assert trace.calls.correlation.tolist() == [8, -1]
    assert {trace.names[name] for name in trace.host.name.tolist()} == {"train.py(12): step", "PjitFunction(f)"}
    assert set(trace.host.kind.tolist()) == {model.PYTHON}
    assert set(trace.ranges.style.tolist()) == {model.PUSH_POP}
