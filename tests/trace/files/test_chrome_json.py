"""Chrome traces of torch.profiler, of today and of 2021, read in pieces."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmtop.trace import model
from llmtop.trace.chrome.learn import short_kernel_name
from llmtop.trace.files import chrome_json
from llmtop.trace.files.open import open_trace
from tests.support.traces import Capture, steady, write_chrome


def _load(text: str | bytes) -> model.Trace:
    raw = text.encode() if isinstance(text, str) else text
    return chrome_json.load(io.BytesIO(raw), "trace.json")


def _events(*events: dict[str, Any], **properties: Any) -> model.Trace:
    return _load(json.dumps({**properties, "traceEvents": list(events)}))


KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 10.5, "dur": 2.25, "pid": 0, "tid": 7}


def test_names_of_2021(tmp_path: Path) -> None:
    common = {"ph": "X", "ts": 100, "dur": 10}
    trace = _events(
        {**common, "cat": "Kernel", "name": "void foo<int>(int*)", "pid": 1, "tid": 7,
         "args": {"device": 1, "stream": 7, "correlation": 5, "external id": 2}},
        {**common, "cat": "Memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 1, "tid": 7,
         "args": {"fromDevice": 0, "inDevice": 1, "toDevice": 1, "stream": 7, "correlation": 6, "bytes": 64}},
        {**common, "cat": "Memset", "name": "Memset (Device)", "pid": 1, "tid": 7, "args": {"device": 1}},
        {**common, "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 77, "tid": 78,
         "args": {"cbid": 211, "correlation": 5}},
        {**common, "cat": "Operator", "name": "aten::mm", "pid": 77, "tid": 78},
        {**common, "cat": "Operator", "name": "ProfilerStep#3", "pid": 77, "tid": 78},
    )  # fmt: skip
    assert [int(kind) for kind in trace.ops.kind] == [model.KERNEL, model.MEMCPY, model.MEMSET]
    assert set(trace.ops.device.tolist()) == {1}
    assert set(trace.ops.process.tolist()) == {77}, "device work belongs to the process that launched it"
    assert trace.launched_by.tolist() == [0, -1, -1]
    assert int(trace.ops.direction[1]) == model.HOST_TO_DEVICE
    assert trace.names[int(trace.ops.name[0])] == "foo"
    assert [trace.names[int(name)] for name in trace.ranges.name] == ["ProfilerStep#3"]
    assert len(trace.host) == 1


def test_times_are_kept_to_the_nanosecond() -> None:
    trace = _events({**KERNEL, "ts": 4372615568917.537, "dur": 1742.545}, baseTimeNanoseconds=1790857026000000000)
    assert int(trace.ops.end[0] - trace.ops.start[0]) == 1742545
    assert trace.origin_unix_ns == 1790857026000000000


def test_a_clock_of_a_machine_that_runs_for_weeks_keeps_its_nanoseconds() -> None:
    for whole in (4400674880275, 8796093000000):
        events = [f'{{"ph":"X","cat":"kernel","name":"k","ts":{whole}.{i:03d},"dur":1}}' for i in range(1000)]
        trace = _load(f'{{"traceEvents":[{",".join(events)}]}}')
        assert trace.ops.start.tolist() == [whole * 1000 + i for i in range(1000)]


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("halves", [False, True])
def test_a_clock_since_1970_keeps_its_nanoseconds(halves: bool, damaged: bool) -> None:
    """A float of µs since 1970 can tell 256 ns: gaps of 0.8 µs would be 0.75 or 1."""
    events = []
    for i in range(100):
        thousandths = i * 1800 + 137
        ts = f"{1682725898079292 + thousandths // 1000}.{thousandths % 1000:03d}"
        place = f'"cat":"kernel","name":"k","pid":0,"tid":7,"ts":{ts}'
        if halves:
            end = thousandths + 1000
            later = f"{1682725898079292 + end // 1000}.{end % 1000:03d}"
            events.append(f'{{"ph":"B",{place}}},{{"ph":"E","pid":0,"tid":7,"ts":{later}}}')
        else:
            events.append(f'{{"ph":"X",{place},"dur":1.000}}')
    if damaged:
        events.insert(50, '{"ph":"X","cat":"kernel","name":"k","ts":NaN,"dur":')
    trace = _load(f'{{"traceEvents":[{",".join(events)}]}}')
    ops = trace.ops.select(np.argsort(trace.ops.start))
    assert len(ops) == 100
    assert ops.start.tolist()[0] == 1682725898079292137
    assert set((ops.start[1:] - ops.end[:-1]).tolist()) == {800}
    assert set((ops.end - ops.start).tolist()) == {1000}


@pytest.mark.parametrize("name", ["python 4543", "worker"])
def test_a_process_whose_id_is_a_name_is_one_process(name: str) -> None:
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 1, "pid": name}
    trace = _events(
        {**call, "tid": "thread 1", "ts": 1, "args": {"correlation": 1}},
        {**call, "tid": "thread 2", "ts": 2, "args": {"correlation": 2}},
        {**call, "tid": 3, "ts": 3, "args": {"correlation": 3}},
        {**call, "pid": "another", "tid": 3, "ts": 4, "args": {"correlation": 4}},
        *({**KERNEL, "args": {"device": 0, "correlation": number}} for number in (1, 2, 3, 4)),
    )
    first, others = int(trace.calls.process[0]), int(trace.calls.process[3])
    assert trace.calls.process.tolist() == [first] * 3 + [others]
    assert first != others
    assert len(set(trace.calls.thread.tolist())) == 3
    assert trace.ops.process.tolist() == trace.calls.process.tolist()
    assert trace.process_names[first] == name


def test_a_device_that_stands_as_a_name_where_a_process_does_is_that_device() -> None:
    trace = _events(*({**KERNEL, "pid": pid, "args": {}} for pid in ("GPU 0", "GPU 1", "GPU 1", "GPU 0", 3)))
    assert trace.ops.device.tolist() == [0, 1, 1, 0, 3]


def test_a_bare_list_of_events_is_a_trace_too() -> None:
    assert len(_load(json.dumps([KERNEL, KERNEL])).ops) == 2


def test_begin_and_end_events_make_a_range() -> None:
    trace = _events(
        {"ph": "B", "cat": "user_annotation", "name": "outer", "ts": 1, "pid": 5, "tid": 5},
        {"ph": "B", "cat": "user_annotation", "name": "inner", "ts": 2, "pid": 5, "tid": 5},
        {"ph": "E", "ts": 3, "pid": 5, "tid": 5},
        {"ph": "E", "ts": 9, "pid": 5, "tid": 5},
    )
    found = {
        trace.names[int(n)]: int(e - s)
        for n, s, e in zip(trace.ranges.name, trace.ranges.start, trace.ranges.end, strict=True)
    }
    assert found == {"inner": 1000, "outer": 8000}


def test_annotations_on_the_gpu_are_not_its_work() -> None:
    trace = _events(KERNEL, {**KERNEL, "cat": "gpu_user_annotation", "name": "step", "dur": 900})
    assert len(trace.ops) == 1
    assert len(trace.ranges) == 0


@pytest.mark.parametrize("word", ["inf", "nan", "-inf", "Infinity", "NaN"])
def test_numbers_that_json_does_not_know(word: str) -> None:
    text = json.dumps({"traceEvents": [KERNEL, KERNEL]}).replace(
        '"tid": 7', f'"tid": 7, "args": {{"x": {word}}}', 1
    )
    assert len(_load(text).ops) == 2


def test_a_name_that_is_not_utf_8() -> None:
    text = json.dumps({"traceEvents": [KERNEL, {**KERNEL, "name": "NAME"}]}).encode()
    trace = _load(text.replace(b"NAME", b"n\xff\xfe"))
    assert len(trace.ops) == 2


def test_fields_of_unexpected_types_cost_only_themselves() -> None:
    trace = _events(
        KERNEL,
        {**KERNEL, "args": {"device": "gpu zero", "stream": None, "correlation": 1.0, "bytes": [1]}},
        {**KERNEL, "ts": "soon"},
        {**KERNEL, "name": None},
        {**KERNEL, "pid": {"a": 1}},
    )
    assert len(trace.ops) == 4
    assert any("1 events have no time" in note for note in trace.notes)


def test_pieces_end_between_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = steady(40)
    for step in range(40):
        # Braces, brackets and quotes in names must not be taken for the end of an event.
        capture.kernel(step * 10 + 1, step * 10 + 2, launched=step * 10, name='}, {"ph": "X"}, [ ]} \\"{')
    path = write_chrome(tmp_path / "trace.json", capture)
    whole = open_trace(path)
    monkeypatch.setattr(chrome_json, "PIECE_BYTES", 700)
    pieces = open_trace(path)
    assert pieces.ops.start.tolist() == whole.ops.start.tolist()
    assert [pieces.names[int(n)] for n in pieces.ops.name] == [whole.names[int(n)] for n in whole.ops.name]
    assert pieces.notes == whole.notes == []


def test_nested_arguments_do_not_end_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_json, "PIECE_BYTES", 400)
    event = {**KERNEL, "args": {"shapes": [{"a": 1}, {"b": 2}], "device": 3}}
    trace = _load(json.dumps({"traceEvents": [event] * 50}))
    assert trace.ops.device.tolist() == [3] * 50


def test_properties_before_and_after_the_events() -> None:
    events = json.dumps(
        [KERNEL, {"ph": "X", "cat": "cuda_runtime", "name": "c", "ts": 1, "dur": 1, "pid": 9, "tid": 9}]
    )
    text = '{"deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}], "traceEvents": ' + events
    text += ', "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}}'
    trace = _load(text)
    assert trace.gpus[0].name == "NVIDIA H200"
    assert [(rank.rank, rank.world_size, rank.process) for rank in trace.ranks] == [(3, 8, 9)]


def test_gzip_is_seen_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trace.pt"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [KERNEL]}).encode()))
    assert len(open_trace(path).ops) == 1


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("void at::native::vectorized_kernel<4, at::native::F<float> >(int, float*)", "vectorized_kernel"),
        ("ncclDevKernel_AllReduce_Sum_f32(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllReduce_Sum_f32"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<int>(int)", "CatArrayBatchedCopy"),
        ("nvjet_sm90_tst_64x8", "nvjet_sm90_tst_64x8"),
        ("void foo<bar::operator()(int) const::{lambda(int)#1}>(int)", "foo"),
        ("<<<>>>", "<<<>>>"),
        ("", ""),
    ],
)  # fmt: skip
def test_short_names(full: str, short: str) -> None:
    assert short_kernel_name(full) == short


def test_the_files_of_two_ranks_become_one_trace(tmp_path: Path) -> None:
    for rank, capture in enumerate((Capture(pid=10), Capture(pid=20))):
        capture.kernel(1000, 2000, launched=900)
        base = 1_000_000_000_000 + rank * 5_000_000
        write_chrome(tmp_path / f"rank{rank}.json", capture, baseTimeNanoseconds=base,
                     distributedInfo={"rank": rank, "world_size": 2})  # fmt: skip
    trace = open_trace(tmp_path)
    assert trace.ops.process.tolist() == [10, 20]
    assert int(trace.ops.start[1] - trace.ops.start[0]) == 5_000_000, "aligned by the files' own clocks"
    assert (trace.launched_by >= 0).all()
    assert sorted(rank.rank for rank in trace.ranks) == [0, 1]


def test_ranks_of_containers_with_the_same_pid_stay_apart(tmp_path: Path) -> None:
    for rank in range(2):
        capture = Capture(pid=1)
        capture.kernel(1000 + rank, 2000, launched=900 + rank)
        write_chrome(tmp_path / f"rank{rank}.json", capture)
    trace = open_trace(tmp_path)
    assert len(set(trace.ops.process.tolist())) == 2
    assert [int(trace.calls.start[call]) for call in trace.launched_by] == [900_000, 901_000]
