"""Times, rates and names of collectives, and the rank that the others wait for, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmtop.analysis.steps.device_timeline import DeviceTimeline, device_timelines
from llmtop.analysis.work.collectives import collective_times, exposed_pct, find_straggler, slower_phase
from llmtop.report.model import CollectiveTime, PhaseMean
from tests.support.tables import PID, Tables, only_timeline, steps_at

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def _row(*ops: dict[str, Any]) -> CollectiveTime:
    """The one collective of a device without steps, of these kernels."""
    made = Tables()
    for op in ops:
        made.op(**{"name": REDUCE, **op})
    (row,) = collective_times([only_timeline(made.trace(), steps_at(0))])
    return row


@pytest.mark.parametrize(
    ("name", "collective", "factor"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "AllReduce", 1.5),
        ("ncclDevKernel_AllGather_RING_LL", "AllGather", 0.75),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "ReduceScatter", 0.75),
        ("ncclDevKernel_Broadcast_RING_LL", "Broadcast", 1.0),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "Reduce", 1.0),
        ("ncclDevKernel_SendRecv", "SendRecv", 1.0),
    ],
)
def test_bus_bandwidth_of_four_ranks_has_the_factor_of_nccl_tests(
    name: str, collective: str, factor: float
) -> None:
    """nccl-tests, PERFORMANCE.md: 2 (n - 1) / n for all-reduce, (n - 1) / n for gathers, 1 for a broadcast."""
    row = _row({"name": name, "start": 0, "end": 1000, "bytes": 8000, "ranks": 4})
    assert (row.name, row.ranks, row.message_bytes) == (collective, 4, 8000.0)
    assert row.algorithm_gb_per_s == pytest.approx(8.0)
    assert row.bus_gb_per_s == pytest.approx(8.0 * factor)
    assert row.fastest_bus_gb_per_s == pytest.approx(8.0 * factor)


def test_the_fastest_rate_is_of_messages_of_a_tenth_of_the_largest_and_more() -> None:
    row = _row(
        {"start": 0, "end": 1000, "bytes": 10_000, "ranks": 2},  # 10 bytes a ns
        {"start": 2000, "end": 2050, "bytes": 1000, "ranks": 2},  # 20, of exactly a tenth
        {"start": 3000, "end": 3010, "bytes": 999, "ranks": 2},  # 99.9, too small
    )
    assert row.fastest_bus_gb_per_s == pytest.approx(20.0)
    assert row.message_bytes == pytest.approx((10_000 + 1000 + 999) / 3)
    assert row.algorithm_gb_per_s == pytest.approx((10_000 + 1000 + 999) / (1000 + 50 + 10))


def test_groups_of_different_sizes_have_no_number_of_ranks_and_each_its_factor() -> None:
    row = _row(
        {"start": 0, "end": 100, "bytes": 100, "ranks": 2}, {"start": 200, "end": 300, "bytes": 100, "ranks": 4}
    )
    assert row.ranks is None
    assert row.bus_gb_per_s == pytest.approx((100 * 1.0 + 100 * 1.5) / 200)


@pytest.mark.parametrize(
    "unknown", [{"bytes": 0, "ranks": 4}, {"bytes": 8000, "ranks": 0}, {"bytes": 8000, "ranks": 1}]
)
def test_kernels_whose_size_or_group_is_unknown_are_in_no_rate(unknown: dict[str, int]) -> None:
    assert _row({"start": 0, "end": 10, **unknown}).algorithm_gb_per_s is None
    known = {"start": 100, "end": 200, "bytes": 300, "ranks": 2}
    row = _row({"start": 0, "end": 10, **unknown}, known)
    assert (row.message_bytes, row.algorithm_gb_per_s, row.ranks) == (300.0, 3.0, 2)


def test_a_collective_that_took_no_time_is_in_no_rate() -> None:
    row = _row(
        {"start": 50, "end": 50, "bytes": 9000, "ranks": 2}, {"start": 100, "end": 200, "bytes": 300, "ranks": 2}
    )
    assert row.algorithm_gb_per_s == 3.0


def _three_steps() -> DeviceTimeline:
    """Three steps of 1000 ns. Each has a kernel of 800 ns and 100, 200 and 300 ns of NCCL; 50 ns of it are beside
    the kernel."""
    made = Tables()
    for step in range(3):
        at = step * 1000
        made.launched(2 * step, at, at, at + 600)
        made.call("cudaLaunchKernel", at + 10, at + 15, correlation=2 * step + 1)
        made.op(at + 550, at + 650 + 100 * step, REDUCE, correlation=2 * step + 1, stream=9)
    made.launched(99, 3000, 3000, 3010)
    return only_timeline(made.trace(), steps_at(0, 1000, 2000, 3000))


def test_times_of_a_collective_are_means_over_whole_steps() -> None:
    timeline = _three_steps()
    assert timeline.counted == 3
    (row,) = collective_times([timeline])
    assert (row.device, row.pid, row.name) == (0, PID, "AllReduce")
    assert row.count_per_step == 1.0
    assert row.ms_per_step == pytest.approx((100 + 200 + 300) / 3 / 1e6)
    assert row.ms_deviation == pytest.approx((2 / 3 * 100**2) ** 0.5 / 1e6)
    assert row.exposed_ms_per_step == pytest.approx((50 + 150 + 250) / 3 / 1e6)
    assert row.share_pct == pytest.approx(100 * 600 / 3000)
    assert row.exposed_pct == pytest.approx(100 * 450 / 3000)
    assert exposed_pct(timeline) == pytest.approx(15.0)


def test_a_collective_belongs_to_the_window_by_its_start() -> None:
    """The first step begins at 1000: what starts there counts, what starts before or at the end does not."""
    made = Tables()
    for number, at in enumerate((900, 1000, 1500, 2000)):
        made.call("cudaLaunchKernel", at, at + 1, correlation=number)
        made.op(at, at + 10, REDUCE, correlation=number)
    (row,) = collective_times([only_timeline(made.trace(), steps_at(1000, 1500, 2000))])
    assert row.count_per_step == 1.0
    assert row.ms_per_step == pytest.approx(10 / 1e6)


def test_without_steps_there_is_no_figure_per_step() -> None:
    row = _row({"start": 0, "end": 10})
    assert (row.count_per_step, row.ms_deviation) == (None, None)
    assert row.share_pct == pytest.approx(100.0)


def _named(operator: str | None, kernel: str = SEND, *, others: bool = True) -> list[str]:
    """Names of collectives of a kernel that this operator launched, beside one that no operator did."""
    made = Tables()
    if operator is not None:
        made.host(operator, 90, 120)
    made.call("cudaLaunchKernel", 100, 105, correlation=1)
    made.op(110, 160, kernel, correlation=1)
    if others:
        made.op(200, 260, "ncclDevKernel_AllGather_RING_LL")
    return [row.name for row in collective_times([only_timeline(made.trace(), steps_at(0))])]


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("nccl:all_to_all", "AllToAll"),
        ("c10d::alltoall_base_", "AllToAll"),
        ("_c10d_functional::all_to_all_single", "AllToAll"),
        ("aten::all_to_all", "SendRecv"),  # of no backend of PyTorch
        (None, "SendRecv"),
    ],
)
def test_a_kernel_without_a_collective_s_name_has_that_of_its_operator(operator: str | None, name: str) -> None:
    assert _named(operator) == sorted(["AllGather", name])


def test_the_name_that_the_file_gives_comes_before_the_kernel_s() -> None:
    made = Tables()
    made.op(0, 10, SEND, collective="all_to_all")
    made.op(20, 30, SEND)
    found = collective_times([only_timeline(made.trace(), steps_at(0))])
    assert [row.name for row in found] == ["AllToAll", "SendRecv"]


def _rank(pid: int, exposed: int) -> DeviceTimeline:
    """A rank with two steps of 1000 ns. `exposed` ns of each are exposed NCCL; 0 means no NCCL."""
    made = Tables()
    for step in range(2):
        at = 1000 * step
        made.launched(2 * step, at, at, at + 1000 - exposed)
        if exposed:
            made.call("cudaLaunchKernel", at + 6, at + 7, correlation=2 * step + 1)
            made.op(at + 1000 - exposed, at + 1000, REDUCE, correlation=2 * step + 1)
    made.launched(9, 2000, 2000, 2001)
    trace = made.trace()
    (found,) = device_timelines(trace, {PID: steps_at(0, 1000, 2000)})
    assert found.counted == 2
    return replace(found, process=pid)


@pytest.mark.parametrize(
    ("exposed", "straggler"),
    [
        ((50, 100), (1, 2)),  # five points apart
        ((50, 99), None),
        ((100, 149), None),
        ((100, 150), (1, 2)),  # one and a half times
        ((101, 151), None),  # five points, but less than that
        ((150, 100), (2, 1)),
        ((160, 100), (2, 1)),
        ((200, 100, 300), (2, 3)),
        ((0, 100), None),
        ((0, 100, 200), (2, 3)),
        ((100,), None),
    ],
)
def test_the_straggler_waits_at_least_five_points_and_a_third_less(
    exposed: tuple[int, ...], straggler: tuple[int, int] | None
) -> None:
    found = find_straggler([_rank(pid, ns) for pid, ns in enumerate(exposed, start=1)])
    assert (found and (found.culprit.process, found.waiting.process)) == straggler
    if found is not None:
        assert found.culprit_pct == pytest.approx(exposed[found.culprit.process - 1] / 10)
        assert found.waiting_pct == pytest.approx(exposed[found.waiting.process - 1] / 10)


def _phase(name: str, pid: int, host: float, gpu: float | None) -> PhaseMean:
    return PhaseMean(
        name=name,
        pid=pid,
        host_seconds=host,
        gpu_seconds=gpu,
        share_pct=0.0,
        gpu_share_pct=None,
        gpu_idle_seconds=None,
        count_per_step=1.0,
        device=0,
    )


@pytest.mark.parametrize(
    ("mine", "other", "apart", "expected"),
    [
        ((0.1, 0.040), (0.1, 0.010), 0.090, "forward: 40.0 ms against 10.0 ms on the device"),
        ((0.1, 0.040), (0.1, 0.011), 0.090, None),  # less than a third of the wait
        ((0.1, 0.010), (0.05, 0.010), 0.090, "forward: 100 ms against 50.0 ms on the host"),
        ((0.1, None), (0.05, None), 0.150, "forward: 100 ms against 50.0 ms on the host"),
        ((0.05, None), (0.1, None), 0.090, None),
    ],
)
def test_the_slower_phase_explains_a_third_of_the_wait(
    mine: tuple[float, float | None],
    other: tuple[float, float | None],
    apart: float,
    expected: str | None,
) -> None:
    phases = [_phase("forward", 1, *mine), _phase("forward", 2, *other), _phase("loss", 1, 9.0, 9.0)]
    assert slower_phase(phases, _rank(1, 0), _rank(2, 0), apart) == expected


def test_of_a_phase_and_the_one_around_it_the_inner_one_is_slower() -> None:
    phases = [
        *(_phase(name, 1, 0.1, 0.05) for name in ("step", "step/forward")),
        *(_phase(name, 2, 0.1, 0.01) for name in ("step", "step/forward")),
    ]
    found = slower_phase(phases, _rank(1, 0), _rank(2, 0), 0.04)
    assert found is not None
    assert found.startswith("step/forward:")


def test_ranks_without_a_common_phase_have_no_slower_one() -> None:
    assert slower_phase([], _rank(1, 0), _rank(2, 0), 0.01) is None
