"""What nsys's columns mean: kinds of copies and graphs, GPUs, messages and counters, row by row."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmtop.trace import model
from llmtop.trace.files.open import open_trace
from llmtop.trace.nsys.database import NEVER
from tests.support.traces import MAIN, Capture, write_sqlite

PROCESS = MAIN << 24


def _opened(
    folder: Path, *statements: str | tuple[str, list[tuple[Any, ...]]], made: Capture | None = None
) -> model.Trace:
    capture = made or Capture()
    if made is None:
        capture.kernel(10, 20, launched=5)
    path = write_sqlite(folder / "made.sqlite", [capture])
    with sqlite3.connect(path) as database:
        for one in statements:
            if isinstance(one, str):
                database.execute(one)
            else:
                table, rows = one
                database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    database.close()
    return open_trace(path)


@pytest.mark.parametrize(
    ("kind", "source", "target", "expected"),
    [
        (1, 0, 2, (model.HOST_TO_DEVICE, model.PAGEABLE, model.DEVICE)),
        (2, 2, 1, (model.DEVICE_TO_HOST, model.DEVICE, model.PINNED)),
        (13, 4, 6, (13, 4, 6)),
        (14, 7, 8, (model.UNKNOWN, model.MEMORY_UNKNOWN, model.MEMORY_UNKNOWN)),
        (-1, -1, 3, (model.UNKNOWN, model.MEMORY_UNKNOWN, 3)),
        (0, 6, 0, (model.UNKNOWN, 6, model.PAGEABLE)),
    ],
)
def test_copies_have_cupti_s_numbers(
    tmp_path: Path, kind: int, source: int, target: int, expected: tuple[int, int, int]
) -> None:
    row = (1000, 2000, 3, 9, 77, PROCESS, 4096, kind, source, target)
    trace = _opened(tmp_path, ("CUPTI_ACTIVITY_KIND_MEMCPY", [row]))
    copy = trace.ops.select(trace.ops.kind == model.MEMCPY)
    assert (int(copy.direction[0]), int(copy.source_memory[0]), int(copy.target_memory[0])) == expected
    assert (int(copy.bytes[0]), int(copy.device[0]), int(copy.stream[0]), int(copy.correlation[0])) == (
        4096,
        3,
        9,
        77,
    )
    assert int(copy.process[0]) == MAIN
    assert trace.names[int(copy.name[0])] == f"memcpy {model.DIRECTIONS[expected[0]]}"
    assert int(copy.full_name[0]) == int(copy.name[0])


def test_a_kernel_has_the_name_that_it_has(tmp_path: Path) -> None:
    rows = [(900, "foo"), (901, "void foo<int>(int*)")]
    kernels = [
        (1000, 2000, 0, 7, 1, PROCESS, 901, 900),
        (3000, 4000, 0, 7, 2, PROCESS, None, 900),
        (5000, 6000, 0, 7, 3, PROCESS, 901, None),
        (0, 0, 0, 7, 4, PROCESS, 901, 900),  # CUPTI's way to say that the time is unknown
    ]
    trace = _opened(tmp_path, ("StringIds", rows), ("CUPTI_ACTIVITY_KIND_KERNEL", kernels))
    ops = trace.ops.select(trace.ops.correlation >= 0)
    named = {
        int(start): (trace.names[short], trace.names[full])
        for start, short, full in zip(ops.start.tolist(), ops.name.tolist(), ops.full_name.tolist(), strict=True)
    }
    assert named[1000] == ("foo", "void foo<int>(int*)")
    assert named[3000] == ("foo", "foo")
    assert named[5000] == ("void foo<int>(int*)",) * 2
    assert 0 not in named
    assert trace.notes == ["1 events have no usable time and are left out"]


def test_graphs_traced_as_a_whole_are_on_the_device_of_their_process(tmp_path: Path) -> None:
    made = Capture(device=2)
    made.kernel(10, 20, launched=5)
    table = (
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER,"
        " streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER)"
    )
    rows = [
        (1000, 2000, 5, 7, 1, PROCESS, 3),
        (3000, 4000, 0x7FFFFFFF, 7, 2, PROCESS, 4),
        (5000, 6000, 0x7FFFFFFF, 7, 2, 9 << 24, None),
    ]
    trace = _opened(tmp_path, table, ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", rows), made=made)
    graphs = trace.ops.select(trace.ops.kind == model.GRAPH)
    assert graphs.device.tolist() == [5, 2, 0]
    assert [trace.names[name] for name in graphs.name.tolist()] == ["CUDA graph 3", "CUDA graph 4", "CUDA graph"]
    assert graphs.process.tolist() == [MAIN, MAIN, 9]


@pytest.mark.parametrize(
    ("kind", "style"),
    [
        (59, model.PUSH_POP),
        (60, model.START_END),
        (70, model.PUSH_POP),
        (71, model.START_END),
        (34, None),
        (75, None),
    ],
)
def test_ranges_are_of_four_kinds_of_events(tmp_path: Path, kind: int, style: int | None) -> None:
    row = (1000, 2000, kind, "mine", None, PROCESS + 7, 0)
    trace = _opened(tmp_path, ("NVTX_EVENTS", [row]))
    assert trace.ranges.style.tolist() == ([] if style is None else [style])
    assert trace.ranges.thread.tolist() == ([] if style is None else [7])


def test_operators_that_pytorch_marks_are_no_ranges(tmp_path: Path) -> None:
    rows = [
        (1000, 2000, 59, "aten::mm, seq = 4, op_id = 1, sizes = [[2, 3], [3, 4]]", None, PROCESS, 0),
        (1100, None, 59, "aten::add, op_id = 2", None, PROCESS, 0),
        (1200, 1300, 59, None, 900, PROCESS, 0),
        (1400, 1500, 59, "Optimizer.step#SGD.step, op_id = 3", None, PROCESS, 0),
        (1600, 1700, 59, "step", None, PROCESS, 0),
    ]
    trace = _opened(tmp_path, ("StringIds", [(900, "aten::mul, seq = 9")]), ("NVTX_EVENTS", rows))
    found = {
        trace.names[name]: (trace.names[inputs], sequence)
        for name, inputs, sequence in zip(
            trace.host.name.tolist(), trace.host.inputs.tolist(), trace.host.sequence.tolist(), strict=True
        )
    }
    assert found == {"aten::mm": ("[[2,3],[3,4]] []", 5), "aten::mul": ("", 10)}
    assert set(trace.host.kind.tolist()) == {model.OPERATOR}
    assert {trace.names[name] for name in trace.ranges.name.tolist()} == {"Optimizer.step#SGD.step", "step"}


def test_the_file_s_facts_are_read_where_they_have_their_form(tmp_path: Path) -> None:
    trace = _opened(
        tmp_path,
        "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)",
        "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.3.1')",
        "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)",
        "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000)",
        "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, uuid TEXT, memoryBandwidth INTEGER)",
        (
            "TARGET_INFO_GPU",
            [(0, "NVIDIA H200", "u0", 5_000), (1, None, "", 0), ("x", "y", "z", 1), (2, "B", None, -5)],
        ),
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (pid INTEGER, cudaId INTEGER, gpuId INTEGER)",
        ("TARGET_INFO_CUDA_DEVICE", [(MAIN, 0, 2), (MAIN, 1, 9), (None, 0, 1)]),
        "CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)",
        ("PROCESSES", [(PROCESS, MAIN, "python3"), (1, None, "x"), (2, 7, None)]),
    )
    assert (trace.version, trace.origin_unix_ns) == ("2025.3.1", 1_700_000_000_000_000_000)
    assert trace.gpus == {
        0: model.TracedGpu(0, "NVIDIA H200", "u0", 5000.0),
        1: model.TracedGpu(1),
        2: model.TracedGpu(2, "B"),
    }
    assert trace.gpu_of == {(MAIN, 0): trace.gpus[2]}
    assert trace.process_names == {MAIN: "python3"}


@pytest.mark.parametrize(("began", "known"), [(0, False), (1, True), ((1 << 62) - 1, True), (1 << 62, False)])
def test_an_origin_is_a_time_after_1970(tmp_path: Path, began: int, known: bool) -> None:
    trace = _opened(
        tmp_path,
        "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)",
        f"INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ({began})",
    )
    assert trace.origin_unix_ns == (began if known else None)


@pytest.mark.parametrize(
    ("count", "more"), [(20, None), (21, "nsys has 1 more message"), (23, "nsys has 3 more messages")]
)
def test_twenty_messages_of_nsys_are_noted(tmp_path: Path, count: int, more: str | None) -> None:
    rows: list[tuple[Any, ...]] = [(2 + number % 2, f"message {number}") for number in range(count)]
    rows += [(1, "of no weight"), (4, "neither"), (2, "Not all events"), (3, "No CUDA events"), (2, "message 0")]
    trace = _opened(
        tmp_path, "CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)", ("DIAGNOSTIC_EVENT", rows)
    )
    said = [note for note in trace.notes if note.startswith("nsys reports: message")]
    assert len(said) == 20
    assert trace.notes[20:] == ([] if more is None else [more])


def test_a_message_loses_its_last_sentences_beyond_300_characters(tmp_path: Path) -> None:
    first, second = "a" * 149 + ".", "b" * 148 + "."
    texts = [f"{first} {second}", f"{first} b{second}", "c" * 400 + ". d"]
    trace = _opened(
        tmp_path,
        "CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)",
        ("DIAGNOSTIC_EVENT", [(2, text) for text in texts]),
    )
    said = [note.removeprefix("nsys reports: ") for note in trace.notes]
    assert sorted(said) == sorted([f"{first} {second}", first, "c" * 400 + "."])


def test_counters_are_means_in_120_buckets(tmp_path: Path) -> None:
    """Samples from 0 to 1199 ns, one each 10 ns, as a bucket is long; the GPU is the low byte of the type."""
    table = "CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value REAL)"
    named = "CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT)"
    rows: list[tuple[Any, ...]] = [(10 * number, 0x503, 1, float(number % 7)) for number in range(120)]
    rows += [(10 * number + 1, 0x503, 2, 50.0) for number in range(0, 120, 2)] + [(1199, 0x503, 9, 1.0)]
    rows += [(5, 0x503, 1, 6.0)]
    names = [
        (0x503, 1, "SMs Active [Throughput %]"),
        (0x503, 2, "DRAM Read Bandwidth [Throughput %]"),
        (0x503, 3, "PCIe RX Throughput [Throughput %]"),
        (0x503, 4, "SMs Active [Ratio]"),
        (0x503, 5, "GPC Clock Frequency [MHz]"),
    ]
    trace = _opened(tmp_path, table, named, ("GPU_METRICS", rows), ("TARGET_INFO_GPU_METRICS", names))
    found = {metric.name: metric for metric in trace.metrics}
    assert set(found) == {"sm_active", "dram_read", "pcie_rx"}
    sm, dram = found["sm_active"], found["dram_read"]
    assert (sm.device, sm.start, sm.bucket_ns) == (3, 0, 10.0)
    assert sm.values[0] == 3.0, "the mean of 0 and 6"
    assert sm.values[1:].tolist() == [float(number % 7) for number in range(1, 120)]
    assert np.isnan(dram.values).tolist() == [bool(number % 2) for number in range(120)]
    assert np.isnan(found["pcie_rx"].values).all()


@pytest.mark.parametrize(
    ("kind", "size", "memory", "device", "signed"),
    [
        (0, 64, 2, 3, 64),
        (1, 64, 2, 3, -64),
        (0, -64, 1, model.HOST_MEMORY, 64),
        (0, 64, 0, model.HOST_MEMORY, 64),
        (0, 64, 4, 3, 64),
        (2, 64, 2, 3, 64),
    ],
)
def test_allocations_count_up_and_releases_down(
    tmp_path: Path, kind: int, size: int, memory: int, device: int, signed: int
) -> None:
    made = Capture()
    made.kernel(10, 20, launched=5, tid=42)
    correlation = made.call("cudaMalloc", 30, 40, tid=43)
    table = (
        "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER, globalPid INTEGER, deviceId INTEGER,"
        " bytes INTEGER, memKind INTEGER, memoryOperationType INTEGER, correlationId INTEGER, address INTEGER)"
    )
    rows = [(35_000, PROCESS, 3, size, memory, kind, correlation, 1), (36_000, PROCESS, 3, 1, 7, 0, -1, 1)]
    found = _opened(tmp_path, table, ("CUDA_GPU_MEMORY_USAGE_EVENTS", rows), made=made).memory
    assert (found.start.tolist(), found.end.tolist()) == ([35_000, 36_000],) * 2
    assert found.bytes.tolist() == [signed, 1]
    assert found.device.tolist() == [device, 3]
    assert found.memory.tolist() == [memory, model.MEMORY_UNKNOWN]
    assert found.thread.tolist() == [43, 0]
    assert (found.level.tolist(), found.reserved.tolist()) == ([-1, -1],) * 2


def test_columns_that_are_not_needed_may_be_missing(tmp_path: Path) -> None:
    """Allocations need a time, a size and their kind; switches a time, a thread and their direction."""
    trace = _opened(
        tmp_path,
        "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER, bytes INTEGER, memoryOperationType INTEGER)",
        ("CUDA_GPU_MEMORY_USAGE_EVENTS", [(5_000, 64, 1)]),
        "CREATE TABLE SCHED_EVENTS (start INTEGER, globalTid INTEGER, isSchedIn INTEGER)",
        ("SCHED_EVENTS", [(6_000, PROCESS + MAIN, 0), (7_000, PROCESS + MAIN, 1)]),
        "CREATE TABLE COMPOSITE_EVENTS (id INTEGER, start INTEGER, globalTid INTEGER)",
        ("COMPOSITE_EVENTS", [(1, 6_500, PROCESS + MAIN)]),
    )
    assert trace.memory.bytes.tolist() == [-64]
    assert (trace.off_cpu.start.tolist(), trace.off_cpu.end.tolist()) == ([6_000], [7_000])
    assert trace.samples.start.tolist() == [6_500]
    assert trace.samples.kind.tolist() == [model.CPU_SAMPLE]


@pytest.mark.parametrize("table", ["CUDA_GPU_MEMORY_USAGE_EVENTS", "SCHED_EVENTS", "COMPOSITE_EVENTS"])
def test_a_table_without_what_is_needed_is_passed_over(tmp_path: Path, table: str) -> None:
    trace = _opened(
        tmp_path, f"CREATE TABLE {table} (start INTEGER, globalTid INTEGER)", (table, [(6_000, PROCESS + MAIN)])
    )
    assert [len(one) for one in (trace.memory, trace.off_cpu, trace.samples)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("size", "kept"), [((1 << 62) - 1, True), (1 << 62, False), (-(1 << 62), True), (-(1 << 62) - 1, False)]
)
def test_a_number_beyond_62_bits_is_none(tmp_path: Path, size: int, kept: bool) -> None:
    row = (1000, 2000, 0, 7, 1, PROCESS, size, 1, 0, 2)
    trace = _opened(tmp_path, ("CUPTI_ACTIVITY_KIND_MEMCPY", [row]))
    copy = trace.ops.select(trace.ops.kind == model.MEMCPY)
    assert copy.bytes.tolist() == [size if kept else NEVER]
