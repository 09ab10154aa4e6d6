"""Where steps lie on the device, what ran when, and which threads launched it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from llmtop.analysis.steps.device_timeline import device_timelines
from llmtop.analysis.steps.work_by_step import WorkSteps
from llmtop.trace import model
from llmtop.trace.intervals import Spans
from tests.support.tables import PID, Tables, only_timeline, steps_at

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def _pairs(spans: Spans) -> list[tuple[int, int]]:
    return list(zip(spans.starts.tolist(), spans.ends.tolist(), strict=True))


def _edges(made: Tables, *edges: int, **fields: bool) -> tuple[list[int], int, tuple[int, int]]:
    found = only_timeline(made.trace(), steps_at(*edges, **fields))
    return found.bounds.tolist(), found.counted, (found.launched_from, found.launched_until)


def _launches(*rows: tuple[int, int, int]) -> Tables:
    """Kernels as (launched, start, end)."""
    made = Tables()
    for number, row in enumerate(rows):
        made.launched(number, *row)
    return made


def test_a_step_begins_on_the_device_with_the_first_work_that_it_launched() -> None:
    made = _launches((0, 50, 60), (90, 70, 80), (100, 150, 160), (190, 161, 170), (200, 250, 260))
    assert _edges(made, 0, 100, 200) == ([50, 150, 250], 2, (0, 200))


def test_a_step_without_device_work_counts_with_the_one_before() -> None:
    made = _launches((10, 50, 60), (210, 250, 260), (310, 350, 360))
    assert _edges(made, 0, 100, 200, 300) == ([50, 250, 350], 2, (0, 300))


def test_what_was_launched_exactly_at_an_edge_is_of_the_step_that_begins_there() -> None:
    made = _launches((0, 5, 60), (99, 105, 160), (100, 205, 260), (200, 305, 310))
    assert _edges(made, 0, 100, 200) == ([5, 205, 305], 2, (0, 200))


def test_the_last_step_of_a_closed_run_ends_with_the_device_s_work() -> None:
    rows = ((0, 50, 60), (100, 150, 190))
    assert _edges(_launches(*rows), 0, 100, 200) == ([50, 150], 1, (0, 100))
    assert _edges(_launches(*rows), 0, 100, 200, closed=True) == ([50, 150, 190], 2, (0, 200))
    # Where something was launched behind it, that ends it.
    assert _edges(_launches(*rows, (200, 250, 290)), 0, 100, 200, closed=True) == ([50, 150, 250], 2, (0, 200))


def test_one_step_has_the_host_s_edges() -> None:
    assert _edges(_launches((10, 50, 190)), 0, 200) == ([0, 200], 1, (0, 200))
    # Nothing was launched within, and it covers less than half of the device's work.
    assert _edges(_launches((250, 190, 1000)), 0, 200) == ([190, 1000], 0, (190, 1000))


@pytest.mark.parametrize(("end", "counted"), [(500, 1), (499, 0), (2000, 1), (100, 0)])
def test_steps_without_a_known_launch_must_cover_half_of_the_device_s_time(end: int, counted: int) -> None:
    """The device works from 100 to 900: half of that is 400."""
    made = Tables()
    made.op(100, 300)
    made.op(800, 900)
    bounds, found, _ = _edges(made, 0, end)
    assert found == counted
    assert bounds == ([0, end] if counted else [100, 900])


def test_without_steps_the_bounds_are_those_of_all_activity() -> None:
    made = _launches((0, 50, 500), (10, 60, 90))
    assert _edges(made, 0) == ([50, 500], 0, (50, 500))


@pytest.mark.parametrize(
    ("lengths", "slow"),
    [
        ((116, 100, 100), True),
        ((23, 20, 20), False),  # not more than 1.15 times the median
        ((200, 100, 200), False),  # no longer than another
        ((201, 100, 200, 100), True),
        ((200, 100), False),  # too few to tell
    ],
)
def test_a_first_step_that_is_much_longer_is_left_out(lengths: tuple[int, ...], slow: bool) -> None:
    edges = [0, *np.cumsum(lengths).tolist()]
    made = _launches(*((at, at + 1, at + 50) for at in edges))
    found = only_timeline(made.trace(), steps_at(*edges))
    assert (found.slow_first, found.slow_first_ns) == (slow, lengths[0] if slow else 0)
    assert found.counted == len(lengths) - slow
    assert found.begin_ns == (lengths[0] + 1 if slow else 1)
    assert found.length == sum(lengths[slow:])
    assert found.launched_from == edges[slow]
    cut = only_timeline(made.trace(), steps_at(*edges, cut_before=1))
    assert not cut.slow_first, "a step before it was left out already"


def _mixed() -> Tables:
    made = Tables()
    made.op(0, 100)
    made.op(50, 150, REDUCE, stream=9)
    made.op(200, 300, REDUCE, stream=9)
    made.op(250, 260, "", kind=model.MEMSET)
    copy = {"kind": model.MEMCPY, "target_memory": model.DEVICE}
    made.op(400, 500, "", **copy, direction=model.HOST_TO_DEVICE, source_memory=model.PAGEABLE)
    made.op(450, 550, "", **copy, direction=model.DEVICE_TO_DEVICE, source_memory=model.DEVICE)
    made.op(600, 700, "", **copy, direction=model.HOST_TO_DEVICE, source_memory=model.PINNED)
    made.op(650, 660)
    made.op(
        800,
        900,
        "",
        kind=model.MEMCPY,
        direction=model.DEVICE_TO_HOST,
        source_memory=model.DEVICE,
        target_memory=model.PAGEABLE,
    )
    made.op(1000, 1100, "", kind=model.MEMCPY, direction=model.DEVICE_TO_DEVICE, target_memory=model.PAGEABLE)
    return made


def test_sets_of_instants_are_those_of_their_kinds() -> None:
    found = only_timeline(_mixed().trace(), steps_at(0))
    assert _pairs(found.busy) == [
        *((0, 150), (200, 300), (400, 550), (600, 700), (800, 900), (1000, 1100)),
    ]
    assert _pairs(found.kernels) == [(0, 150), (200, 300), (650, 660)]
    assert _pairs(found.nccl) == [(50, 150), (200, 300)]
    assert _pairs(found.exposed_nccl) == [(100, 150), (200, 250), (260, 300)]
    assert _pairs(found.host_copies) == [(400, 500), (600, 700), (800, 900)]
    assert _pairs(found.only_host_copies) == [(400, 450), (600, 650), (660, 700), (800, 900)]
    assert _pairs(found.pageable_copies) == [(400, 500), (800, 900)]
    assert _pairs(found.copies) == [(400, 550), (600, 700), (800, 900), (1000, 1100)]
    assert _pairs(found.idle) == [(150, 200), (300, 400), (550, 600), (700, 800), (900, 1000)]
    assert found.ns_in_steps(found.busy) == found.busy.total == 700


def test_shares_are_of_the_whole_steps() -> None:
    made = _launches((0, 0, 100), (100, 200, 250), (200, 400, 600))
    found = only_timeline(made.trace(), steps_at(0, 100, 200))
    assert (found.begin_ns, found.end_ns, found.length) == (0, 400, 400)
    assert found.ns_in_steps(found.busy) == 150
    assert found.share(150) == pytest.approx(37.5)
    assert found.per_step_ms(150) == pytest.approx(75e-6)


@pytest.mark.parametrize(("graph", "known"), [(99, True), (100, False), (101, False)])
def test_kernels_are_known_where_they_take_longer_than_whole_graphs(graph: int, known: bool) -> None:
    made = Tables()
    made.op(0, 100)
    made.op(200, 200 + graph, "", kind=model.GRAPH)
    found = only_timeline(made.trace(), steps_at(0))
    assert (found.graphs, found.kernels_known) == (1, known)


def test_kernels_are_known_without_any_graph() -> None:
    made = Tables()
    made.op(0, 100, "", kind=model.MEMCPY)
    found = only_timeline(made.trace(), steps_at(0))
    assert (found.graphs, found.kernels_known) == (0, True)


@pytest.mark.parametrize(("other", "kept"), [(5, [PID, 7]), (4, [PID])])
def test_a_thread_with_a_twentieth_of_the_kernels_launches_the_step(other: int, kept: list[int]) -> None:
    """Of 100 kernels; NCCL's and copies do not count."""
    made = Tables()
    for number in range(100):
        thread = 7 if number < other else PID
        made.call("cudaLaunchKernel", number, number + 1, correlation=number, thread=thread)
        made.op(number, number + 1, correlation=number)
    for number, (name, kind) in enumerate([(REDUCE, model.KERNEL), ("", model.MEMCPY)] * 50, start=100):
        made.call("cudaLaunchKernel", number, number + 1, correlation=number, thread=8)
        made.op(number, number + 1, name, kind=kind, correlation=number)
    found = only_timeline(made.trace(), steps_at(0))
    assert found.launchers.tolist() == sorted(kept)


def test_the_thread_of_the_steps_launches_them_whatever_it_launched() -> None:
    made = Tables()
    made.call("cudaLaunchKernel", 0, 1, correlation=1, thread=7)
    made.op(0, 1, REDUCE, correlation=1)
    assert only_timeline(made.trace(), steps_at(0)).launchers.tolist() == [7, PID]


def test_timelines_are_in_order_of_gpu_and_process_and_their_work_of_its_start() -> None:
    made = Tables()
    for pid, device, start in ((9, 1, 30), (8, 0, 20), (9, 0, 50), (9, 1, 10), (8, 0, 5), (7, 1, 1)):
        made.op(start, start + 2, process=pid, device=device)
    found = device_timelines(made.trace(), {pid: steps_at(0, process=pid) for pid in (7, 8, 9)})
    assert [(one.device, one.process, one.alone) for one in found] == [
        (0, 8, True),
        (0, 9, False),
        (1, 7, True),
        (1, 9, False),
    ]
    assert [one.ops.start.tolist() for one in found] == [[5, 20], [50], [1], [10, 30]]


def test_files_of_one_device_each_are_sorted_process_by_process() -> None:
    made = Tables()
    for pid, start in ((9, 30), (9, 10), (8, 20), (8, 5)):
        made.op(start, start + 2, process=pid)
    found = device_timelines(made.trace(), {pid: steps_at(0, process=pid) for pid in (8, 9)})
    assert [(one.process, one.ops.start.tolist()) for one in found] == [(8, [5, 20]), (9, [10, 30])]


def test_device_time_by_step_has_the_mean_and_deviation_over_all_whole_steps() -> None:
    """Steps of 100; a kernel "a" takes 10, then 30, then none, and "b" 5 in each; one of each before and after."""
    made = Tables()
    rows = [
        ("a", 0, 99),
        *[("b", at, 5) for at in (100, 200, 300)],
        ("a", 110, 10),
        ("a", 210, 20),
        ("a", 250, 10),
    ]
    rows += [("a", 400, 50), ("b", 401, 3)]
    for number, (name, at, took) in enumerate(rows):
        made.call("cudaLaunchKernel", at, at + 1, correlation=number)
        made.op(at, at + took, name, correlation=number)
    trace = made.trace()
    steps = WorkSteps.from_timelines([only_timeline(trace, steps_at(100, 200, 300, 400))], len(trace.ops))
    assert steps.steps.tolist() == [3]
    assert steps.number.tolist() == [-1, 0, 1, 2, 0, 1, 1, -1, -1]
    group = np.array([0 if name == "a" else 1 for name, _, _ in rows], dtype=np.int32)
    took = trace.ops.end - trace.ops.start
    found = steps.per_step(np.arange(len(rows), dtype=np.int32), group, took)
    ((a,), (b,)) = found[0], found[1]
    assert (a.count, b.count) == (1.0, 1.0)
    assert a.seconds == pytest.approx(40e-9 / 3)
    assert a.deviation == pytest.approx(float(np.std([10, 30, 0])) * 1e-9)
    assert (b.seconds, b.deviation) == (pytest.approx(5e-9), pytest.approx(0.0, abs=1e-15))


def test_steps_are_counted_through_all_timelines_and_each_has_its_own_mean() -> None:
    made = Tables()
    for pid, period in ((1, 100), (2, 50)):
        for number, at in enumerate(range(0, 201, period)):
            made.call("cudaLaunchKernel", at, at + 1, correlation=number, process=pid)
            made.op(at, at + 10 * pid, "k", correlation=number, process=pid, device=pid)
    trace = made.trace()
    own = {
        1: steps_at(0, 100, 200, process=1),
        2: steps_at(0, 50, 100, 150, 200, process=2),
    }
    timelines = device_timelines(trace, own)
    assert [one.counted for one in timelines] == [2, 4]
    steps = WorkSteps.from_timelines(timelines, len(trace.ops))
    assert steps.number.tolist() == [0, 1, -1, 2, 3, 4, 5, -1]
    assert steps.place.tolist() == [0, 0, 1, 1, 1, 1]
    rows = np.arange(len(trace.ops), dtype=np.int32)
    found = steps.per_step(rows, np.zeros(len(rows), dtype=np.int32), trace.ops.end - trace.ops.start)
    assert [(one.place, one.count) for one in found[0]] == [(0, 1.0), (1, 1.0)]
    assert [one.seconds for one in found[0]] == pytest.approx([10e-9, 20e-9])
    outside = np.array([2, 7], dtype=np.int32)
    assert steps.per_step(outside, np.zeros(2, dtype=np.int32), np.array([5, 5])) == {}
    assert steps.per_step(outside[:0], outside[:0], np.empty(0, dtype=np.int64)) == {}


def test_edges_of_steps_ascend() -> None:
    """The device runs what two steps launched in the other order."""
    found = only_timeline(
        _launches((0, 50, 60), (100, 300, 310), (200, 200, 210), (300, 400, 410)).trace(),
        steps_at(0, 100, 200, 300),
    )
    assert all(before < after for before, after in pairwise(found.bounds.tolist()))
    assert found.counted == len(found.bounds) - 1
