"""Offsets of clocks, windows of processes and rows that are there twice, on hand-made tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmtop.format import PIDS_APART
from llmtop.trace import model
from llmtop.trace.files.align import ClockOffset, clock_offset, collective_ends
from llmtop.trace.files.doubled import drop_doubled_events, without_copies
from llmtop.trace.files.merge import merge
from llmtop.trace.files.windows import (
    processes_apart,
    processes_of,
    renumber_correlations,
    without_unrecorded_time,
)
from llmtop.trace.sanitize import ABSENT
from tests.support.tables import PID, Tables

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
SEND, BROADCAST = "ncclDevKernel_SendRecv", "ncclDevKernel_Broadcast_RING_LL"
US = 1000


def _ranks(
    count: int, ahead: int, *, late: list[int] | None = None, missing: int = 0, sizes: list[int] | None = None
) -> tuple[model.Trace, model.Trace]:
    """Two ranks whose collectives end together, at uneven distances; the second one's clock is `ahead` ns.

    Args:
        count: collectives of the first.
        ahead: ns.
        late: by how much each end of the second is later, ns.
        missing: how many of the first ones the second has not.
        sizes: bytes of each message.
    """
    traces = []
    for rank in range(2):
        made = Tables()
        for number in range(count):
            if rank and number < missing:
                continue
            end = 10_000 * US * number + 300 * US * number * number
            moved = (ahead + (late[number] if late else 0)) * rank
            size = sizes[number] if sizes else 1 << (number % 5)
            made.op(end - 900 * US + moved, end + moved, REDUCE, bytes=size, process=rank + 1, ranks=2)
        traces.append(made.trace())
    return traces[0], traces[1]


@pytest.mark.parametrize(
    ("count", "ahead", "found"),
    [
        (8, 300 * US, 300 * US),
        (8, -300 * US, -300 * US),
        (7, 300 * US, None),  # too few
        (8, 200 * US, None),  # no more than the ends themselves are apart
        (8, 200 * US + 1, 200 * US + 1),
        (8, -200 * US, None),
        (9, 5_000_000 * US, 5_000_000 * US),
    ],
)
def test_a_clock_is_ahead_by_what_eight_ends_are_apart(count: int, ahead: int, found: int | None) -> None:
    first, other = _ranks(count, ahead)
    assert clock_offset(first, other, 0) == (None if found is None else ClockOffset(found, count))
    # What is added to the other's times for its origin counts as well.
    moved = clock_offset(first, other, 1_000_000 * US)
    assert moved == (ClockOffset(ahead + 1_000_000 * US, count) if count >= 8 else None)


@pytest.mark.parametrize("missing", [1, 4])
def test_collectives_that_one_rank_lacks_are_passed_over(missing: int) -> None:
    first, other = _ranks(12, 700 * US, missing=missing)
    assert clock_offset(first, other, 0) == ClockOffset(700 * US, 12 - missing)
    found = clock_offset(other, first, 0)
    assert found == ClockOffset(-700 * US, 12 - missing)


@pytest.mark.parametrize(("spread", "known"), [(200, True), (201, False)])
def test_ends_that_lie_farther_apart_than_200_us_are_of_others(spread: int, known: bool) -> None:
    """Of ten ends two lie at most `spread` us from the median on both sides: more than a tenth."""
    late = [-spread * US, -spread * US] + [0] * 6 + [spread * US] * 2
    first, other = _ranks(10, 900 * US, late=late)
    assert (clock_offset(first, other, 0) is not None) == known


def test_the_offset_is_the_median_of_the_ends() -> None:
    late = [0, 0, 0, 0, 0, 90 * US, 90 * US, 20 * US, 90 * US]
    first, other = _ranks(9, 500 * US, late=late)
    found = clock_offset(first, other, 0)
    assert found == ClockOffset(500 * US, 9)


def test_messages_of_other_sizes_are_no_common_collectives() -> None:
    first, _ = _ranks(9, 0, sizes=[1] * 9)
    _, other = _ranks(9, 500 * US, sizes=[2] * 9)
    assert clock_offset(first, other, 0) is None


def _even(steps: int, ahead: int, *, numbered: bool) -> tuple[model.Trace, model.Trace]:
    """Ranks whose steps are all alike: any whole number of them fits."""
    traces = []
    for rank in range(2):
        made = Tables()
        for step in range(steps):
            begin = 10_000 * US * step + ahead * rank
            if numbered:
                made.range(f"ProfilerStep#{step + 7}", begin, begin + 9_000 * US)
            made.op(begin + 1_000 * US, begin + 2_000 * US, REDUCE, process=rank + 1)
        traces.append(made.trace())
    return traces[0], traces[1]


@pytest.mark.parametrize(("numbered", "found"), [(True, 20_300 * US), (False, 300 * US)])
def test_steps_that_are_alike_are_told_apart_by_their_numbers_else_by_the_clocks(
    numbered: bool, found: int
) -> None:
    first, other = _even(30, 20_300 * US, numbered=numbered)
    offset = clock_offset(first, other, 0)
    assert offset is not None
    assert offset.ns == found


def test_ends_are_of_the_largest_group_s_collectives_of_all_ranks() -> None:
    made = Tables()
    made.op(50, 70, REDUCE, ranks=8, bytes=4)
    made.op(10, 30, "ncclDevKernel_AllGather_RING_LL", ranks=8, bytes=3)
    made.op(20, 40, REDUCE, ranks=2, bytes=9)
    made.op(30, 45, BROADCAST, ranks=8)
    made.op(40, 55, SEND, ranks=8, collective="all_to_all", bytes=7)
    made.op(45, 58, SEND, ranks=8)
    made.op(48, 59, "gemm", ranks=8)
    made.op(49, 60, REDUCE, kind=model.MEMCPY, ranks=8)
    found = collective_ends(made.trace())
    assert found.ends.tolist() == [30, 55, 70]
    assert found.kinds == (("AllGather", 3), ("AllToAll", 7), ("AllReduce", 4))
    assert collective_ends(Tables().trace()).kinds == ()


def _file(pid: int, begin: int, end: int, *, rank: int | None = None, origin: int | None = 0) -> model.Trace:
    made = Tables()
    made.call("c", begin, begin + 1, process=pid, correlation=1)
    made.op(begin, end, process=pid, correlation=1)
    ranks = [] if rank is None else [model.TracedRank(pid, rank, 8)]
    return made.trace(ranks=ranks, origin_unix_ns=origin)


@pytest.mark.parametrize(
    ("files", "apart"),
    [
        ([(5, 0, 100), (5, 100, 200)], [{5: 0}, {5: 0}]),  # one after the other
        ([(5, 0, 100), (5, 99, 200)], [{5: 0}, {5: PIDS_APART}]),  # at once
        ([(5, 100, 200), (5, 0, 100)], [{5: 0}, {5: 0}]),
        ([(5, 100, 200), (5, 0, 101)], [{5: 0}, {5: PIDS_APART}]),
        ([(5, 0, 100), (6, 50, 200)], [{5: 0}, {6: 0}]),
        ([(5, 0, 100, 3), (6, 100, 200, 3)], [{5: 0}, {6: -1}]),  # a rank that was started again
        ([(5, 0, 100, 3), (5, 100, 200, 4)], [{5: 0}, {5: PIDS_APART}]),
        ([(5, 0, 100, 3), (5, 100, 200)], [{5: 0}, {5: 0}]),
        ([(5, 0, 100), (5, 50, 200), (5, 200, 300)], [{5: 0}, {5: PIDS_APART}, {5: 0}]),
        ([(5, 0, 100), (5, 100, 200), (5, 150, 300)], [{5: 0}, {5: 0}, {5: 2 * PIDS_APART}]),
    ],
)
def test_a_pid_is_one_process_in_files_one_after_the_other(
    files: list[tuple[int, ...]], apart: list[dict[int, int]]
) -> None:
    traces = [_file(*file[:3], rank=file[3] if len(file) > 3 else None) for file in files]
    assert processes_apart(traces, [0] * len(traces)) == apart


def test_times_of_files_with_and_without_an_origin_cannot_be_compared() -> None:
    traces = [_file(5, 0, 100), _file(5, 100, 200, origin=None)]
    assert processes_apart(traces, [0, 0]) == [{5: 0}, {5: PIDS_APART}]
    traces = [_file(5, 0, 100, origin=None), _file(5, 100, 200, origin=None)]
    assert processes_apart(traces, [0, 0]) == [{5: 0}, {5: 0}]
    assert processes_apart(traces, [0, -1]) == [{5: 0}, {5: PIDS_APART}]
    made = Tables()
    made.op(0, 1, process=9)
    made.host("h", 0, 1, process=4)
    made.range("r", 0, 1, process=6)
    assert processes_of(made.trace()) == [4, 6, 9]


def test_the_time_between_windows_of_a_process_is_left_out() -> None:
    traces = [_file(5, 0, 100), _file(5, 400, 500), _file(6, 450, 700), _file(5, 1000, 1100)]
    notes: list[str] = []
    apart = [{5: 0}, {5: 0}, {6: 0}, {5: 0}]
    shifts = without_unrecorded_time(traces, [0, 10, 10, 10], apart, notes)
    # From 100 to 410 and from 710 to 1010 nothing was recorded.
    assert shifts == [0, 10 - 310, 10 - 310, 10 - 610]
    assert notes == [
        "pid 5: 3 files are windows of one process; the 610 ns between them were not recorded and are left out; "
        "one step may consist of the end of one file and the beginning of the next"
    ]
    assert without_unrecorded_time(traces, [1, 2, 3, 4], [{5: 0}, {8: 0}, {6: 0}, {9: 0}], notes) == [1, 2, 3, 4]


def test_a_rank_that_was_started_again_is_named_as_such() -> None:
    notes: list[str] = []
    without_unrecorded_time([_file(5, 0, 100), _file(6, 100, 200)], [0, 0], [{5: 0}, {6: -1}], notes)
    assert notes[0].startswith("pid 5: 2 files are windows of one rank, which was started again; the 0")


def test_pids_beyond_four_are_not_named() -> None:
    for count, shown in ((4, "1, 2, 3, 4: "), (5, "1, 2, 3, 4, …: ")):
        made, later = Tables(), Tables()
        for pid in range(1, count + 1):
            made.op(0, 10, process=pid)
            later.op(20, 30, process=pid)
        notes: list[str] = []
        own = dict.fromkeys(range(1, count + 1), 0)
        without_unrecorded_time([made.trace(), later.trace()], [0, 0], [own, own], notes)
        assert notes[0].startswith(f"pid {shown}2 files")


def test_ids_of_a_later_window_come_after_all_earlier_ones() -> None:
    first, later = Tables(), Tables()
    first.call("c", 0, 1, correlation=40)
    first.op(0, 1, correlation=7)
    for number in (9, 3, -1):
        later.call("c", 0, 1, correlation=number)
    for number in (3, -1, 5):
        later.op(0, 1, correlation=number)
    trace = later.trace()
    renumber_correlations([first.trace(), Tables().trace()], trace)
    assert trace.calls.correlation.tolist() == [43, 41, -1]
    assert trace.ops.correlation.tolist() == [41, -1, 42]
    alone = later.trace()
    renumber_correlations([], alone)
    assert alone.calls.correlation.tolist() == [3, 1, -1]


def test_files_are_on_one_time_line_from_the_earliest_origin() -> None:
    one, two = Tables(), Tables()
    one.op(10, 20, "a", process=5)
    two.op(10, 20, "b", process=6)
    two.op(30, 35, "a", process=6)
    two.range("open", 40, int(model.OPEN), process=6)
    metric = model.SampledMetric(0, "sm_active", 5, 1.0, np.array([1.0]))
    first = one.trace(origin_unix_ns=1000, notes=["n"], process_names={5: "x", 98: "y"})
    second = two.trace(origin_unix_ns=900, metrics=[metric], ranks=RANKS, gpus={0: GPU})
    first.source, second.source = "one.json", "two.json"
    found = merge([first, second], "both")
    assert (found.source, found.engine, found.origin_unix_ns) == ("both", "kineto", 900)
    rows = zip(found.ops.start.tolist(), found.ops.end.tolist(), found.ops.name.tolist(), strict=True)
    assert [(start, end, found.names[name]) for start, end, name in rows] == [
        (110, 120, "a"),
        (10, 20, "b"),
        (30, 35, "a"),
    ]
    assert (found.ranges.start.tolist(), found.ranges.end.tolist()) == ([40], [int(model.OPEN)])
    assert found.metrics[0].start == 5
    assert found.file_of == {5: 0, 6: 1}
    assert found.gpu_of == {(6, 0): GPU}
    assert found.ranks == RANKS
    assert (found.notes, found.process_names) == (["one.json: n"], {5: "x", 98: "y"})
    assert merge([first], "alone").source == "alone"


GPU = model.TracedGpu(0, "GPU")
RANKS = [model.TracedRank(6, 1, 2), model.TracedRank(97, 0, 2)]
"""The second one is of a process without events."""


def test_without_an_origin_times_stay_as_they_are() -> None:
    traces = [_file(5, 0, 100, origin=None), _file(6, 50, 100, origin=None)]
    found = merge(traces, "both")
    assert (found.ops.start.tolist(), found.origin_unix_ns, found.notes) == ([0, 50], None, [])
    found = merge([_file(5, 0, 100, origin=7), _file(6, 50, 100, origin=None)], "both")
    assert (found.ops.start.tolist(), found.origin_unix_ns) == ([0, 50], None)
    assert found.notes == ["some files do not say when they were recorded: their times may not match the others'"]


def _doubled(rows: list[dict[str, Any]], table: str = "op") -> tuple[int, list[str]]:
    made = Tables()
    for row in rows:
        getattr(made, table)(**row)
    trace = drop_doubled_events(made.trace())
    return sum(len(getattr(trace, name)) for name in ("ops", "calls", "ranges", "host")), trace.notes


ROW = {"start": 10, "end": 20, "name": "k", "correlation": 1, "stream": 7}


@pytest.mark.parametrize(
    "change",
    [{"start": 11}, {"end": 21}, {"name": "m"}, {"correlation": 2}, {"stream": 8}, {"device": 1}, {"process": 9},
     {"bytes": 5}, {"kind": 2}],
)  # fmt: skip
def test_rows_are_alike_where_time_name_and_place_are(change: dict[str, Any]) -> None:
    assert _doubled([ROW, ROW | change]) == (2, [])
    note = "1 events are in the file twice, with the same time, name and place: each is counted once"
    assert _doubled([ROW, ROW]) == (1, [note])
    # What is not compared: a memory of a copy.
    assert _doubled([ROW, ROW | {"source_memory": 3}]) == (1, [note])


def test_work_without_a_number_may_be_alike_until_two_fifths_are() -> None:
    """In a file with numbers these stay; without any number they go where at least 40 % are second ones."""
    plain = ROW | {"correlation": -1}
    assert _doubled([plain, plain, ROW | {"start": 5}]) == (3, [])
    other = [plain | {"start": 100 + number} for number in range(9)]
    assert _doubled([plain, plain])[0] == 1
    assert _doubled([*other[:3], *other[:2]])[0] == 3, "two of five"
    assert _doubled([*other[:4], *other[:2]])[0] == 6, "two of six"


def test_rows_that_are_three_times_there_are_counted_once() -> None:
    assert _doubled([ROW, ROW, ROW])[0] == 1


def test_ranges_go_where_numbered_work_does() -> None:
    made = Tables()
    made.op(**ROW)
    made.op(**ROW)
    for number in range(9):
        made.range("r", number, number + 1)
    made.range("r", 3, 4)
    made.host("h", 1, 2)
    trace = drop_doubled_events(made.trace())
    assert (len(trace.ops), len(trace.ranges), len(trace.host)) == (1, 9, 1)
    assert trace.notes[0].startswith("2 events")


def test_events_without_a_time_are_no_doubles() -> None:
    assert _doubled([ROW | {"start": ABSENT}] * 2)[0] == 2


def test_a_file_with_the_events_of_another_is_a_copy() -> None:
    def made(start: int = 10, **fields: Any) -> model.Trace:
        rows = Tables()
        rows.op(start, 20, process=PID)
        rows.host("h", 1, 2)
        return rows.trace(**fields)

    one, copy, later = made(), made(), made(11)
    one.source, copy.source = "a", "b"
    notes: list[str] = []
    assert without_copies([one, copy, later], notes) == [one, later]
    assert notes == ["b holds the same events as a: it is left out"]
    for other in (made(origin_unix_ns=5), made(ranks=[model.TracedRank(PID, 0, 2)])):
        assert without_copies([one, other], notes) == [one, other]
    empty = [model.Trace("x", "kineto"), model.Trace("y", "kineto")]
    assert without_copies(empty, notes) == empty
    xla = [made(), made()]
    for trace in xla:
        trace.engine = model.JAX_PROFILER
    assert without_copies(xla, notes) == xla
