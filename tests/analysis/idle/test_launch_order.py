"""Where a hot kernel's launches are among those of its function's name, counted by hand."""

from __future__ import annotations

import pytest

from llmtop.analysis.idle.launch_order import with_launch_order
from llmtop.analysis.steps.device_timeline import device_timelines
from llmtop.report.model import KernelTime, LaunchOrder
from tests.support.tables import Tables, steps_at

ADD = "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3>>()"
MUL = "at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, std::array<char*, 2>>()"
SHORT = "vectorized_elementwise_kernel"


def _row(functor: str, short: str = SHORT, kind: str = "elementwise") -> KernelTime:
    return KernelTime(
        name=short,
        short_name=short,
        functor=functor,
        kind=kind,
        count=1,
        seconds=1.0,
        share_pct=1.0,
        mean_us=1.0,
        min_us=1.0,
        max_us=1.0,
        variants=(),
    )


def _order(row: KernelTime, *devices: list[tuple[str, int]], count: int = 2) -> LaunchOrder | None:
    """The order of a kernel in steps with these kernels each, as (full name, ns), one list a device."""
    made = Tables()
    for device, kernels in enumerate(devices):
        number = 1000 * device
        for step in range(count + 1):
            at = 10_000 * step
            for name, took in kernels if step < count else [("other_kernel", 5)]:
                made.call("cudaLaunchKernel", at, at + 1, correlation=number, process=device + 1)
                short = SHORT if "vectorized" in name else name
                made.op(
                    at, at + took, short, full_name=name, correlation=number, process=device + 1, device=device
                )
                number, at = number + 1, at + took + 1
    edges = range(0, 10_000 * (count + 1), 10_000)
    steps = {pid: steps_at(*edges, process=pid) for pid in range(1, len(devices) + 1)}
    (found,) = with_launch_order((row,), device_timelines(made.trace(), steps))
    return found.launches


def test_a_kernel_that_shares_its_name_is_found_within_the_longest_run_of_others() -> None:
    """In a step: add, three times multiply, add, once multiply. The next add is 4, then 2 launches on."""
    step = [(ADD, 100), (MUL, 100), (MUL, 100), (MUL, 100), (ADD, 100), (MUL, 100)]
    assert _order(_row("CUDAFunctor_add<float>"), step) == LaunchOrder(per_step=6, in_a_row=4, own_in_a_row=1)
    assert _order(_row("MulFunctor<float>"), step) == LaunchOrder(per_step=6, in_a_row=2, own_in_a_row=1)


def test_the_run_round_the_end_of_the_steps_counts_as_well() -> None:
    """Of six launches the second and the third are adds: from the third it is five to the next step's first."""
    step = [(MUL, 100), (ADD, 100), (ADD, 100), *[(MUL, 100)] * 3]
    found = _order(_row("CUDAFunctor_add<float>"), step, count=1)
    assert found == LaunchOrder(per_step=6, in_a_row=5, own_in_a_row=1)


def test_a_launch_of_less_than_half_of_the_mean_is_none_that_is_looked_for() -> None:
    """The adds take 100 and 300, on average 200: those of 100 count, those of 99 do not."""
    even = [(ADD, 100), (MUL, 10), (ADD, 300), (MUL, 10)]
    assert _order(_row("CUDAFunctor_add<float>"), even) == LaunchOrder(per_step=4, in_a_row=2, own_in_a_row=1)
    uneven = [(ADD, 99), (MUL, 10), (ADD, 300), (MUL, 10)]
    assert _order(_row("CUDAFunctor_add<float>"), uneven) == LaunchOrder(per_step=4, in_a_row=4, own_in_a_row=2)


def test_the_order_is_that_of_the_device_that_runs_it_longest() -> None:
    short, long = [(ADD, 100), (MUL, 5)], [(ADD, 150), (MUL, 5), (MUL, 5)]
    for devices in ((short, long), (long, short)):
        found = _order(_row("CUDAFunctor_add<float>"), *devices)
        assert found == LaunchOrder(per_step=3, in_a_row=3, own_in_a_row=1)


def test_a_kernel_that_is_in_no_step_or_communicates_has_no_order() -> None:
    assert _order(_row("NegFunctor"), [(ADD, 100)]) is None
    assert _order(_row("", "absent_kernel"), [(ADD, 100)]) is None
    assert _order(_row("CUDAFunctor_add<float>", kind="NCCL"), [(ADD, 100)]) is None
    assert _order(_row("CUDAFunctor_add<float>"), [(ADD, 100)]) == LaunchOrder(
        per_step=1, in_a_row=1, own_in_a_row=1
    )


@pytest.mark.parametrize(("before", "has_order"), [(19, True), (20, False)])
def test_the_hottest_twenty_have_an_order_and_those_that_communicate_do_not_count(
    before: int, has_order: bool
) -> None:
    made = Tables()
    for number in range(3):
        made.launched(number, 100 * number, 100 * number + 10, 100 * number + 50, "gemm_kernel")
    timelines = device_timelines(made.trace(), {100: steps_at(0, 100, 200)})
    rows = (
        *[_row("", "nccl_kernel", "NCCL")] * 3,
        *[_row("", "absent_kernel")] * before,
        _row("", "gemm_kernel", "GEMM"),
    )
    found = with_launch_order(rows, timelines)
    assert len(found) == len(rows)
    assert (found[-1].launches is not None) == has_order
