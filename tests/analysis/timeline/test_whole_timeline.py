"""All devices over all steps as rows of few pieces: nothing lost, nothing over another, each said by name."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtop.analysis.analyze import analyze
from llmtop.analysis.idle.idle_causes import Gaps, attribute_idle_time
from llmtop.analysis.steps.device_timeline import DeviceTimeline, device_timelines
from llmtop.analysis.steps.step_finder import PhaseSpans, find_steps
from llmtop.analysis.timeline import whole_timeline as made
from llmtop.document.timeline import PieceRow, WholeTimeline
from llmtop.trace.intervals import EMPTY, Spans
from tests.support.traces import Capture, steady, write_chrome, write_sqlite


def timeline(path: Path) -> WholeTimeline:
    found = analyze(path, page=True).whole_timeline
    assert found is not None
    return found


def row(timeline: WholeTimeline, device: int, label: str) -> PieceRow:
    return next(row for row in timeline.devices[device].rows if row.label == label)


def pieces(timeline: WholeTimeline, row: PieceRow) -> list[tuple[float, float, str, str]]:
    """Start and length in µs, kind and text."""
    starts = np.cumsum(row.starts)
    return [
        (start / 1e3, length / 1e3, timeline.kinds[kind], timeline.texts[text])
        for start, length, kind, text in zip(starts.tolist(), row.lengths, row.kinds, row.texts, strict=True)
    ]


def test_every_gpu_and_every_step_is_in_it(tmp_path: Path) -> None:
    captures = [steady(6, capture=Capture(pid=100 + rank, device=rank)) for rank in range(3)]
    found = timeline(write_sqlite(tmp_path / "x.sqlite", captures))
    assert [device.label for device in found.devices] == [f"GPU {n}, pid {100 + n}" for n in range(3)]
    for device in range(3):
        steps = pieces(found, row(found, device, "steps"))
        assert [text for *_, text in steps] == ["step 0", "step 1", "step 2", "step 3", "step 4"]
        kernels = pieces(found, row(found, device, "stream 7"))
        assert len(kernels) == 5
        assert kernels[0] == (0.0, 9900.0, "GEMM", "gemm_kernel")
        assert sum(length for _, length, *_ in pieces(found, row(found, device, "idle"))) == 500.0
    assert len(found.steps) == 5
    assert found.usual in found.steps
    assert found.title == "3 GPUs, 5 steps each"


def test_a_piece_says_operator_kernel_and_functor(tmp_path: Path) -> None:
    capture = Capture()
    functor = "at::native::CUDAFunctor_add<float>"
    name = f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, 3>>"
    for step in range(4):
        begin = step * 1000
        capture.range(f"ProfilerStep#{step}", begin, begin + 1000)
        capture.operator("aten::add", begin + 5, begin + 40)
        capture.kernel(begin + 50, begin + 950, launched=begin + 10, name=name)
    found = timeline(write_chrome(tmp_path / "x.json", capture))
    kernels = pieces(found, row(found, 0, "stream 7"))
    assert {text for *_, text in kernels} == {"aten::add: vectorized_elementwise_kernel of CUDAFunctor_add<float>"}
    assert {kind for *_, kind, _ in kernels} == {"elementwise"}


def test_what_is_too_dense_is_joined_and_nothing_is_lost(tmp_path: Path) -> None:
    capture = Capture()
    steps, each = 30, 250
    for step in range(steps):
        begin = step * 10_000
        capture.range("step", begin, begin + 10_000)
        for kernel in range(each):
            at = begin + kernel * 20
            capture.kernel(at + 10, at + 16 + kernel % 3, launched=at, took=2, name=f"kernel_{kernel % 7}")
    whole = timeline(write_sqlite(tmp_path / "x.sqlite", [capture]))
    few = _with(whole_at=300, tmp_path=tmp_path)
    rows = row(whole, 0, "stream 7"), row(few, 0, "stream 7")
    assert rows[0].counts == ()
    assert len(rows[1].starts) < len(rows[0].starts) / 5
    assert sum(rows[1].counts) == len(rows[0].starts)
    fill = sum(length * share / 100 for length, share in zip(rows[1].lengths, rows[1].fills, strict=True))
    assert abs(fill / sum(rows[0].lengths) - 1) < 0.02
    assert few.usual is not None
    low, length = few.usual
    starts = np.cumsum(rows[1].starts)
    within = (starts >= low) & (starts + rows[1].lengths <= low + length)
    assert within.sum() >= each - 1, "the usual step has every kernel"
    assert set(np.array(rows[1].counts)[within][1:-1]) == {1}
    assert row(few, 0, "steps").counts == ()


def _with(whole_at: int, tmp_path: Path) -> WholeTimeline:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "MOST_PIECES", whole_at)
        return timeline(tmp_path / "x.sqlite")


def test_work_of_many_streams_at_once_has_rows_of_its_own(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(4):
        begin = step * 1000
        capture.range("step", begin, begin + 1000)
        for stream in range(8):
            capture.kernel(begin + 100, begin + 900 - 10 * stream, launched=begin + 10, took=1, stream=stream + 1)
    found = timeline(write_sqlite(tmp_path / "x.sqlite", [capture]))
    labels = [row.label for row in found.devices[0].rows]
    assert [label for label in labels if "stream" in label] == [
        "stream 1", "stream 2", "stream 3", "stream 4", "4 more streams",
    ]  # fmt: skip
    for one in found.devices[0].rows:
        ends = np.cumsum(one.starts) + one.lengths
        assert (np.cumsum(one.starts)[1:] >= ends[:-1]).all(), one.label


def test_a_capture_without_steps_is_shown_whole(tmp_path: Path) -> None:
    capture = Capture()
    for at in (0, 50, 5000, 5100, 9000):
        capture.kernel(at + 10, at + 40, launched=at)
    found = timeline(write_sqlite(tmp_path / "x.sqlite", [capture]))
    assert len(pieces(found, row(found, 0, "stream 7"))) == 5
    assert (found.steps, found.usual) == ((), None)
    assert "steps" not in [one.label for one in found.devices[0].rows]


def test_a_report_that_no_page_is_made_of_does_without(tmp_path: Path) -> None:
    assert analyze(write_sqlite(tmp_path / "x.sqlite", [steady()])).whole_timeline is None


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> tuple[DeviceTimeline, Gaps]:
    """One GPU with its idle time."""
    capture = Capture()
    trace = steady(capture=capture).trace(tmp_path_factory.mktemp("device"))
    (timeline,) = device_timelines(trace, {capture.pid: find_steps(trace, capture.pid)})
    return timeline, attribute_idle_time(timeline, EMPTY, [])


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 4000), st.integers(0, 3)), min_size=1, max_size=200),
    st.integers(1, 60),
    st.one_of(st.none(), st.tuples(st.integers(0, 9000), st.integers(100, 3000))),
)
def test_any_events_come_out_in_order_side_by_side_and_all_counted(
    device: tuple[DeviceTimeline, Gaps],
    events: list[tuple[int, int, int]],
    most: int,
    usual: tuple[int, int] | None,
) -> None:
    """Each event is a range of some phase; the steps divide the time at the ends of the usual one."""
    starts, lengths, _ = (np.array(column, dtype=np.int64) for column in zip(*events, strict=True))
    low, high = int(starts.min()), int((starts + lengths).max())
    within = [] if usual is None else [at for at in (usual[0], sum(usual)) if low < at < high]
    bounds = np.array([low, *within, high])
    timeline = replace(device[0], bounds=bounds, counted=0 if usual is None else len(bounds) - 1)
    ranges = [
        PhaseSpans(f"phase {text}", Spans(starts[at : at + 1], starts[at : at + 1] + length), starts[at : at + 1])
        for at, (_, length, text) in enumerate(events)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "MOST_PIECES", most)
        whole = made.whole_timeline([timeline], [device[1]], {timeline.process: ranges}, {}, timeline)
    assert whole is not None
    out = row(whole, 0, "phases (host)")
    begin = low + np.cumsum(out.starts)
    end = begin + out.lengths
    assert (begin[1:] >= end[:-1]).all()
    assert begin[0] >= low
    assert end[-1] <= high
    ends = np.maximum.accumulate([low, *(start + length for start, length, _ in sorted(events, key=_start))])
    assert sum(out.counts or [1] * len(begin)) == sum(after > before for before, after in pairwise(ends))
    covered = np.zeros(high - low, dtype=bool)
    for a, b in zip(starts - low, starts + lengths - low, strict=True):
        covered[a:b] = True
    shown = np.zeros(high - low, dtype=bool)
    for a, b in zip(begin - low, end - low, strict=True):
        shown[a:b] = True
    assert not (covered & ~shown).any(), "what ran is in some piece"
    rows = whole.devices[0].rows
    if usual is None:
        assert sum(len(one.starts) for one in rows) <= max(most, len(rows))


def _start(event: tuple[int, int, int]) -> int:
    return event[0]
