"""Kernels by name, copies by direction, and memory in use, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmtop.analysis.steps.work_by_step import WorkSteps
from llmtop.analysis.work.copies import copy_times
from llmtop.analysis.work.hlo_operations import NO_OPERATION, hlo_parts, hlo_passes, hlo_times
from llmtop.analysis.work.kernels import kernel_times, seconds_by_kind
from llmtop.analysis.work.memory_use import memory_use
from llmtop.report.model import KernelTime
from llmtop.trace import model
from tests.support.tables import PID, Tables, only_timeline, steps_at

ADD = "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3>>()"
MUL = "at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, std::array<char*, 2>>()"
SHORT = "vectorized_elementwise_kernel"


def _kernels(made: Tables) -> tuple[KernelTime, ...]:
    trace = made.trace()
    return kernel_times(trace, WorkSteps.from_timelines([], len(trace.ops)))


def test_kernels_of_one_name_and_functor_are_one_row() -> None:
    made = Tables()
    for start, took, short, full in (
        (0, 100, SHORT, ADD),
        (200, 300, SHORT, ADD.replace("float", "c10::BFloat16")),
        (600, 50, SHORT, MUL),
        (700, 60, SHORT, MUL),
        (800, 90, "ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        (900, 500, "", ""),
    ):
        kind = model.KERNEL if short else model.MEMCPY
        made.op(start, start + took, short, full_name=full, kind=kind)
    rows = _kernels(made)
    assert [(row.short_name, row.functor, row.kind, row.count) for row in rows] == [
        (SHORT, "CUDAFunctor_add<BFloat16>", "elementwise", 1),
        (SHORT, "MulFunctor<float>", "elementwise", 2),
        (SHORT, "CUDAFunctor_add<float>", "elementwise", 1),
        ("ampere_sgemm_128x64_nn", "", "GEMM", 1),
    ]
    two = rows[1]
    assert two.seconds == pytest.approx(110e-9)
    assert two.share_pct == pytest.approx(100 * 110 / 600)
    assert (two.mean_us, two.min_us, two.max_us) == (pytest.approx(0.055), 0.05, 0.06)
    assert [(one.name, one.count, one.seconds) for one in two.variants] == [(MUL, 2, pytest.approx(110e-9))]
    assert two.per_step == ()
    assert sum(row.share_pct for row in rows) == pytest.approx(100)


def test_variants_of_a_name_are_in_order_of_their_time() -> None:
    made = Tables()
    for start, took, full in ((0, 10, "k<1>()"), (50, 30, "k<2>()"), (90, 15, "k<1>()")):
        made.op(start, start + took, "k", full_name=full)
    (row,) = _kernels(made)
    assert [(one.name, one.count, one.seconds) for one in row.variants] == [
        ("k<2>()", 1, pytest.approx(30e-9)),
        ("k<1>()", 2, pytest.approx(25e-9)),
    ]


@pytest.mark.parametrize(("of_mm", "operator"), [(51, "aten::mm"), (50, ""), (30, "")])
def test_a_kernel_is_of_the_operator_that_launched_more_than_half_of_its_time(of_mm: int, operator: str) -> None:
    """The rest is launched in part by another operator, in part by none."""
    made = Tables()
    made.host("aten::mm", 0, 100)
    made.host("aten::mul", 100, 200)
    for number, (at, took) in enumerate(((10, of_mm), (110, 20), (210, 80 - of_mm))):
        made.call("cudaLaunchKernel", at, at + 5, correlation=number)
        made.op(1000 + 100 * number, 1000 + 100 * number + took, "k", correlation=number)
    made.op(2000, 2020, "other")
    found = {row.name: row.operator for row in _kernels(made)}
    assert found == {"k": operator, "other": ""}


def test_time_by_kind_is_of_the_variants_and_most_first() -> None:
    made = Tables()
    made.op(0, 10, "ampere_sgemm_128x64_nn")
    made.op(20, 50, SHORT, full_name=ADD)
    made.op(60, 65, "ampere_sgemm_64x64_nn")
    found = seconds_by_kind(_kernels(made))
    assert list(found.items()) == [("elementwise", pytest.approx(30e-9)), ("GEMM", pytest.approx(15e-9))]
    assert _kernels(Tables()) == ()


def test_copies_are_by_direction_and_memories() -> None:
    made = Tables()

    def copy(start: int, end: int, size: int, direction: int, source: int, target: int) -> None:
        made.op(
            start,
            end,
            "",
            kind=model.MEMCPY,
            bytes=size,
            direction=direction,
            source_memory=source,
            target_memory=target,
        )

    copy(0, 100, 500, model.HOST_TO_DEVICE, model.PAGEABLE, model.DEVICE)
    copy(50, 150, 700, model.HOST_TO_DEVICE, model.PAGEABLE, model.DEVICE)
    copy(200, 240, 90, model.HOST_TO_DEVICE, model.PINNED, model.DEVICE)
    copy(300, 600, 0, model.DEVICE_TO_DEVICE, model.DEVICE, model.DEVICE)
    copy(700, 710, 8, 12, model.MEMORY_UNKNOWN, 9)
    copy(720, 720, 3, 99, 4, 3)
    made.op(800, 830, "", kind=model.MEMSET, bytes=64)
    made.op(900, 990)
    found = copy_times(made.trace())
    rows = [(row.direction, row.source_memory, row.target_memory, row.count, row.bytes) for row in found]
    assert rows == [
        ("device-to-device", "device", "device", 1, 0),
        ("host-to-device", "pageable", "device", 2, 1200),
        ("host-to-device", "pinned", "device", 1, 90),
        ("memset", "", "device", 1, 64),
        ("unified device-to-host", "unknown", "unknown", 1, 8),
        ("unknown", "managed", "array", 1, 3),
    ]
    assert [row.seconds for row in found] == pytest.approx([300e-9, 200e-9, 40e-9, 30e-9, 10e-9, 0])
    # Two copies at once took 150 ns together.
    assert [row.gb_per_s for row in found] == [None, 1200 / 150, 90 / 40, 64 / 30, 8 / 10, None]
    assert [row.largest_bytes for row in found] == [0, 700, 90, 64, 8, 3]


def _allocations(*rows: dict[str, Any], made: Tables | None = None) -> model.Trace:
    made = made or Tables()
    made.call("cudaMalloc", 0, 1)
    trace = made.trace()
    filled = [
        {"end": row["start"], "process": PID, "thread": PID, "level": -1, "reserved": -1, "memory": 2, **row}
        for row in rows
    ]
    trace.memory = model.build(
        model.MemoryEvents, {key: [row.get(key, 0) for row in filled] for key in set().union(*filled)}
    )
    return trace


def test_memory_counts_from_the_start_where_the_file_gives_no_level() -> None:
    trace = _allocations(
        {"start": 100, "bytes": 50},
        {"start": 200, "bytes": 30},
        {"start": 300, "bytes": -60},
        {"start": 400, "bytes": 10},
    )
    (use,), operators = memory_use(trace, {})
    assert (use.pid, use.device, use.memory, use.absolute) == (PID, 0, "device", False)
    assert (use.start_bytes, use.end_bytes, use.peak_bytes) == (0, 30, 80)
    assert use.peak_seconds == pytest.approx(200e-9)
    assert (use.allocations, use.releases, use.largest_bytes, use.largest_by) == (3, 1, 50, "")
    assert (use.reserved_bytes, use.growth_bytes_per_step, use.step_peak_bytes) == (None, None, ())
    assert operators == ()


def test_levels_of_the_allocator_are_absolute() -> None:
    trace = _allocations(
        {"start": 100, "bytes": 50, "level": 1050, "reserved": 0, "device": model.HOST_MEMORY, "memory": 7},
        {"start": 200, "bytes": -30, "level": 1020, "reserved": 4000, "device": model.HOST_MEMORY, "memory": 7},
    )
    (use,), _ = memory_use(trace, {})
    assert (use.device, use.memory, use.absolute) == (None, "", True)
    assert (use.start_bytes, use.end_bytes, use.peak_bytes, use.reserved_bytes) == (1000, 1020, 1050, 4000)


def test_the_peak_may_be_before_the_first_event() -> None:
    (use,), _ = memory_use(_allocations({"start": 100, "bytes": -50}, {"start": 200, "bytes": 20}), {})
    assert (use.start_bytes, use.end_bytes, use.peak_bytes) == (0, -30, 0)
    assert (use.peak_seconds, use.largest_bytes) == (pytest.approx(100e-9), 20)
    (less,), _ = memory_use(_allocations({"start": 100, "bytes": -50}), {})
    assert (less.largest_bytes, less.allocations, less.releases) == (0, 0, 1)


def test_each_step_has_its_peak_and_memory_grows_from_the_first_to_the_last() -> None:
    """Steps from 100 to 200, 300 and 400; what happens at an edge is of the step that ends there."""
    changes = ((50, 10), (100, 5), (150, 40), (180, -30), (200, 2), (250, 100), (260, -90), (400, 1), (450, 900))
    trace = _allocations(*({"start": at, "bytes": size} for at, size in changes))
    (use,), _ = memory_use(trace, {PID: steps_at(100, 200, 300, 400)})
    # Levels after each: 10, 15, 55, 25, 27, 127, 37, 38, 938.
    assert use.step_peak_bytes == (55, 127, 38)
    assert use.growth_bytes_per_step == pytest.approx((38 - 15) / 3)
    (use,), _ = memory_use(trace, {PID: steps_at(100, 200)})
    assert (use.step_peak_bytes, use.growth_bytes_per_step) == ((55,), None)


def test_who_asked_is_the_innermost_operator_else_the_place_else_the_range() -> None:
    made = Tables()
    made.host("aten::linear", 100, 200)
    made.host("aten::empty", 120, 150)
    made.host("model.py(7): forward", 90, 600, kind=model.PYTHON)
    made.range("step", 0, 900)
    made.range("optimizer", 500, 600)
    made.range("open", 650, int(model.OPEN))
    made.op(0, 1, "train.py:5")
    place = made.trace().names.index("train.py:5")
    trace = _allocations(
        {"start": 130, "bytes": 10, "place": place},
        {"start": 130, "bytes": 30},
        {"start": 140, "bytes": -5},
        {"start": 160, "bytes": 7},
        {"start": 300, "bytes": 6, "place": place},
        {"start": 550, "bytes": 5},
        {"start": 700, "bytes": 4},
        {"start": 950, "bytes": 3},
        {"start": 750, "bytes": -2},
        made=made,
    )
    (use,), operators = memory_use(trace, {})
    assert use.largest_by == "aten::empty"
    assert [(one.name, one.allocations, one.bytes, one.net_bytes, one.largest_bytes) for one in operators] == [
        ("aten::empty", 2, 40, 35, 30),
        ("aten::linear", 1, 7, 7, 7),
        ("train.py:5", 1, 6, 6, 6),
        ("optimizer", 1, 5, 5, 5),
        ("step", 1, 4, 2, 4),
    ]
    assert {(one.pid, one.device) for one in operators} == {(PID, 0)}


def test_each_device_and_memory_has_its_own_use_the_largest_first() -> None:
    trace = _allocations(
        {"start": 1, "bytes": 10},
        {"start": 2, "bytes": 40, "device": 1},
        {"start": 3, "bytes": 21, "memory": model.PINNED, "device": model.HOST_MEMORY},
        {"start": 4, "bytes": 10},
    )
    uses, _ = memory_use(trace, {})
    assert [(one.device, one.memory, one.peak_bytes) for one in uses] == [
        (1, "device", 40),
        (None, "pinned", 21),
        (0, "device", 20),
    ]
    assert memory_use(Tables().trace(), {}) == ((), ())


def _operations() -> Tables:
    made = Tables()

    def operation(start: int, took: int, name: str, hlo: str, **columns: str) -> None:
        made.op(start, start + took, name, hlo=hlo, **columns)

    step = {"hlo_module": "jit_step", "hlo_category": "loop fusion"}
    operation(0, 100, "fusion_3", "fusion.3", **step, hlo_source="jit(step)/jvp(mlp)/add")
    operation(1000, 140, "fusion_3", "fusion.3", **step, hlo_source="jit(step)/jvp(mlp)/add")
    operation(1200, 30, "fusion_3_helper", "fusion.3", **step, hlo_source="jit(step)/jvp(mlp)/add")
    operation(1300, 50, "fusion_3", "fusion.3", hlo_module="jit_eval", hlo_category="loop fusion")
    dot = {"hlo_module": "jit_step", "hlo_category": "custom-call"}
    operation(1400, 400, "gemm", "dot.1", **dot, hlo_source="jit(step)/transpose(jvp(mlp))/dot_general")
    operation(1900, 80, "memcpy", "", hlo_category="loop fusion")
    return made


def test_device_time_by_operation_of_xla() -> None:
    trace = _operations().trace()
    steps = WorkSteps.from_timelines([only_timeline(trace, steps_at(0))], len(trace.ops))
    found = hlo_times(trace, steps)
    assert [(row.name, row.is_operator, row.calls, row.module) for row in found] == [
        ("dot.1", True, 1, "jit_step"),
        ("fusion.3 of jit_step", True, 3, "jit_step"),
        (NO_OPERATION, False, 1, ""),
        ("fusion.3 of jit_eval", True, 1, "jit_eval"),
    ]
    row = found[1]
    assert (row.launches, row.source) == (3, "jit(step)/jvp(mlp)/add")
    assert row.seconds == pytest.approx(270e-9)
    assert row.share_pct == pytest.approx(100 * 270 / 800)
    assert row.mean_us == pytest.approx(0.09)
    assert [(one.name, one.calls, one.seconds) for one in row.kernels] == [
        ("fusion_3", 2, pytest.approx(240e-9)),
        ("fusion_3_helper", 1, pytest.approx(30e-9)),
    ]
    assert [row.source for row in found[2:]] == ["", ""]


def test_device_time_by_kind_of_operation_and_pass() -> None:
    trace = _operations().trace()
    assert [(one.name, one.seconds, one.share_pct) for one in hlo_parts(trace)] == [
        ("custom-call", pytest.approx(400e-9), pytest.approx(50.0)),
        ("loop fusion", pytest.approx(320e-9), pytest.approx(40.0)),
        (NO_OPERATION, pytest.approx(80e-9), pytest.approx(10.0)),
    ]
    passes = {name: np.flatnonzero(chosen).tolist() for name, chosen in hlo_passes(trace).items()}
    assert passes == {"forward": [0, 1, 2], "backward": [4], "other": [3, 5]}


def test_without_names_of_operations_there_are_none() -> None:
    made = Tables()
    made.op(0, 10)
    trace = made.trace()
    steps = WorkSteps.from_timelines([], 1)
    assert (hlo_times(trace, steps), hlo_parts(trace), hlo_passes(trace)) == ((), (), {})
    made.op(20, 30, hlo="dot.1", hlo_source="jit(step)/jvp(mlp)/dot_general")
    assert hlo_passes(made.trace()) == {}, "nothing runs backward"
