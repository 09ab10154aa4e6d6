"""What events of a category and name have in common, and whose they are."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from llmtop.trace import model
from llmtop.trace.chrome import learn
from llmtop.trace.chrome.at_once import device_of, record_message, stream_of
from llmtop.trace.chrome.fields import COARSE_US, Args, Event, lenient_event
from llmtop.trace.chrome.learn import LARGEST, TraceIndex, int_or, short_kernel_name
from llmtop.trace.chrome.rows import Rows, Tables


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (5, 5),
        (0, 0),
        (-3, -3),
        ("12", 12),
        (2.9, 2),
        (True, 1),
        (None, -7),
        ("x", -7),
        ([1], -7),
        (float("inf"), -7),
        (float("nan"), -7),
        (LARGEST - 1, LARGEST - 1),
        (LARGEST, -7),
        (1 - LARGEST, 1 - LARGEST),
        (-LARGEST, -7),
    ],
)
def test_a_value_is_a_whole_number_or_the_default(value: Any, found: int) -> None:
    assert int_or(value, -7) == found


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("void at::native::foo<int>(int*)", "foo"),
        ("gemm_kernel", "gemm_kernel"),
        ("void cutlass::Kernel<cutlass::gemm::Gemm<1, 2>>(Params)", "Kernel"),
        ("ampere::run(int)::inner", "run"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax"),
        ("<unnamed>::thing(int)", "thing"),
        ("operator->(int)", "operator"),
        ("a::b<c>::d", "d"),
        ("unsigned int fill", "fill"),
        ("(int)", "(int)"),
        ("", ""),
    ],
)
def test_the_short_name_of_a_kernel_is_its_function(full: str, short: str) -> None:
    assert short_kernel_name(full) == short


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("kernel", "k", learn.KERNEL),
        ("Kernel", "k", learn.KERNEL),
        ("Concurrent Kernel", "k", learn.KERNEL),
        ("gpu_memcpy", "Memcpy HtoD", learn.MEMCPY),
        ("Memcpy", "Memcpy HtoD", learn.MEMCPY),
        ("gpu_memset", "Memset", learn.MEMSET),
        ("cuda_runtime", "cudaMalloc", learn.CALL),
        ("cuda_driver", "cuLaunchKernel", learn.CALL),
        ("hip_runtime", "hipMalloc", learn.CALL),
        ("cpu_op", "aten::mm", learn.OPERATOR),
        ("Operator", "aten::mm", learn.OPERATOR),
        ("cpu_op", "ProfilerStep#3", learn.RANGE),
        ("cpu_op", "Optimizer.step#Adam.step", learn.RANGE),
        ("cpu_op", "Optimizer.zero_grad#Adam.zero_grad", learn.RANGE),
        ("cpu_op", "enumerate(DataLoader)#x", learn.RANGE),
        ("cpu_op", "[pl][profile]run", learn.RANGE),
        ("user_annotation", "step", learn.RANGE),
        ("python_function", "x.py(1): f", learn.PYTHON),
        ("overhead", "CUPTI", learn.OVERHEAD),
        ("gpu_user_annotation", "step", -1),
        ("ac2g", "x", -1),
        ("", "x", -1),
        (None, None, -1),
    ],
)
def test_the_kind_of_an_event_is_that_of_its_category(category: str | None, name: str | None, kind: int) -> None:
    index = TraceIndex()
    found = index.add_event_type(category, name)
    assert found.kind == kind
    assert index.what[category, name] == found
    assert index.names.all[found.name] == ("" if kind < 0 else found_name(name, kind))


def found_name(name: str | None, kind: int) -> str:
    return {learn.MEMCPY: "memcpy host-to-device", learn.MEMSET: "memset"}.get(kind, name or "")


@pytest.mark.parametrize(
    ("name", "direction", "source", "target"),
    [
        ("Memcpy HtoD (Pageable -> Device)", model.HOST_TO_DEVICE, model.PAGEABLE, model.DEVICE),
        ("Memcpy DtoH (Device -> Pinned)", model.DEVICE_TO_HOST, model.DEVICE, model.PINNED),
        ("Memcpy DtoD (Device -> Device)", model.DEVICE_TO_DEVICE, model.DEVICE, model.DEVICE),
        ("Memcpy PtoP (Device -> Device)", model.PEER, model.DEVICE, model.DEVICE),
        ("Memcpy HtoH", model.HOST_TO_HOST, model.MEMORY_UNKNOWN, model.MEMORY_UNKNOWN),
        ("Memcpy XtoY (Managed -> Array)", model.UNKNOWN, 4, 3),
        ("Memcpy HtoD (Device -> Elsewhere)", model.HOST_TO_DEVICE, model.DEVICE, model.MEMORY_UNKNOWN),
        ("copy", model.UNKNOWN, model.MEMORY_UNKNOWN, model.MEMORY_UNKNOWN),
    ],
)
def test_a_copy_s_name_has_its_direction_and_memories(name: str, direction: int, source: int, target: int) -> None:
    found = TraceIndex().add_event_type("gpu_memcpy", name)
    assert (found.direction, found.source_memory, found.target_memory) == (direction, source, target)


def test_types_have_places_among_all_and_among_device_work() -> None:
    index = TraceIndex()
    for category, name in (("cpu_op", "a"), ("kernel", "b"), ("ac2g", "c"), ("gpu_memset", "d"), ("cpu_op", "e")):
        index.add_event_type(category, name)
    assert [one.place for one in index.all] == [0, 1, 2, 3, 4]
    assert [(one.number, index.names.all[one.name]) for one in index.of_work] == [(0, "b"), (1, "memset")]
    assert index.places["ac2g", "c"] == 2


def test_processes_and_threads_are_numbers_or_get_one_below_zero() -> None:
    index = TraceIndex()
    owners = [(5, 6), ("5", "6"), ("python 9", 6), ("python 9", "worker"), ("other", "worker"), (5, 6)]
    places = [index.thread(Event(pid=pid, tid=tid)) for pid, tid in owners]
    found = [index.owners[place] for place in places]
    assert found[0] == found[1] == found[5] == (5, 6)
    assert places[0] == places[5]
    assert found[2][0] == found[3][0] < 0
    assert found[4][0] not in (found[2][0], 5)
    assert found[3][1] < 0
    assert found[3] != found[4]
    assert index.process_names == {found[2][0]: "python 9", found[4][0]: "other"}


@pytest.mark.parametrize(
    ("named", "device"),
    [("GPU 1", 1), ("GPU 12 ", 12), (3, 3), ("3", 3), (-2, 0), ("gpu", 0), (None, 0), (2.0, 2)],
)
def test_a_device_that_stands_where_a_process_does(named: Any, device: int) -> None:
    index = TraceIndex()
    assert [index.device(named), index.device(named)] == [device, device]


@pytest.mark.parametrize(
    ("args", "device", "stream"),
    [
        (Args(device=2, stream=7), 2, 7),
        (Args(inDevice=3), 3, 9),
        (Args(device=1, inDevice=3, stream="8"), 1, 8),
        (Args(device=-1), 5, 9),
        (Args(device="gpu", stream="x"), 5, 0),
        (Args(device=0, stream=0), 0, 0),
        (None, 5, 9),
    ],
)
def test_work_is_on_the_device_and_stream_of_its_arguments_else_of_its_place(
    args: Args | None, device: int, stream: int
) -> None:
    event = Event(pid=5, tid=9, args=args)
    assert (device_of(TraceIndex(), event), stream_of(event)) == (device, stream)


@pytest.mark.parametrize(
    ("fields", "size", "ranks"),
    [
        ({"group": 8, "elements_in": 10, "elements_out": 80, "dtype": "BFloat16"}, 160, 8),
        ({"group": "4", "elements_in": "90", "elements_out": 80, "dtype": "Float"}, 360, 4),
        ({"group": 2, "elements_in": 3, "dtype": "Double"}, 24, 2),
        ({"group": 2, "elements_in": 3, "dtype": "Byte"}, 3, 2),
        ({"group": 2, "elements_in": 3, "dtype": "Quaternion"}, 0, 2),
        ({"group": 2, "elements_in": -3, "dtype": "Byte"}, 0, 2),
        ({"group": 2, "elements_in": 1 << 60, "dtype": "Byte"}, 1 << 50, 2),
        ({"group": 0, "elements_in": 3, "dtype": "Half"}, 6, None),
        ({"group": 1 << 31, "elements_in": 3, "dtype": "Half"}, 6, None),
        ({"group": (1 << 31) - 1, "elements_in": 3, "dtype": "Half"}, 6, (1 << 31) - 1),
        ({"group": 1, "elements_in": 3, "dtype": "Half"}, 6, 1),
    ],
)
def test_a_message_is_the_larger_of_what_goes_in_and_out(
    fields: dict[str, Any], size: int, ranks: int | None
) -> None:
    index, tables = TraceIndex(), Tables()
    assert record_message(index, tables, 17, Args(collective="allreduce", **fields)) == size
    rows = [tables.groups.column(place).tolist() for place in range(3)]
    if ranks is None:
        assert rows == [[], [], []]
    else:
        assert rows[:2] == [[17], [ranks]]
        assert index.names.all[rows[2][0]] == "allreduce"


def test_inputs_are_one_text_of_shapes_and_types() -> None:
    index = TraceIndex()
    dims, types = msgspec.Raw(b"[[2, 3],\n []]"), msgspec.Raw(b'["float", ""]')
    number = index.inputs_of(dims, types)
    assert index.names.all[number] == '[[2,3],[]] ["float",""]'
    assert index.inputs_of(dims, types) == number
    assert index.names.all[index.inputs_of(dims, msgspec.Raw(b""))] == "[[2,3],[]] []"
    assert index.inputs_of(msgspec.Raw(b"[[2,"), types) == 0


@pytest.mark.parametrize(("characters", "kept"), [(model.LONGEST_NAME - 2, True), (model.LONGEST_NAME - 1, False)])
def test_inputs_of_more_characters_than_a_name_has_are_not_kept(characters: int, kept: bool) -> None:
    text = b'"' + b"a" * (characters - 2) + b'"'
    assert bool(TraceIndex().inputs_of(msgspec.Raw(text), msgspec.Raw(b"[]"))) == kept


def test_rows_keep_the_order_in_which_they_came() -> None:
    rows = Rows(2)
    rows.extend((1, 10))
    rows.extend((2, 20))
    assert len(rows) == 2
    rows.add((np.array([3, 4]), np.array([30, 40])))
    rows.extend((5, 50))
    assert len(rows) == 5
    assert rows.column(0).tolist() == [1, 2, 3, 4, 5]
    assert rows.column(1).tolist() == [10, 20, 30, 40, 50]
    assert len(rows) == 5
    assert rows.pop_column(1).tolist() == [10, 20, 30, 40, 50]
    assert rows.pop_column(1).tolist() == []
    assert rows.pop_column(0).tolist() == [1, 2, 3, 4, 5]
    assert Rows(3).column(2).tolist() == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12.5", 12.5),
        (" -3 ", -3.0),
        ("+1e3", 1000.0),
        ("1e400", None),
        ("7.", 7.0),
        ("0x10", None),
        ("", None),
        ("nan", None),
        ("1" + "0" * 39, float("1e39")),
        ("1" + "0" * 40, None),
    ],
)
def test_a_time_that_is_written_as_text_is_a_number(text: str, found: float | None) -> None:
    event = lenient_event({"ts": text})
    assert (None if event.ts is None else float(event.ts)) == found


def test_a_time_that_a_float_cannot_resolve_is_kept_exactly() -> None:
    for text, exact in ((f"{int(COARSE_US)}.001", True), (f"{int(COARSE_US) - 1}.001", False)):
        assert isinstance(lenient_event({"ts": text}).ts, float) != exact
        assert str(lenient_event({"ts": text}).ts).startswith(text[:13])
