"""Events that are taken at once become the same tables as one by one, and these are what was written."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtop.trace import model
from llmtop.trace.chrome.events import Collector
from llmtop.trace.chrome.fields import Args, Event, MemoryArgs

_numbers = st.sampled_from([None, 0, 1, 5, "6", -1, "x", 1.5, 1 << 62])
_raw = st.sampled_from([b"", b"[]", b"[[2,3]]", b"[[4]]", b"[[4]"]).map(msgspec.Raw)
_args = st.none() | st.builds(
    Args,
    sequence=st.sampled_from([None, 0, 7, (1 << 31) - 2, (1 << 31) - 1, -1, "3"]),
    types=_raw,
    dims=_raw,
    device=_numbers,
    stream=_numbers,
    correlation=_numbers,
    bytes=_numbers,
    inDevice=_numbers,
    collective=st.sampled_from([None, "allreduce", "send"]),
    elements_in=st.sampled_from([None, 3, "4"]),
    elements_out=st.sampled_from([None, 5]),
    group=st.sampled_from([None, 2, "4", 0]),
    dtype=st.sampled_from([None, "Half", "Float"]),
)
_TYPES = [
    ("kernel", "void foo<int>(int*)"),
    ("kernel", "bar"),
    ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"),
    ("gpu_memset", "Memset (Device)"),
    ("cuda_runtime", "cudaLaunchKernel"),
    ("cpu_op", "aten::mm"),
    ("cpu_op", "ProfilerStep#1"),
    ("user_annotation", "step"),
    ("python_function", "a.py(1): f"),
    ("overhead", "CUPTI"),
    ("ac2g", "x"),
]
_times = st.sampled_from([0, 10, 10.5, 12.0625, 2.0**42 - 1]) | st.floats(0, 1e6)


@st.composite
def _timed(draw: st.DrawFn, odd: bool = False) -> Event:
    category, name = draw(st.sampled_from(_TYPES))
    broken = st.sampled_from([None, 2.0**42, 4e15, -4e15, 5e300]) if odd else st.nothing()
    return Event(
        ph="X",
        cat=category,
        name=name,
        pid=draw(st.sampled_from([1, 2, "GPU 1", "python 5"])),
        tid=draw(st.sampled_from([1, 2, "thread 3"])),
        ts=draw(_times | broken),
        dur=draw(_times | broken),
        args=draw(_args),
    )


def _same(one: model.Trace, other: model.Trace) -> None:
    assert one.names == other.names
    assert one.notes == other.notes
    for name in ("ops", "calls", "ranges", "host", "overhead"):
        mine, theirs = getattr(one, name), getattr(other, name)
        for column in fields(mine):
            assert getattr(mine, column.name).tolist() == getattr(theirs, column.name).tolist(), (
                name,
                column.name,
            )


_ORPHAN = Event(ph="E", pid="nobody", tid="nobody")
"""An end without a begin: it is passed over, and what comes with it is taken one by one."""


@given(st.lists(st.lists(_timed(odd=True), max_size=6), max_size=4))
def test_events_of_any_type_at_once_are_what_they_are_one_by_one(batches: list[list[Event]]) -> None:
    at_once, singly = Collector(), Collector()
    for batch in batches:
        at_once.add(batch)
        singly.add([*batch, _ORPHAN])
    _same(at_once.trace("made", {}), singly.trace("made", {}))
    assert at_once.seen == sum(map(len, batches))


@given(st.lists(st.lists(_timed(), min_size=1, max_size=6), min_size=1, max_size=4))
def test_times_at_once_are_those_of_the_events_in_nanoseconds(batches: list[list[Event]]) -> None:
    found = Collector()
    for batch in batches:
        found.add(batch)
    trace = found.trace("made", {})
    for table, categories in (
        (trace.ops, {"kernel", "gpu_memcpy", "gpu_memset"}),
        (trace.calls, {"cuda_runtime"}),
        (trace.overhead, {"overhead"}),
    ):
        events = [event for batch in batches for event in batch if event.cat in categories]
        starts = [round((event.ts or 0) * 1000) for event in events]
        assert table.start.tolist() == starts
        assert (table.end - table.start).tolist() == [round((event.dur or 0) * 1000) for event in events]


def _call(**more: Any) -> Event:
    return Event(ph="X", cat="cuda_runtime", name="c", pid=1, tid=1, ts=5, dur=1, args=Args(**more))


def test_a_thread_that_is_new_in_a_later_batch_is_learnt() -> None:
    found = Collector()
    found.add([_call(correlation=1)])
    later = _call(correlation=2)
    later.pid, later.tid = 8, 9
    found.add([later])
    trace = found.trace("made", {})
    owners = list(zip(trace.calls.process.tolist(), trace.calls.thread.tolist(), strict=True))
    assert owners == [(1, 1), (8, 9)]


def test_inputs_that_are_new_in_a_later_batch_are_learnt() -> None:
    found = Collector()
    for dims in (b"[[2,3]]", b"[[7]]", b"[[2,3]]"):
        args = Args(dims=msgspec.Raw(dims), types=msgspec.Raw(b'["float"]'), sequence=4)
        found.add([Event(ph="X", cat="cpu_op", name="aten::mm", pid=1, tid=1, ts=5, dur=1, args=args)])
    trace = found.trace("made", {})
    texts = [trace.names[number] for number in trace.host.inputs.tolist()]
    assert texts == ['[[2,3]] ["float"]', '[[7]] ["float"]', '[[2,3]] ["float"]']
    assert trace.host.sequence.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("sequence", "kept"),
    [(0, 1), (-1, 0), ((1 << 31) - 2, (1 << 31) - 1), ((1 << 31) - 1, 0), ("3", 4), (None, 0)],
)
def test_a_sequence_number_is_kept_one_higher_in_31_bits(sequence: Any, kept: int) -> None:
    for orphan in ([], [_ORPHAN]):
        found = Collector()
        event = Event(ph="X", cat="cpu_op", name="a", pid=1, tid=1, ts=5, dur=1, args=Args(sequence=sequence))
        found.add([event, *orphan])
        assert found.trace("made", {}).host.sequence.tolist() == [kept]


def test_halves_of_ranges_nest_on_their_thread() -> None:
    def half(ph: str, ts: float | None, name: str = "", tid: int = 1) -> Event:
        return Event(ph=ph, cat="user_annotation", name=name, pid=1, tid=tid, ts=ts)

    found = Collector()
    found.add([half("E", 1), half("B", 2, "outer"), half("B", 3, "inner"), half("B", 4, "other", 2), half("E", 5)])
    found.add(
        [half("E", 9), half("E", 10, tid=2), half("B", 11, "open"), half("B", None, "broken"), half("E", 12)]
    )
    trace = found.trace("made", {})
    rows = zip(trace.ranges.name.tolist(), trace.ranges.start.tolist(), trace.ranges.end.tolist(), strict=True)
    assert [(trace.names[name], start, end) for name, start, end in rows] == [
        ("inner", 3000, 5000),
        ("outer", 2000, 9000),
        ("other", 4000, 10_000),
    ]
    assert found.deepest == 2
    assert trace.notes == ["1 events have no time and are left out"]


def _memory(**fields_: Any) -> model.MemoryEvents:
    found = Collector()
    args = MemoryArgs(**{"memory_bytes": 64, **fields_})
    found.add([Event(ph="i", name="[memory]", pid=3, tid=4, ts=1.5, args=args)])
    return found.trace("made", {}).memory


@pytest.mark.parametrize(
    ("arguments", "device"),
    [
        ({"device_type": 1, "device_id": 2}, 2),
        ({"device_type": 1, "device_id": "1"}, 1),
        ({"device_type": 0, "device_id": 2}, model.HOST_MEMORY),
        ({"device_id": 2}, model.HOST_MEMORY),
        ({"device_type": 1}, 0),
    ],
)
def test_an_allocation_is_on_the_host_or_its_device(arguments: dict[str, Any], device: int) -> None:
    found = _memory(**arguments)
    assert (found.start.tolist(), found.end.tolist()) == ([1500], [1500])
    assert (found.process.tolist(), found.thread.tolist()) == ([3], [4])
    assert (found.device.tolist(), found.bytes.tolist()) == ([device], [64])
    assert (found.level.tolist(), found.reserved.tolist()) == ([-1], [-1])
    assert found.memory.tolist() == [model.MEMORY_UNKNOWN]


def test_levels_of_memory_are_those_of_the_allocator() -> None:
    found = _memory(memory_bytes=-5, memory_level=100, memory_reserved="200")
    assert (found.bytes.tolist(), found.level.tolist(), found.reserved.tolist()) == ([-5], [100], [200])


def test_an_allocation_without_a_time_is_counted() -> None:
    found = Collector()
    for ts in (None, 4e15, -4e15):
        found.add([Event(ph="i", name="[memory]", pid=3, tid=4, ts=ts, args=MemoryArgs(memory_bytes=1))])
    found.add([Event(ph="i", name="other", pid=3, tid=4, ts=1, args=MemoryArgs(memory_bytes=1))])
    trace = found.trace("made", {})
    assert len(trace.memory) == 0
    assert trace.notes == ["3 events have no time and are left out"]


def test_device_work_is_of_the_process_that_launched_it_else_of_the_one_with_most_calls() -> None:
    found = Collector()
    for pid, correlation in ((7, 1), (8, 2), (8, 3)):
        call = _call(correlation=correlation)
        call.pid = pid
        found.add([call])
    for correlation in (1, 3, 9, -1):
        args = Args(device=0, stream=1, correlation=correlation)
        found.add([Event(ph="X", cat="kernel", name="k", pid=0, tid=1, ts=9, dur=1, args=args)])
    assert found.trace("made", {}).ops.process.tolist() == [7, 8, 8, 8]


@pytest.mark.parametrize(
    ("properties", "version", "gpus", "ranks"),
    [
        ({"cuda_runtime_version": 12040}, "CUDA 12.4", {}, []),
        ({"cuda_runtime_version": 11080}, "CUDA 11.8", {}, []),
        ({"cuda_runtime_version": 0}, "", {}, []),
        ({"cuda_runtime_version": 1_000_000}, "", {}, []),
        ({"cuda_runtime_version": "12040"}, "", {}, []),
        (
            {"deviceProperties": [{"id": 1, "name": "A"}, {"id": "2"}, 5, {"id": 3, "name": 7}]},
            "",
            {1: "A", 3: None},
            [],
        ),
        ({"deviceProperties": {"id": 1}}, "", {}, []),
        ({"distributedInfo": {"rank": 3, "world_size": 8}}, "", {}, [(1, 3, 8)]),
        ({"distributedInfo": {"rank": 3}}, "", {}, [(1, 3, 0)]),
        ({"distributedInfo": {"rank": "3"}}, "", {}, []),
        ({"distributedInfo": [3]}, "", {}, []),
    ],
)
def test_a_file_s_properties_are_read_where_they_have_their_form(
    properties: dict[str, Any], version: str, gpus: dict[int, str | None], ranks: list[tuple[int, int, int]]
) -> None:
    found = Collector()
    found.add([_call(correlation=1)])
    trace = found.trace("made", properties)
    assert trace.version == version
    assert {number: gpu.name for number, gpu in trace.gpus.items()} == gpus
    assert [(one.process, one.rank, one.world_size) for one in trace.ranks] == ranks


def test_the_name_of_a_process_is_kept_where_it_calls_cuda() -> None:
    found = Collector()
    for pid, name in ((1, "python"), (2, "other"), (-1, "x"), ("y", "z")):
        found.add([Event(ph="M", name="process_name", pid=pid, args=Args(name=name))])
    found.add([Event(ph="M", name="process_labels", pid=1, args=Args(name="no")), _call(correlation=1)])
    trace = found.trace("made", {"baseTimeNanoseconds": 5})
    assert trace.process_names == {1: "python"}
    assert trace.origin_unix_ns == 5
    assert np.array_equal(trace.calls.correlation, [1])
