"""Rows of the whole timeline, by hand: which there are, and how they are named and ordered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmtop.analysis.steps.device_timeline import DeviceTimeline, device_timelines
from llmtop.analysis.steps.step_finder import PhaseSpans
from llmtop.analysis.timeline.whole_timeline import MOST_DEVICES, whole_timeline
from llmtop.document.timeline import WholeTimeline
from llmtop.trace import intervals as iv
from llmtop.trace import model
from tests.support.tables import PID, Tables, gaps_of, only_timeline, steps_at


def _whole(
    timelines: list[DeviceTimeline],
    judged: int | None = 0,
    *,
    ranks: dict[int, int] | None = None,
    phases: list[PhaseSpans] | None = None,
) -> WholeTimeline:
    pids = {one.process for one in timelines}
    found = whole_timeline(
        timelines,
        [gaps_of(one, launch=1.0) for one in timelines],
        dict.fromkeys(pids, phases or []),
        ranks or {},
        None if judged is None else timelines[judged],
    )
    assert found is not None
    return found


def _steps(*edges: int, pid: int = PID) -> DeviceTimeline:
    """A kernel of half of each step at its begin."""
    made = Tables()
    for number, at in enumerate(edges):
        made.call("cudaLaunchKernel", at, at + 5, process=pid, thread=pid, correlation=number)
        took = (edges[number + 1] - at) // 2 if number + 1 < len(edges) else 1
        made.op(at, at + took, process=pid, correlation=number)
    return only_timeline(made.trace(), steps_at(*edges, process=pid, cut_before=1))


@pytest.mark.parametrize(
    ("steps", "title"),
    [
        (((0, 100, 200),), "1 GPU, 2 steps"),
        (((0, 100),), "1 GPU, 1 step"),
        (((0, 100, 200), (0, 100, 200)), "2 GPUs, 2 steps each"),
        (((0, 100, 200), (0, 50, 100, 200)), "2 GPUs, 2 to 3 steps each"),
        (((0,),), "1 GPU, the whole capture"),
    ],
)
def test_the_title_has_devices_and_steps(steps: tuple[tuple[int, ...], ...], title: str) -> None:
    assert _whole([_steps(*edges, pid=1 + place) for place, edges in enumerate(steps)]).title == title


def test_rows_are_steps_streams_idle_time_threads_and_phases() -> None:
    phase = PhaseSpans("load", iv.union(np.array([60]), np.array([90])), np.array([60]))
    inner = replace(phase, path="load/inner")
    found = _whole([_steps(0, 100, 300, 450)], ranks={PID: 3}, phases=[phase, inner])
    (device,) = found.devices
    assert device.label == "GPU 0, rank 3 (pid 100)"
    rows = {row.label: row for row in device.rows}
    assert list(rows) == ["steps", "stream 0", "idle", "host (main)", "phases (host)"]
    assert (found.length, found.usual) == (450, (300, 150))
    assert found.steps == ((0, 100), (100, 200), (300, 150))

    def pieces(label: str) -> list[tuple[int, int, str, str]]:
        row = rows[label]
        starts = np.cumsum(row.starts).tolist()
        return [
            (start, length, found.kinds[kind], found.texts[text])
            for start, length, kind, text in zip(starts, row.lengths, row.kinds, row.texts, strict=True)
        ]

    assert pieces("steps") == [
        (0, 100, "step", "step 0"),
        (100, 200, "step", "step 1"),
        (300, 150, "step", "step 2"),
    ]
    assert [piece[:2] for piece in pieces("stream 0")] == [(0, 50), (100, 100), (300, 75)]
    assert [piece[:3] for piece in pieces("idle")] == [
        (50, 50, "launch"),
        (200, 100, "launch"),
        (375, 75, "launch"),
    ]
    assert pieces("host (main)")[0] == (0, 5, "launch", "cudaLaunchKernel")
    assert pieces("phases (host)") == [(60, 30, "load", "load")]
    assert all(row.counts == row.fills == () for row in device.rows)


def test_a_device_that_nobody_judges_has_no_steps_to_go_through() -> None:
    found = _whole([_steps(0, 100, 200)], judged=None)
    assert (found.usual, found.steps) == (None, ())
    assert found.devices[0].label == "GPU 0, pid 100"


@pytest.mark.parametrize(
    ("extra", "text"), [(0, ""), (1, "1 more GPU of the capture: not in the timeline"), (2, "2 more GPUs of")]
)
def test_devices_beyond_the_most_are_counted(extra: int, text: str) -> None:
    made = Tables()
    for number in range(MOST_DEVICES + extra):
        made.op(10 * number, 10 * number + 5, device=number)
    timelines = device_timelines(made.trace(), {PID: steps_at(0)})
    found = _whole(timelines, judged=len(timelines) - 1)
    assert len(found.devices) == MOST_DEVICES
    assert found.left_out.startswith(text)
    assert bool(found.left_out) == bool(text)
    assert found.devices[-1].label == f"GPU {len(timelines) - 1}, pid 100", "the judged one is kept"


@pytest.mark.parametrize(("streams", "labels"), [(4, []), (5, ["1 more streams"]), (6, ["2 more streams"])])
def test_the_four_busiest_streams_have_rows(streams: int, labels: list[str]) -> None:
    made = Tables()
    for number in range(streams):
        made.op(100 * number, 100 * number + 10 * (number + 1), stream=number)
    (device,) = _whole([only_timeline(made.trace(), steps_at(0))]).devices
    found = [row.label for row in device.rows if "stream" in row.label]
    assert found == [f"stream {number}" for number in range(streams - 1, streams - 5, -1)] + labels


def test_what_runs_beside_another_piece_is_seen_where_it_is_alone() -> None:
    made = Tables()
    for start, end in ((0, 50), (20, 70), (30, 40), (80, 100)):
        made.op(start, end)
    (device,) = _whole([only_timeline(made.trace(), steps_at(0))]).devices
    row = next(row for row in device.rows if row.label == "stream 0")
    found = zip(np.cumsum(row.starts).tolist(), row.lengths, strict=True)
    assert list(found) == [(0, 50), (50, 20), (80, 20)]


def test_pieces_that_are_joined_have_their_number_and_filled_share() -> None:
    """40,000 kernels of 30 ns, one each 100 ns: of 30,000 pieces in all rows."""
    start = 100 * np.arange(40_000)
    columns = {"start": start, "end": start + 30, "process": np.full(40_000, PID), "name": np.ones(40_000)}
    trace = model.Trace("made", "nsys", names=["", "k"], ops=model.build(model.DeviceOps, columns))
    (device,) = _whole([only_timeline(trace, steps_at(0))], judged=None).devices
    row = next(row for row in device.rows if row.label == "stream 0")
    assert sum(row.counts) == 40_000
    assert sum(len(one.starts) for one in device.rows) <= 30_000
    for count, length, fill in zip(row.counts, row.lengths, row.fills, strict=True):
        assert length == 100 * (count - 1) + 30
        assert fill == round(100 * 30 * count / length)
