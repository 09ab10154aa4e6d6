"""The verdict at its thresholds: shares by cause, close causes, and captures that show too little."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.unprofiled_step import UnprofiledStep
from llmtop.analysis.verdict import Judgement, judge, loss_shares, missing_evidence, setup_ns
from llmtop.trace import model
from tests.support.tables import STEP_NS, Tables, gaps_of, losing_timeline, only_timeline, steps_at

US = 1000


def _judged(timeline: DeviceTimeline, **causes: float) -> Judgement:
    return judge([timeline], [gaps_of(timeline, **causes)])


@pytest.mark.parametrize(
    ("cause", "loss", "verdict"),
    [
        ("launch", "launch_bound", "launch_bound"),
        ("allocation", "launch_bound", "launch_bound"),
        ("queued", "kernel_gaps", "launch_bound"),
        ("input", "input_bound", "input_bound"),
        ("sync", "sync_bound", "sync_bound"),
        ("copy", "h2d_bound", "h2d_bound"),
        ("host", "idle", "idle"),
        ("os_wait", "idle", "idle"),
        ("dependency", "idle", "idle"),
        ("other_process", "idle", "idle"),
        ("preempted", "idle", "idle"),
        ("unknown", "unknown", "unknown"),
    ],
)
def test_each_cause_of_idle_time_has_its_verdict(cause: str, loss: str, verdict: str) -> None:
    found = _judged(losing_timeline(300 * US), **{cause: 1.0})
    assert found.verdict == verdict
    assert found.lost == {loss: pytest.approx(30.0)}
    assert found.total == pytest.approx(30.0)
    assert found.second is None
    assert not found.at_border
    assert found.step_seconds == pytest.approx(1e-3)
    assert found.idle_by_cause == ({cause: pytest.approx(30.0)} if loss == "idle" else {})


@pytest.mark.parametrize(
    ("lost_us", "verdict", "at_border"),
    [
        (100, "launch_bound", True),
        (99, "gpu_bound", True),
        (80, "gpu_bound", True),
        (79, "gpu_bound", False),
        (120, "launch_bound", True),
        (121, "launch_bound", False),
        (0, "gpu_bound", False),
    ],
)
def test_from_a_tenth_on_the_largest_loss_names_the_verdict(lost_us: int, verdict: str, at_border: bool) -> None:
    """docs/contracts.md: under 10 % lost is gpu_bound; within two points the decision is close."""
    found = _judged(losing_timeline(lost_us * US), launch=1.0)
    assert (found.verdict, found.at_border) == (verdict, at_border)
    assert found.total == pytest.approx(lost_us / 10)
    assert found.whole_lost_pct == pytest.approx(lost_us / 10, abs=0.01)


@pytest.mark.parametrize(
    ("launch", "second"), [(0.58, "sync_bound"), (0.59, None), (0.5, "sync_bound"), (0.42, "launch_bound")]
)
def test_a_loss_within_five_points_is_named_beside_the_first(launch: float, second: str | None) -> None:
    """Of 30 % lost: 17.4 and 12.6 are 4.8 points apart, 17.7 and 12.3 5.4."""
    found = _judged(losing_timeline(300 * US), launch=launch, sync=1 - launch)
    assert found.second == second
    assert list(found.lost.values()) == sorted(found.lost.values(), reverse=True)


def test_under_a_tenth_no_second_loss_is_named() -> None:
    assert _judged(losing_timeline(50 * US), launch=0.5, sync=0.5).second is None


def test_copies_and_collectives_alone_are_lost_as_well() -> None:
    timeline = losing_timeline(100 * US, exposed=150 * US, copied=50 * US)
    found = loss_shares(timeline, gaps_of(timeline, launch=0.5, copy=0.5))
    assert found == {
        "communication_bound": pytest.approx(15.0),
        "h2d_bound": pytest.approx(5.0 + 5.0),
        "launch_bound": pytest.approx(5.0),
    }
    assert list(found) == ["communication_bound", "h2d_bound", "launch_bound"]
    judged = judge([timeline], [gaps_of(timeline, launch=0.5, copy=0.5)])
    assert (judged.verdict, judged.second) == ("communication_bound", "h2d_bound")
    assert judged.whole_lost_pct == pytest.approx(30.0, abs=0.01)


def test_one_off_work_is_in_no_share_and_not_in_their_base() -> None:
    """Of 300 us idle 120 are of a capture of a graph: 180 of the other 880 are lost."""
    timeline = losing_timeline(300 * US)
    gaps = gaps_of(timeline, capture=0.4, launch=0.6)
    assert setup_ns(gaps) == pytest.approx(3 * 120 * US, abs=3)
    found = judge([timeline], [gaps])
    assert found.lost == {"launch_bound": pytest.approx(100 * 180 / 880, abs=1e-3)}
    assert found.one_off_pct == pytest.approx(12.0, abs=1e-3)
    assert found.whole_lost_pct == pytest.approx(100 * 180 / 880, abs=0.01)
    assert found.step_seconds == pytest.approx(0.88e-3, rel=1e-4)


@pytest.mark.parametrize("cause", ["capture", "compile", "one_off", "start_up"])
@pytest.mark.parametrize(("lost", "part", "lacks"), [(300, 0.6, True), (300, 0.5, False), (90, 1.0, False)])
def test_one_off_work_of_most_idle_time_and_a_tenth_leaves_no_verdict(
    cause: str, lost: int, part: float, lacks: bool
) -> None:
    found = _judged(losing_timeline(lost * US), **{cause: part, "launch": 1 - part})
    assert bool(found.lacks) == lacks
    assert (found.verdict == "unknown") == lacks
    if lacks:
        assert f"{0.6 * 30:.1f} % of 3 whole steps is one-off work" in found.lacks


def test_the_parts_of_one_off_work_are_named_the_largest_first() -> None:
    found = _judged(losing_timeline(400 * US), compile=0.3, capture=0.6, one_off=0.02)
    assert found.lacks.endswith("(capturing CUDA graphs 24.0 %, compiling kernels 12.0 %)")
    assert "24" in found.lacks


def test_idle_time_without_a_verdict_of_its_own_is_divided_by_cause() -> None:
    found = _judged(losing_timeline(200 * US), host=0.25, os_wait=0.5, launch=0.25)
    assert found.idle_by_cause == {"os_wait": pytest.approx(10.0), "host": pytest.approx(5.0)}
    assert list(found.idle_by_cause) == ["os_wait", "host"]


@pytest.mark.parametrize(
    ("after_us", "lost_us", "at_border"),
    [
        (0, 50, False),
        (97, 50, False),  # 247 of 3097 are 7.98 %
        (98, 50, True),  # 248 of 3098 are 8.005 %: nearly the other verdict
        (190, 50, True),  # 10.7 %
        (500, 150, False),  # 25.7 %
    ],
)
def test_all_that_was_recorded_may_show_another_verdict(after_us: int, lost_us: int, at_border: bool) -> None:
    trace = losing_timeline(lost_us * US).trace
    made = Tables()
    for start, end, by in zip(
        trace.ops.start.tolist(), trace.ops.end.tolist(), trace.ops.correlation.tolist(), strict=True
    ):
        made.call("cudaLaunchKernel", start // STEP_NS * STEP_NS, start // STEP_NS * STEP_NS + 1, correlation=by)
        made.op(start, end, correlation=by)
    if after_us:
        made.op(3 * STEP_NS + after_us * US, 3 * STEP_NS + after_us * US + 1)
    longer = only_timeline(made.trace(), steps_at(0, STEP_NS, 2 * STEP_NS, 3 * STEP_NS))
    found = _judged(longer, launch=1.0)
    whole = 100 * (3 * lost_us + after_us) / (3000 + after_us)
    assert found.whole_lost_pct == pytest.approx(whole, abs=0.01)
    assert found.total == pytest.approx(lost_us / 10)
    assert found.at_border == at_border


def test_no_device_at_all_is_unknown() -> None:
    found = judge([], [])
    assert (found.verdict, found.timeline, found.lost, found.step_seconds) == ("unknown", None, {}, None)


def _free(
    kernels: int, took: int, *, apart: int = 100, name: str = "k{}", steps: tuple[int, ...] = (0,), window: int = 0
) -> DeviceTimeline:
    """Kernels without steps."""
    made = Tables()
    for number in range(kernels):
        made.launched(number, number * apart, number * apart, number * apart + took, name.format(number))
    if window:
        made.call("cudaGetDevice", 0, window)
    return only_timeline(made.trace(), steps_at(*steps))


@pytest.mark.parametrize(
    ("timeline", "lacks"),
    [
        (_free(10, 49), ""),  # ten kernels are enough
        (_free(9, 49), "too little to see a step in"),
        (_free(9, 60, name="same"), ""),  # busy for more than half, and one comes again
        (_free(9, 60), "too little to see a step in"),
        (_free(10, 49, window=9490), ""),
        (_free(10, 49, window=9491), "within 949 ns of the 9.49 µs of the capture"),
    ],
    ids=["ten", "nine", "again", "never again", "a tenth", "less"],
)
def test_without_steps_a_verdict_needs_ten_kernels_or_a_repetition(timeline: DeviceTimeline, lacks: str) -> None:
    found = missing_evidence(timeline, gaps_of(timeline))
    assert (lacks in found) if lacks else (found == "")


@pytest.mark.parametrize(("copied_us", "lacks"), [(100, False), (99, True)])
def test_steps_without_kernels_are_judged_where_copies_fill_a_tenth(copied_us: int, lacks: bool) -> None:
    made = Tables()
    for step in range(3):
        at = step * STEP_NS
        made.call("cudaMemcpyAsync", at, at + 1, correlation=step)
        took = copied_us * US if step < 2 else 1
        made.op(at, at + took, "", kind=model.MEMCPY, direction=model.HOST_TO_DEVICE, correlation=step)
    timeline = only_timeline(made.trace(), steps_at(0, STEP_NS, 2 * STEP_NS))
    assert timeline.counted == 2
    found = missing_evidence(timeline, gaps_of(timeline))
    assert found == ("no kernel ran in the capture, only copies or memsets" if lacks else "")


def test_one_step_of_copies_alone_shows_nothing() -> None:
    made = Tables()
    made.op(0, 900, "", kind=model.MEMCPY, direction=model.HOST_TO_DEVICE)
    timeline = only_timeline(made.trace(), steps_at(0, 1000))
    assert "no kernel ran" in missing_evidence(timeline, gaps_of(timeline))


def test_a_whole_graph_is_a_step_s_worth_of_kernels() -> None:
    made = Tables()
    made.op(0, 10, "", kind=model.GRAPH)
    made.op(1000, 1010)
    timeline = only_timeline(made.trace(), steps_at(0))
    assert missing_evidence(timeline, gaps_of(timeline)) == ""


def _rank(pid: int, lost: int, exposed: int = 0) -> DeviceTimeline:
    return replace(losing_timeline(lost * US, exposed=exposed * US), process=pid)


@pytest.mark.parametrize(
    ("ranks", "incomplete", "judged"),
    [
        ([(1, 100, 0), (2, 300, 0), (3, 200, 0)], (), 2),  # without NCCL the one that loses most
        ([(1, 100, 0), (2, 300, 0), (3, 200, 0)], (2,), 3),
        ([(1, 100, 0)], (1,), 1),  # there is no other
        ([(1, 100, 200), (2, 300, 50), (3, 0, 100)], (), 2),  # waits least in NCCL
        ([(1, 900, 0), (2, 0, 50)], (), 2),  # only ranks with NCCL
    ],
)
def test_the_judged_device(ranks: list[tuple[int, int, int]], incomplete: tuple[int, ...], judged: int) -> None:
    timelines = [_rank(*rank) for rank in ranks]
    found = judge(timelines, [gaps_of(one, launch=1.0) for one in timelines], incomplete)
    assert found.timeline is not None
    assert found.timeline.process == judged


def test_a_device_with_less_than_a_hundredth_of_the_work_is_not_judged() -> None:
    for lost, judged in ((990, 2), (991, 1)):
        timelines = [_rank(1, 0), _rank(2, lost)]
        assert [one.busy.total for one in timelines] == [3000 * US + 1, 3 * (1000 - lost) * US + 1]
        found = judge(timelines, [gaps_of(one, launch=1.0) for one in timelines])
        assert found.timeline is not None
        assert found.timeline.process == judged


def test_shares_of_the_step_without_the_profiler_make_the_verdict() -> None:
    """Steps of 1 ms with 0.3 ms lost to launching; without the profiler 0.8 ms: 0.2 ms of launching go."""
    timeline = losing_timeline(300 * US)
    found = judge([timeline], [gaps_of(timeline, launch=1.0)], unprofiled=UnprofiledStep(0.8e-3, 0.8e-3))
    assert found.correction.reason == ""
    assert found.lost == {"launch_bound": pytest.approx(100 * 0.1 / 0.8)}
    assert found.step_seconds == pytest.approx(0.8e-3)
    assert found.whole_lost_pct == found.total == pytest.approx(12.5)
    assert (found.verdict, found.at_border) == ("launch_bound", False)
