"""Operators that PyTorch marks for nsys, and when threads had no CPU."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from llmtop.trace import model
from llmtop.trace.files.open import open_trace
from llmtop.trace.nsys.nvtx_operators import OperatorRange, parse_operator_range
from tests.support.traces import MAIN, Capture, write_sqlite


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "aten::mm, seq = 12, op_id = 345, sizes = [[64, 128], [128, 32]], input_op_ids = [[(3,0)]]",
            OperatorRange("aten::mm", 13, "[[64,128],[128,32]] []"),
        ),
        ("aten::mm, op_id = 345", OperatorRange("aten::mm", 0, "")),
        ("aten::mm, seq = 0", OperatorRange("aten::mm", 1, "")),
        ("aten::mm, seq = 5, sizes = []", OperatorRange("aten::mm", 6, "")),
        ("aten::mm, op_id = 1, sizes = [[]]", OperatorRange("aten::mm", 0, "[[]] []")),
        ("a, b, seq = 999999999", OperatorRange("a, b", 1_000_000_000, "")),
        ("aten::mm, seq = 1000000000", None),
        ("aten::mm", None),
        ("aten::mm, sizes = [[1]]", None),
        ("step, op_id = x", None),
        ("a\nb, seq = 2", OperatorRange("a\nb", 3, "")),
    ],
)
def test_a_range_s_text_has_the_operator_and_its_inputs(text: str, found: OperatorRange | None) -> None:
    assert parse_operator_range(text) == found


def _off_cpu(capture: Capture, folder: Path) -> list[tuple[int, int, int]]:
    """Thread, ns off the CPU, and why."""
    trace = open_trace(write_sqlite(folder / "made.sqlite", [capture]))
    rows = zip(trace.off_cpu.thread.tolist(), trace.off_cpu.start.tolist(), trace.off_cpu.end.tolist(),
               trace.off_cpu.why.tolist(), strict=True)  # fmt: skip
    return [(thread, end - start, why) for thread, start, end, why in rows]


@pytest.mark.parametrize(
    ("state", "block", "why"),
    [
        (1, 0, model.PREEMPTED),  # Running
        (2, 0, model.WAITING),  # Interruptible
        (0, 4, model.SLEEPING),  # Nanosleep
        (0, 44, model.PREEMPTED),
        (2, 4, model.SLEEPING),  # what blocks it says more than its state
        (0, 0, 0),
        (9, 9, 0),
    ],
)
def test_why_a_thread_had_no_cpu_is_what_its_state_shows(tmp_path: Path, state: int, block: int, why: int) -> None:
    made = Capture()
    made.kernel(100, 200, launched=10)
    made.off_cpu(300, 350, state=state, block=block)
    assert _off_cpu(made, tmp_path) == [(MAIN, 50_000, why)]


@pytest.mark.parametrize(
    ("call", "begin", "why"),
    [
        ("nanosleep", 400, model.SLEEPING),
        ("clock_nanosleep", 400, model.SLEEPING),
        ("usleep", 500, model.SLEEPING),  # it ends then
        ("sem_wait", 400, model.WAITING),
        ("sem_wait", 399, model.PREEMPTED),
        ("sem_wait", 501, model.PREEMPTED),
        ("oversleep", 450, model.WAITING),
    ],
)
def test_else_the_call_of_the_c_library_says_why(tmp_path: Path, call: str, begin: float, why: int) -> None:
    made = Capture()
    made.kernel(100, 200, launched=10)
    made.wait(call, 400, 500)
    made.wait("poll", 900, 950)
    made.off_cpu(begin, begin + 7)
    assert _off_cpu(made, tmp_path) == [(MAIN, 7000, why)]


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        (250, model.WAITING),
        (300, model.WAITING),
        (400, model.WAITING),
        (401, model.PREEMPTED),
        (199, model.PREEMPTED),
    ],
)
def test_a_page_fault_in_managed_memory_takes_the_cpu_for_a_tenth_of_a_millisecond(
    tmp_path: Path, begin: float, why: int
) -> None:
    made = Capture()
    made.kernel(10, 20, launched=1)
    made.copy(200, 300, 4096, direction="unified DtoH", memory="Pageable")
    made.wait("poll", 900, 950)
    made.off_cpu(begin, begin + 5)
    assert _off_cpu(made, tmp_path) == [(MAIN, 5000, why)]


def test_only_threads_that_call_cuda_count_and_only_whole_stretches(tmp_path: Path) -> None:
    made = Capture()
    made.kernel(100, 200, launched=10)
    made.kernel(100, 200, launched=11, tid=777)
    made.off_cpu(20, 30)
    made.off_cpu(40, 45, tid=777)
    made.off_cpu(50, 90, tid=888)
    path = write_sqlite(tmp_path / "made.sqlite", [made])
    with sqlite3.connect(path) as database:  # a thread that gets a CPU twice, and one that never gets it back
        row = "INSERT INTO SCHED_EVENTS VALUES (?, 0, ?, ?, 0, 0)"
        database.execute(row, (35_000, 1, (MAIN << 24) + MAIN))
        database.execute(row, (99_000, 0, (MAIN << 24) + MAIN))
    trace = open_trace(path)
    found = zip(
        trace.off_cpu.thread.tolist(), trace.off_cpu.start.tolist(), trace.off_cpu.end.tolist(), strict=True
    )
    assert sorted(found) == [(MAIN, 20_000, 30_000), (777, 40_000, 45_000)]
    assert set(trace.off_cpu.process.tolist()) == {MAIN}
