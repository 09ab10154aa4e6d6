"""One step as rows of pieces, and the longest gaps with what the host did in them, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from llmtop.analysis.idle.idle_causes import CAUSES, Gaps
from llmtop.analysis.idle.longest_gaps import deepest_during, longest_gaps
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import PhaseSpans
from llmtop.analysis.timeline.step_timeline import step_of_median_length, step_timeline
from llmtop.report.model import LongGap, Timeline
from llmtop.trace import intervals as iv
from llmtop.trace import model
from tests.support.tables import PID, REDUCE, Tables, gaps_of, only_timeline, steps_at

US = 1000


def _phase(path: str, *spans: tuple[int, int]) -> PhaseSpans:
    starts, ends = np.array(spans, dtype=np.int64).T
    return PhaseSpans(path, iv.union(starts, ends), starts)


@pytest.mark.parametrize(
    ("lengths", "step"),
    [
        ((30, 10, 20), 2),
        ((30, 10), 1),
        ((5,), 0),
        ((40, 10, 20, 30), 2),
        ((10, 10, 10), 1),
        ((50, 40, 30, 20, 10), 2),
    ],
)
def test_the_step_that_is_drawn_has_the_median_length(lengths: tuple[int, ...], step: int) -> None:
    """Of the two in the middle the shorter one."""
    edges = [0, *np.cumsum(lengths).tolist()]
    made = Tables()
    for number, at in enumerate(edges):
        made.launched(number, at, at, at + 1)
    assert step_of_median_length(only_timeline(made.trace(), steps_at(*edges, cut_before=1))) == step


def _drawn(made: Tables, *edges: int, phases: list[PhaseSpans] | None = None, **causes: float) -> Timeline:
    timeline = only_timeline(made.trace(), steps_at(*(edges or (0,))))
    return step_timeline(timeline, gaps_of(timeline, **causes), phases or [])


@pytest.mark.parametrize(
    ("spans", "drawn_ns"),
    [
        ([(0, 700)], 700),  # one long kernel, as a whole
        ([(0, 700), (5, 10)], 700),  # to the last end, which is not that of the last piece
        ([(10 * n, 10 * n + 4) for n in range(5000)], 49_994),
        ([(10 * n, 10 * n + 4) for n in range(7000)], 50_000),  # to where the piece after the first 5,000 begins
    ],
)
def test_without_steps_the_beginning_of_the_capture_is_drawn(spans: list[tuple[int, int]], drawn_ns: int) -> None:
    made = Tables()
    for start, end in spans:
        made.op(start, end)
    drawn = _drawn(made)
    assert drawn.step is None
    assert round(drawn.seconds * 1e9) == drawn_ns


def _rows(drawn: Timeline) -> dict[str, list[tuple[int, int, str, str]]]:
    return {
        row.label: [(round(one.start * 1e9), round(one.seconds * 1e9), one.kind, one.text) for one in row.spans]
        for row in drawn.rows
    }


def test_a_step_s_rows_are_what_ran_and_what_was_called_in_it() -> None:
    made = Tables()
    for number, at in enumerate((0, 1000, 2000)):
        made.launched(number, at, at + 10, at + 300, "ampere_sgemm_128x64_nn")
        made.call("cudaLaunchKernel_v7000", at + 5, at + 20, correlation=10 + number)
        made.op(at + 250, at + 400, REDUCE, correlation=10 + number)
        made.call("cudaStreamSynchronize", at + 500, at + 900, thread=7)
    made.op(1900, 2005, "memcpy", kind=model.MEMCPY)
    phases = [
        _phase("forward", (950, 1200), (1500, 1600), (2020, 2100)),
        _phase("forward/attention", (1000, 1100)),
        _phase("late", (2010, 2500)),
    ]
    drawn = _drawn(made, 0, 1000, 2000, phases=phases, input=0.8)
    assert (drawn.step, drawn.seconds) == (0, pytest.approx(1e-6))
    found = _rows(drawn)
    assert found["GPU 0"] == [(0, 290, "GEMM", "ampere_sgemm_128x64_nn")]
    assert found["comm"] == [(240, 150, "NCCL", REDUCE)]
    assert found["idle"] == [(390, 610, "input", CAUSES["input"])]
    # The calls at 1000 and 1005 begin before the device's step ends, at 1010.
    assert found["host (main)"] == [
        (-0, 10, "launch", "cudaLaunchKernel"),
        (990, 5, "launch", "cudaLaunchKernel"),
        (995, 5, "launch", "cudaLaunchKernel"),
    ]
    assert found["phases (host)"] == [(940, 60, "forward", "forward")]
    assert [row.lane for row in drawn.rows] == ["gpu", "gpu", "gaps", "host", "phases"]


def test_kinds_of_device_work_are_named() -> None:
    made = Tables()
    for number, kind in enumerate((model.MEMCPY, model.MEMSET, model.GRAPH)):
        made.op(100 * number, 100 * number + 10, f"w{number}", kind=kind)
    made.op(300, 310, "last")
    assert _rows(_drawn(made))["GPU 0"][:3] == [
        (0, 10, "copy", "w0"),
        (100, 10, "memset", "w1"),
        (200, 10, "graph", "w2"),
    ]


@pytest.mark.parametrize(("pieces", "joined"), [(1500, False), (1501, True)])
def test_more_pieces_than_pixels_are_joined(pieces: int, joined: bool) -> None:
    """Of 1501 pieces of 10 ns, each 20 ns after the other: those within two parts in 1500 of the time are one."""
    made = Tables()
    for number in range(pieces):
        made.op(20 * number, 20 * number + 10, "k")
    (row,) = [row for row in _drawn(made, launch=1.0).rows if row.label == "GPU 0"]
    assert (len(row.spans) < pieces) == joined
    if joined:
        apart = 2 * (20 * (pieces - 1) + 10) // 1500
        assert all(span.seconds * 1e9 < apart + 0.5 for span in row.spans)
        first = row.spans[0]
        assert first.text == "2 pieces, 67 % of this time"
        assert first.fill == pytest.approx(20 / 30, abs=0.001)
        assert (first.start, first.seconds) == (0.0, pytest.approx(30e-9))
    else:
        assert {(span.text, span.fill) for span in row.spans} == {("k", 1.0)}


def test_the_kind_of_joined_pieces_is_that_with_most_time() -> None:
    made = Tables()
    for number in range(1600):
        at = 30 * number
        made.op(at, at + 4, "ampere_sgemm_128x64_nn")
        made.op(at + 5, at + 8, "", kind=model.MEMCPY)
        made.op(at + 9, at + 12, "", kind=model.MEMCPY)
    (row,) = [row for row in _drawn(made, launch=1.0).rows if row.label == "GPU 0"]
    # Less than two parts of 1500 of 47,982 ns, which are 63: those of two rounds, 20 of 42 ns.
    first = row.spans[0]
    assert (first.text, first.kind) == ("6 pieces, 48 % of this time", "copy")


def _long_gaps(
    made: Tables, *edges: int, phases: list[PhaseSpans] | None = None, **causes: float
) -> list[LongGap]:
    timeline = only_timeline(made.trace(), steps_at(*(edges or (0,))))
    return list(longest_gaps([timeline], [gaps_of(timeline, **causes)], {PID: phases or []}))


def test_the_longest_gaps_are_told_with_what_ran_around_them() -> None:
    made = Tables()
    for number, (at, end, name) in enumerate(
        ((0, 500, "a"), (100, 700, "b"), (650, 690, "c"), (1000, 1100, "d"), (1150, 2000, "e"), (2600, 2700, "f"))
    ):
        made.launched(number, at, at * US, end * US, name)
    found = _long_gaps(made, 0, 1000 * US, 2600 * US, sync=0.6, host=0.25)
    assert [(one.seconds, one.step, one.before) for one in found] == [
        (pytest.approx(600e-6), 1, "e"),
        (pytest.approx(300e-6), 0, "b"),
        (pytest.approx(50e-6), 1, "d"),
    ]
    assert found[0].start_seconds == pytest.approx(2000e-6)
    assert found[0].causes == {
        "sync": pytest.approx(360e-6),
        "host": pytest.approx(150e-6),
        "unknown": pytest.approx(90e-6),
    }
    assert list(found[0].causes) == ["sync", "host", "unknown"]
    assert {(one.device, one.pid) for one in found} == {(0, PID)}


def test_at_most_twelve_gaps_are_told_the_longest_of_all_devices() -> None:
    made = Tables()
    for number in range(15):
        made.op(number * number * US, number * number * US + 10)
    found = _long_gaps(made)
    assert [round(one.seconds * 1e9) + 10 for one in found] == [(2 * n + 1) * US for n in range(13, 1, -1)]
    assert {one.step for one in found} == {None}


def test_the_work_behind_a_gap_is_that_which_ended_it() -> None:
    made = Tables()
    made.op(0, 10, "a")
    made.op(500, 600, "b")
    timeline = only_timeline(made.trace(), steps_at(0))
    by_cause = {cause: np.zeros(1, dtype=np.int64) for cause in CAUSES}
    for ending, name in ((1, "b"), (0, "a"), (-1, "")):
        gaps = Gaps(timeline.idle, by_cause, np.array([ending]))
        (found,) = longest_gaps([timeline], [gaps], {PID: []})
        assert (found.before, found.after) == ("a", name)


@pytest.mark.parametrize(
    ("phases", "named"),
    [
        ([_phase("load", (10 * US, 260 * US))], "load"),  # half of the gap from 10 to 510
        ([_phase("load", (10 * US, 260 * US - 1))], ""),
        ([_phase("load", (0, 600 * US)), _phase("load/wait", (10 * US, 270 * US))], "load/wait"),
        ([_phase("load", (0, 600 * US)), _phase("load/wait", (10 * US, 250 * US))], "load"),
        ([_phase("a", (10 * US, 300 * US)), _phase("b", (10 * US, 310 * US))], "b"),
    ],
)
def test_the_phase_of_a_gap_is_the_innermost_of_half_of_it(phases: list[PhaseSpans], named: str) -> None:
    made = Tables()
    made.op(0, 10 * US)
    made.op(510 * US, 600 * US)
    (found,) = _long_gaps(made, phases=phases)
    assert found.phase == named


def _gap_with_host() -> Tables:
    """Idle from 1 to 11 ms; the main thread is in calls, an operator, and a frame around another."""
    made = Tables()
    made.launched(1, 0, 0, 1000 * US)
    made.launched(2, 10_990 * US, 11_000 * US, 12_000 * US)
    made.call("cudaMemcpyAsync_v3020", 1000 * US, 2000 * US)
    made.call("cudaMemcpyAsync", 3000 * US, 3500 * US)
    made.call("cudaMalloc", 900 * US, 1100 * US)
    made.call("cudaFree", 4000 * US, 9000 * US, thread=7)  # launches nothing
    made.host("outer", 2000 * US, 9000 * US, kind=model.PYTHON)
    made.host("inner", 5000 * US, 8000 * US, kind=model.PYTHON)
    made.host("short", 9000 * US, 9099 * US, kind=model.PYTHON)
    made.host("elsewhere", 1000 * US, 11_000 * US, thread=7)
    return made


def test_what_the_host_did_in_a_gap_is_told_longest_first() -> None:
    phases = [_phase("step", (0, 12_000 * US)), _phase("step/load", (1000 * US, 11_000 * US))]
    (found,) = _long_gaps(_gap_with_host(), phases=phases)
    assert found.seconds == pytest.approx(10e-3)
    assert found.host == (
        "phase step/load: 10.0 ms",
        # From 1 to 2, 3 to 3.5 and 10.99 to 11 ms it is in calls.
        "no CUDA call: 8.50 ms",
        "outer: 4.00 ms",
        "inner: 3.00 ms",
    )
    (found,) = _long_gaps(_gap_with_host())
    assert found.host[3] == "in cudaMemcpyAsync: 1.50 ms"


def test_the_deepest_on_the_host_has_its_share_of_the_idle_time() -> None:
    timeline = only_timeline(_gap_with_host().trace(), steps_at(0))
    found = deepest_during(timeline, gaps_of(timeline, sync=0.4, host=0.6), ["sync"])
    assert found == ("outer", pytest.approx(40.0)), "4 of 10 ms, of whatever cause"
    assert deepest_during(timeline, gaps_of(timeline, host=1.0), ["sync"]) is None
    made = Tables()
    made.op(0, 10)
    made.op(20, 30)
    plain = only_timeline(made.trace(), steps_at(0))
    assert deepest_during(plain, gaps_of(plain, sync=1.0), ["sync"]) is None


def test_gaps_count_by_their_time_of_the_wanted_causes() -> None:
    """Of three gaps of 100 us `a` fills the first, whose time is of another cause, and `b` half of the others."""
    made = Tables()
    for number in range(4):
        made.launched(number, 200 * US * number, 200 * US * number, 200 * US * number + 100 * US)
    made.host("a", 100 * US, 200 * US)
    made.host("b", 300 * US, 350 * US)
    made.host("b", 500 * US, 550 * US)
    timeline = only_timeline(made.trace(), steps_at(0))
    gaps = gaps_of(timeline, sync=1.0)
    gaps.by_cause["sync"][0], gaps.by_cause["host"][0] = 0, 100 * US
    assert deepest_during(timeline, gaps, ["sync"]) == ("b", pytest.approx(50.0))
    assert deepest_during(timeline, gaps, ["host", "os_wait"]) == ("a", pytest.approx(100.0))


def _many_gaps(count: int) -> DeviceTimeline:
    """So many gaps of 90 us, and one of as long as all of them; `long` is on the host in it, `short` in the
    others."""
    made = Tables()
    for number in range(count + 1):
        made.launched(number, 100 * US * number, 100 * US * number, 100 * US * number + 10 * US)
        if number < count:
            made.host("short", 100 * US * number + 10 * US, 100 * US * (number + 1))
    last = 100 * US * count + 10 * US
    made.host("long", last, last + 90 * US * count)
    made.launched(count + 2, last + 90 * US * count, last + 90 * US * count, last + 90 * US * count + US)
    return only_timeline(made.trace(), steps_at(0))


@pytest.mark.parametrize("count", [99, 100, 300])
def test_of_many_gaps_some_stand_for_all(count: int) -> None:
    timeline = _many_gaps(count)
    found = deepest_during(timeline, gaps_of(timeline, sync=1.0), ["sync"])
    assert found is not None
    assert found[1] == pytest.approx(50.0, abs=2.0)
