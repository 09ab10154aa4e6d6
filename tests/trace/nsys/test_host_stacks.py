"""CPU samples and stacks of CUDA calls in an export of nsys: innermost frames, callers, damage."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llmtop.trace import model
from llmtop.trace.files.open import open_trace
from tests.support.nsys_tables import NsysTables
from tests.support.traces import MAIN, Capture, steady, write_sqlite


def _export(folder: Path, capture: Capture | None = None) -> tuple[Path, NsysTables]:
    path = write_sqlite(folder / "made.sqlite", [capture or steady()])
    return path, NsysTables(path)


def _names(trace: model.Trace) -> list[tuple[str, str]]:
    return [
        (trace.names[name], trace.names[caller])
        for name, caller in zip(trace.samples.name.tolist(), trace.samples.caller.tolist(), strict=True)
    ]


def test_a_sample_has_its_innermost_frame_and_the_next_of_another_module(tmp_path: Path) -> None:
    path, tables = _export(tmp_path)
    stack = [
        ("memcpy", "/lib/libc.so.6"),
        ("memmove", "/lib/libc.so.6"),
        ("", "/lib/x.so"),
        ("copy", "/t/torch.so"),
    ]
    tables.samples(MAIN, MAIN, [10.0], stack)
    tables.samples(MAIN, MAIN, [20.0], [("", "/lib/libgomp.so.1")])
    trace = open_trace(path)
    assert _names(trace) == [("memcpy (libc.so.6)", "copy (torch.so)"), ("(libgomp.so.1)", "")]
    assert trace.samples.start.tolist() == [10_000, 20_000]
    assert (trace.samples.process == MAIN).all()
    assert (trace.samples.thread == MAIN).all()


def test_samples_of_other_processes_are_left_out(tmp_path: Path) -> None:
    path, tables = _export(tmp_path)
    tables.samples(4242, 4242, [10.0], [("other", "/bin/other")])
    tables.samples(MAIN, MAIN, [10.0], [("own", "/bin/own")])
    assert _names(open_trace(path)) == [("own (own)", "")]


def test_a_call_is_made_where_the_first_frame_is_that_is_neither_cuda_s_nor_the_tool_s(tmp_path: Path) -> None:
    capture = steady()
    path, tables = _export(tmp_path, capture)
    cuda = [("cuLaunchKernel", "/lib/libcuda.so.1"), ("cudaLaunch", "/lib/libcudart.so.12")]
    tables.call_stack(
        7, capture.calls[0]["correlation"], [*cuda, ("gemm", "/t/libtorch_cuda.so"), ("main", "/bin/x")]
    )
    trace = open_trace(path)
    places = [trace.names[number] for number in trace.calls.place.tolist()]
    assert places.count("gemm (libtorch_cuda.so)") == 1
    assert places.count("") == len(places) - 1


def test_an_export_without_these_tables_has_none_of_it(tmp_path: Path) -> None:
    trace = open_trace(write_sqlite(tmp_path / "bare.sqlite", [steady()]))
    assert not len(trace.samples)
    assert not len(trace.memory)
    assert not trace.calls.place.any()
    assert not trace.notes


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE SAMPLING_CALLCHAINS",
        "UPDATE SAMPLING_CALLCHAINS SET symbol = 'text', module = -1",
        "ALTER TABLE COMPOSITE_EVENTS DROP COLUMN start",
        "UPDATE COMPOSITE_EVENTS SET globalTid = NULL",
        "CREATE TABLE LLMTOP_PYTHON_STACKS (start, globalTid, thread, stack); "
        "INSERT INTO LLMTOP_PYTHON_STACKS VALUES (1, 2, 3, '[[1]]'), ('a', 'b', 'c', 'no json'), (1, 2, 3, NULL), "
        "(1, 2, 3, '[]'), (1, 2, 3, '[[\"a.py\", 5, \"f\"]]')",
    ],
)
def test_damaged_tables_are_read_as_far_as_they_go(tmp_path: Path, damage: str) -> None:
    path, tables = _export(tmp_path)
    tables.samples(MAIN, MAIN, [10.0], [("own", "/bin/own")])
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(damage)
    assert len(open_trace(path).samples) <= 2
