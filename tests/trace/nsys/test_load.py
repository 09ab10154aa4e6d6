"""SQLite exports of nsys: any table and column may be missing, names stand in two places."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from llmtop.errors import UnusableInput
from llmtop.trace import model
from llmtop.trace.files.open import open_trace
from tests.support.traces import Capture, steady, write_sqlite

TABLES = (
    "StringIds",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "OSRT_API",
)


def _full(folder: Path) -> Path:
    capture = steady(3)
    capture.copy(100, 200, 4096, launched=50)
    capture.memset(210, 211, launched=205)
    capture.wait("sem_wait", 20, 40)
    return write_sqlite(folder / "full.sqlite", [capture])


def _change(path: Path, *statements: str) -> model.Trace:
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
    return open_trace(path)


def test_everything_is_read(tmp_path: Path) -> None:
    trace = open_trace(_full(tmp_path))
    assert [int((trace.ops.kind == kind).sum()) for kind in (model.KERNEL, model.MEMCPY, model.MEMSET)] == [
        3,
        1,
        1,
    ]
    assert (trace.launched_by >= 0).all()
    assert len(trace.ranges) == 3
    assert len(trace.host) == 1
    copy = trace.ops.select(trace.ops.kind == model.MEMCPY)
    assert (int(copy.direction[0]), int(copy.source_memory[0]), int(copy.bytes[0])) == (1, model.PAGEABLE, 4096)
    assert trace.notes == []


def test_messages_of_nsys_end_with_a_sentence_and_those_on_graphics_are_left_out(tmp_path: Path) -> None:
    paranoid = (
        "perf event paranoid level is 4. ·Change the paranoid level to 2. ·Try·sudo sh -c 'echo [" + "x" * 300
    )
    said = ("No OpenGL events collected. Does the process use OpenGL?", paranoid)
    rows = ", ".join(f"(2, '{text.replace(chr(39), chr(39) * 2)}')" for text in said)
    table = "CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)"
    trace = _change(_full(tmp_path), table, f"INSERT INTO DIAGNOSTIC_EVENT VALUES {rows}")
    assert trace.notes == ["nsys reports: perf event paranoid level is 4. Change the paranoid level to 2."]


@pytest.mark.parametrize("table", TABLES)
def test_any_table_may_be_missing(tmp_path: Path, table: str) -> None:
    from llmtop.analysis.analyze import analyze_trace

    trace = _change(_full(tmp_path), f"DROP TABLE {table}")
    report = analyze_trace(trace)
    assert report.verdict in ("gpu_bound", "unknown", "launch_bound", "idle", "h2d_bound")


@pytest.mark.parametrize("table", TABLES)
def test_any_table_may_be_empty(tmp_path: Path, table: str) -> None:
    from llmtop.analysis.analyze import analyze_trace

    analyze_trace(_change(_full(tmp_path), f"DELETE FROM {table}"))


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind"),
        ("NVTX_EVENTS", "textId"),
        ("NVTX_EVENTS", "domainId"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId"),
    ],
)
def test_columns_of_older_schemas_may_be_missing(tmp_path: Path, table: str, column: str) -> None:
    from llmtop.analysis.analyze import analyze_trace

    path = _full(tmp_path)
    report = analyze_trace(_change(path, f"ALTER TABLE {table} RENAME COLUMN {column} TO unknown"))
    assert sum(kernel.count for kernel in report.kernels) == 3


def test_registered_names_stand_in_string_ids(tmp_path: Path) -> None:
    path = _full(tmp_path)
    trace = _change(
        path,
        "INSERT INTO StringIds VALUES (900, 'registered')",
        f"INSERT INTO NVTX_EVENTS VALUES (1, 5000, 59, NULL, 900, {100 << 24}, 3)",
        f"INSERT INTO NVTX_EVENTS VALUES (-9, NULL, 75, 'mine', NULL, {100 << 24}, 3)",
        f"INSERT INTO NVTX_EVENTS VALUES (1, 5000, 59, 'other', NULL, {101 << 24}, 3)",
    )
    found = {
        trace.names[name]: trace.names[domain]
        for name, domain in zip(trace.ranges.name.tolist(), trace.ranges.domain.tolist(), strict=True)
    }
    assert found["registered"] == "mine"
    assert found["other"] == "", "domain ids count within a process"


def test_marks_and_ranges_without_an_end(tmp_path: Path) -> None:
    path = _full(tmp_path)
    trace = _change(
        path,
        f"INSERT INTO NVTX_EVENTS VALUES (7, NULL, 59, 'unfinished', NULL, {100 << 24}, 0)",
        f"INSERT INTO NVTX_EVENTS VALUES (7, NULL, 34, 'a mark', NULL, {100 << 24}, 0)",
    )
    names = [trace.names[name] for name in trace.ranges.name.tolist()]
    assert "unfinished" in names
    assert "a mark" not in names
    assert (trace.ranges.end == model.OPEN).sum() == 1


def test_correlation_ids_of_two_processes_do_not_mix(tmp_path: Path) -> None:
    one, two = Capture(pid=100), Capture(pid=200, device=1)
    for capture, delay in ((one, 0), (two, 50)):
        capture.kernel(1000 + delay, 2000, launched=100 + delay)
    trace = open_trace(write_sqlite(tmp_path / "two.sqlite", [one, two]))
    for row in range(2):
        call = int(trace.launched_by[row])
        assert trace.calls.process[call] == trace.ops.process[row]
        assert trace.ops.start[row] - trace.calls.start[call] == 900_000


def test_a_text_in_a_column_of_numbers_is_dropped(tmp_path: Path) -> None:
    trace = _change(_full(tmp_path), "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE rowid = 1")
    assert int((trace.ops.kind == model.KERNEL).sum()) == 2
    assert any("no usable time" in note for note in trace.notes)


def test_a_name_that_string_ids_lacks_is_written_as_its_number(tmp_path: Path) -> None:
    trace = _change(_full(tmp_path), "DELETE FROM StringIds WHERE value = 'gemm_kernel'")
    kernel = trace.ops.select(trace.ops.kind == model.KERNEL)
    assert trace.names[int(kernel.name[0])].startswith("#")


def test_a_database_of_something_else_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE cookies (host TEXT)")
    database.commit()
    database.close()
    with pytest.raises(UnusableInput, match="not an export of nsys"):
        open_trace(path)


def test_nothing_is_written_beside_the_capture(tmp_path: Path) -> None:
    path = _full(tmp_path)
    path.chmod(0o444)
    open_trace(path)
    assert [child.name for child in tmp_path.iterdir()] == [path.name]
