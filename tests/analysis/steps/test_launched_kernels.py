"""Kernels in the order of their launches, the periods in which they repeat, and phases by their ranges."""

from __future__ import annotations

import numpy as np
import pytest

from llmtop.analysis.steps.repetition import (
    LaunchedKernels,
    is_loop_of,
    makes_the_operators,
    period_of,
    repeating_ns,
)
from llmtop.analysis.steps.step_finder import (
    deepest_nesting,
    find_phases,
    find_steps,
    input_ranges,
    own_ranges,
    rows_by_value,
)
from llmtop.trace import model
from tests.support.tables import PID, Tables, steps_at

GEMM, ADD, SOFTMAX = "ampere_sgemm_128x64_nn", "add_kernel", "softmax_kernel"


def _made(*rows: tuple[int, int, str]) -> Tables:
    """Kernels as (launched, start, name)."""
    made = Tables()
    for number, (launched, start, name) in enumerate(rows):
        made.call("cudaLaunchKernel", launched, launched + 5, correlation=number)
        made.op(start, start + 10, name, correlation=number)
    return made


def test_kernels_are_in_order_of_their_launches() -> None:
    made = _made((30, 40, "c"), (10, 50, "a"), (20, 60, "b"), (25, 35, "a"))
    made.op(5, 6, "", kind=model.MEMSET)
    made.op(70, 80, "graph", kind=model.GRAPH, correlation=0)
    made.op(7, 9, "other", process=9)
    found = LaunchedKernels.from_trace(made.trace(), PID)
    assert found.launched.tolist() == [10, 20, 25, 30, 30]
    assert [found.trace.names[int(found.titles[name])] for name in found.name] == ["a", "b", "a", "c", "graph"]
    assert found.places(np.array([10, 11, 26, 99])).tolist() == [0, 1, 3, 5]
    counts = found.counts(np.array([0, 3, 5]))
    assert counts.sum(axis=1).tolist() == [3.0, 2.0]
    assert sorted(counts[0].tolist()) == [0.0, 0.0, 1.0, 2.0]


def test_without_all_launches_kernels_are_in_order_of_their_starts() -> None:
    made = _made((30, 40, "c"), (10, 50, "a"))
    made.op(45, 46, "b")
    found = LaunchedKernels.from_trace(made.trace(), PID)
    assert found.launched.tolist() == [40, 45, 50]


@pytest.mark.parametrize(
    ("direction", "size", "counted"),
    [
        (model.HOST_TO_DEVICE, 256, True),
        (model.HOST_TO_DEVICE, 255, False),
        (model.DEVICE_TO_HOST, 1, True),
        (model.DEVICE_TO_DEVICE, 1 << 20, False),
    ],
)
def test_copies_between_host_and_device_have_a_launch(direction: int, size: int, counted: bool) -> None:
    made = _made((0, 10, "a"))
    made.call("cudaMemcpyAsync", 70, 75, correlation=90)
    made.op(80, 90, "", kind=model.MEMCPY, direction=direction, bytes=size, correlation=90)
    made.op(60, 65, "", kind=model.MEMCPY, direction=direction, bytes=size)
    found = LaunchedKernels.from_trace(made.trace(), PID)
    assert found.copied.tolist() == ([60, 70] if counted else []), "of one without a call when it ran"


def test_products_are_the_calls_that_launched_them() -> None:
    made = _made((30, 40, GEMM), (10, 50, ADD), (20, 60, "flash_fwd_kernel"))
    made.op(70, 80, GEMM)
    trace = made.trace()
    found = LaunchedKernels.from_trace(trace, PID).products
    assert sorted(trace.calls.start[found].tolist()) == [20, 30]


def test_a_process_without_kernels_has_the_operators_of_one_thread() -> None:
    made = Tables()
    made.host("b", 20, 30)
    made.host("a", 0, 10)
    made.host("b", 40, 50)
    made.host("c", 5, 8, thread=8)
    made.host("f", 1, 2, kind=model.PYTHON)
    found = LaunchedKernels.of_thread(made.trace(), PID, PID)
    assert (len(found.rows), len(found.copied)) == (0, 0)
    assert found.launched.tolist() == [0, 20, 40]
    assert [found.trace.names[int(found.titles[name])] for name in found.name] == ["a", "b", "b"]
    made.op(0, 1)
    assert len(LaunchedKernels.of_thread(made.trace(), PID, PID).rows) == 1


@pytest.mark.parametrize(("own", "enough"), [(2, True), (1, False)])
def test_the_thread_of_the_marks_makes_a_fifth_of_the_operators(own: int, enough: bool) -> None:
    made = Tables()
    for number in range(10):
        made.host("a", 10 * number, 10 * number + 5, thread=PID if number < own else 8)
    made.host("late", 100, 105, thread=8)
    made.host("frame", 5, 6, thread=8, kind=model.PYTHON)
    trace = made.trace()
    assert makes_the_operators(trace, PID, PID, np.array([0, 100])) == enough
    assert makes_the_operators(trace, 9, PID, np.array([0, 100])), "a process without operators"


def _sequence(names: list[str], *, apart: int = 10) -> LaunchedKernels:
    made = _made(*((apart * place, apart * place + 1, name) for place, name in enumerate(names)))
    return LaunchedKernels.from_trace(made.trace(), PID)


STEP = [GEMM, ADD, SOFTMAX, "k3", "k4", "k5", "k6", "k7", "k8", "k9", "k10", "k11"]


@pytest.mark.parametrize(
    ("marks", "period"),
    [
        ([0, 120, 240, 360, 480], 1),
        ([0, 60, 120, 180, 240, 300, 360, 420, 480], 2),
        ([0, 120], 1),
        ([9000, 9100, 9200, 9300], 1),
    ],
)
def test_so_many_marks_make_a_step_as_the_kernels_need_to_repeat(marks: list[int], period: int) -> None:
    assert period_of(_sequence(STEP * 4 + [GEMM]), np.array(marks)) == period


def test_marks_between_other_kernels_each_time_make_no_steps() -> None:
    kernels = _sequence([f"k{number}" for number in range(60)])
    assert period_of(kernels, np.array([0, 120, 240, 360, 480])) is None


@pytest.mark.parametrize(
    ("names", "most", "loop"),
    [
        ([GEMM] * 60, 0, True),
        ([GEMM, ADD] * 30, 0, False),
        ([GEMM, ADD] * 30, 2, True),
        ([GEMM, ADD] * 30, 1, False),
        ([GEMM, ADD, SOFTMAX] * 20, 3, True),
        (STEP * 5, 9, False),
    ],
)
def test_a_few_kernels_again_and_again_are_a_loop(names: list[str], most: int, loop: bool) -> None:
    assert is_loop_of(_sequence(names), np.array([0, 120, 240, 360, 480, 600]), most) == loop


@pytest.mark.parametrize(("steps", "repeats"), [(3, 360), (2, 0)])
def test_time_repeats_from_three_stretches_with_the_same_kernels_on(steps: int, repeats: int) -> None:
    names = [*STEP[:-1], "embedding_kernel"] * steps
    kernels = _sequence([*names, GEMM])
    marks = np.arange(0, 120 * (steps + 1), 120)
    assert repeating_ns(kernels, marks) == repeats


def test_ranges_of_a_process_are_those_of_no_library_the_outer_first() -> None:
    made = Tables()
    for name, start, end, domain in (
        ("b", 5, 10, ""),
        ("outer", 0, 50, ""),
        ("inner", 0, 20, ""),
        ("ncclAllReduce", 1, 2, ""),
        ("x", 1, 2, "NCCL"),
        ("y", 1, 2, "cuBLASLt"),
        ("z", 30, 31, "mine"),
    ):
        made.range(name, start, end, domain=domain)
    made.range("other", 0, 1, process=9)
    trace = made.trace()
    assert [trace.names[name] for name in own_ranges(trace, PID).name.tolist()] == ["outer", "inner", "b", "z"]


@pytest.mark.parametrize(
    ("ranges", "deepest"),
    [
        ([(0, 10), (2, 8), (3, 4), (5, 6)], 3),
        ([(0, 10), (10, 20)], 1),  # ends before the next begins
        ([(0, 10), (5, 5)], 1),
        ([(0, int(model.OPEN)), (1, 2)], 1),
        ([], 0),
    ],
)
def test_ranges_nest_so_deep(ranges: list[tuple[int, int]], deepest: int) -> None:
    made = Tables()
    for start, end in ranges:
        made.range("r", start, end)
        made.range("r", start, end, thread=8)
    assert deepest_nesting(made.trace().ranges) == deepest


def test_rows_of_each_value_are_in_their_order() -> None:
    found = [(value, rows.tolist()) for value, rows in rows_by_value(np.array([5, 3, 5, 9, 3], dtype=np.int32))]
    assert found == [(3, [1, 4]), (5, [0, 2]), (9, [3])]
    assert list(rows_by_value(np.empty(0, dtype=np.int32))) == []


@pytest.mark.parametrize(
    ("launched", "kept"),
    [
        ((10, 110), False),  # products in both of the two ranges
        ((10,), True),  # in half of them
        ((89, 189), False),
        ((90, 190), True),  # at their very end: what it had waited for
    ],
)
def test_a_range_with_products_is_no_wait_for_input(launched: tuple[int, ...], kept: bool) -> None:
    made = Tables()
    for start in (0, 100):
        made.range("dataload", start, start + 100)
        made.range("forward", start, start + 100)
    for number, at in enumerate(launched):
        made.launched(number, at, 500 + 20 * number, 510 + 20 * number, GEMM)
    trace = made.trace()
    found = input_ranges(trace, PID, trace.ranges)
    assert [trace.names[name] for name in found.name.tolist()] == (["dataload"] * 2 if kept else [])


def test_phases_have_the_names_of_those_around_them_three_deep() -> None:
    made = Tables()
    for name, start, end in (
        ("step", 0, 1000),
        ("a", 0, 500),
        ("b", 10, 400),
        ("c", 20, 300),
        ("d", 30, 200),
        ("e 7", 600, 700),
        ("e 8", 800, 850),
    ):
        made.range(name, start, end)
    made.range("other", 0, 900, thread=8)
    made.range("begun and ended anywhere", 0, 900, style=model.START_END)
    made.range("open", 0, int(model.OPEN))
    found = {phase.path: phase.spans.total for phase in find_phases(made.trace(), steps_at(0, 1000))}
    assert found == {"a": 500, "a/b": 390, "a/b/c": 280, "e": 150}
    assert list(found) == ["a", "a/b", "a/b/c", "e"], "the longest first"


def test_forty_phases_are_kept_the_longest() -> None:
    made = Tables()
    for number in range(45):
        made.range(chr(ord("A") + number % 26) * (1 + number // 26), 1000 * number, 1000 * number + 10 + number)
    found = find_phases(made.trace(), steps_at(0, 100_000))
    assert len(found) == 40
    assert found[-1].spans.total == 10 + 5


@pytest.mark.parametrize(("length", "whole"), [(4, 3), (5, 4)])
def test_a_last_step_of_less_than_a_twentieth_is_none(length: int, whole: int) -> None:
    made = Tables()
    for number in range(3):
        made.range("step", 100 * number, 100 * number + 100)
    made.range("step", 300, 300 + length)
    assert len(find_steps(made.trace(), PID)) == whole


@pytest.mark.parametrize(("between", "starts"), [(1, 4), (2, 3)])
def test_what_lies_between_ranges_belongs_to_a_step_from_a_hundredth_on(between: int, starts: int) -> None:
    """Of steps of 100 ns, as many as there are ranges where they touch (but for 1 ns), else one less."""
    made = Tables()
    for number in range(4):
        made.range("step", 100 * number, 100 * number + 100 - between)
    assert len(find_steps(made.trace(), PID)) == starts
