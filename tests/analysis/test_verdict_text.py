"""Sentences on a verdict, notes on a capture, and shares without the profiler, each with its numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmtop.analysis.idle.missing_kernels import UnrecordedKernels
from llmtop.analysis.notes import capture_notes
from llmtop.analysis.start_up import without_start_up
from llmtop.analysis.steps.unprofiled_step import UNCORRECTED, UnprofiledStep, correct_shares
from llmtop.analysis.verdict import Judgement, judge
from llmtop.analysis.verdict_text import good_capture, left_out_text, main_off_cpu_cause, verdict_sentence
from llmtop.model.bottlenecks import LossId
from llmtop.report.model import Correction, StepsJudged
from llmtop.trace import model
from tests.support.tables import PID, STEP_NS, Tables, gaps_of, losing_timeline, only_timeline, steps_at

US = 1000
STEPS = StepsJudged(found_by="made", seconds_p50=0.001)


def _said(judgement: Judgement, **more: Any) -> str:
    assert judgement.timeline is not None
    return verdict_sentence(judgement, STEPS, judgement.timeline.trace, {}, **more)


def _judged(lost_us: int, causes: dict[str, float] | None = None, **fields: Any) -> Judgement:
    timeline = losing_timeline(lost_us * US)
    found = judge([timeline], [gaps_of(timeline, **(causes or {"launch": 1.0}))])
    return replace(found, correction=replace_reason(found.correction), **fields)


def replace_reason(correction: Correction) -> Correction:
    return correction if correction.reason else UNCORRECTED


def test_a_loss_is_reported_with_its_parts_from_a_percent_on() -> None:
    said = _said(_judged(300, {"launch": 0.9, "sync": 0.07, "input": 0.03}))
    assert "30.0 % of 3 whole steps is lost: 27.0 % to " in said
    assert ", 2.1 % to " in said
    assert "0.9 %" not in said
    assert "A step takes 1.00 ms on average." in said


def test_a_busy_gpu_is_reported_with_the_threshold() -> None:
    said = _said(_judged(50))
    assert "5.0 % of 3 whole steps is lost to idle time, unoverlapped copies and exposed communication" in said
    assert "(threshold 10 %)." in said
    assert "close to the threshold" not in said


@pytest.mark.parametrize("lost_us", [90, 110])
def test_a_verdict_near_the_threshold_is_called_close(lost_us: int) -> None:
    assert "This is close to the threshold of 10 %." in _said(_judged(lost_us)).replace(" %:", " %.")


@pytest.mark.parametrize(
    ("total", "whole", "words"),
    [
        (5.0, 9.0, "This is close to the threshold of 10 %: 5.0 % of 3 whole steps, and 9.0 % from first to last"),
        (
            5.0,
            14.1,
            "From first to last device activity 14.1 % is lost: what lies outside of 3 whole steps is not",
        ),
        (5.0, 14.0, "This is close to the threshold of 10 %: 5.0 % of"),
        (6.0, 40.0, "This is close to the threshold of 10 %: 6.0 % of"),
        (5.9, 40.0, "From first to last device activity 40.0 % is lost"),
        (9.5, 9.51, "This is close to the threshold of 10 %."),
    ],
)
def test_what_lies_outside_of_the_steps_is_reported_where_it_decides_otherwise(
    total: float, whole: float, words: str
) -> None:
    """Four points, twice the two at which a verdict is close."""
    base = _judged(50)
    found = replace(base, lost={"launch_bound": total}, whole_lost_pct=whole, at_border=True)
    assert words in _said(found)


def test_a_second_cause_is_named_with_both_shares() -> None:
    said = _said(_judged(300, {"launch": 0.55, "sync": 0.45}))
    assert "are within 5 percentage points (16.5 % and 13.5 %): check both causes." in said


@pytest.mark.parametrize(("one_off", "is_mentioned"), [(1.0, True), (0.99, False)])
def test_one_off_work_is_mentioned_from_a_percent_on(one_off: float, is_mentioned: bool) -> None:
    said = _said(replace(_judged(300), one_off_pct=one_off))
    assert (f"One-off work ({one_off:.1f} %) is not counted." in said) == is_mentioned
    assert ("without one-off work." in said) == is_mentioned


def test_one_step_is_no_average() -> None:
    base = _judged(300)
    assert base.timeline is not None
    one = replace(base.timeline, counted=1, bounds=base.timeline.bounds[[0, -1]])
    assert "The step takes 3.00 ms." in _said(replace(base, timeline=one))


@pytest.mark.parametrize(("launching", "off"), [(0.49, True), (0.5, False)])
def test_threads_off_the_cpu_name_the_idle_time_where_they_are_most_of_it(launching: float, off: bool) -> None:
    found = _judged(
        300, {"host": launching, "preempted": (1 - launching) * 0.6, "sleeping": (1 - launching) * 0.4}
    )
    assert main_off_cpu_cause(found) == ("preempted" if off else None)
    assert main_off_cpu_cause(_judged(300)) is None
    assert ("a launching thread off the CPU" in _said(found)) == off


def test_idle_time_is_reported_by_its_causes() -> None:
    said = _said(_judged(300, {"host": 0.6, "os_wait": 0.4}))
    assert (
        "Parts of these 30.0 %: 18.0 % the host did something else; 12.0 % the host waited in the C library."
        in said
    )
    said = _said(_judged(300, {"host": 0.98, "os_wait": 0.02}))
    assert "In these 30.0 % the host did something else." in said
    assert "these 30.0 %" not in _said(_judged(300, {"launch": 0.6, "host": 0.4}))


def test_without_evidence_the_advice_is_a_better_capture() -> None:
    found = _judged(300, {"capture": 1.0})
    assert _said(found).startswith("unknown: 30.0 % of 3 whole steps is one-off work")
    assert "llmtop capture --steps 5" in _said(found)
    assert "nvtxRangePush" in _said(found, plain=True)
    assert "Each kernel ran once" in _said(found, once=True)
    nothing = verdict_sentence(judge([], []), STEPS, Tables().trace(), {}, on_cpu="It computes on the CPU.")
    assert nothing == "unknown: no GPU activity recorded: no verdict. It computes on the CPU."
    assert "jax.profiler" in good_capture("JAX", plain=False)
    assert "torch_xla" in good_capture("torch_xla", plain=False)


def test_a_verdict_on_a_part_of_the_kernels_is_not_reliable() -> None:
    found = _judged(300)
    assert found.timeline is not None
    missing = {PID: UnrecordedKernels(PID, 200, 50, (1,))}
    said = verdict_sentence(found, STEPS, found.timeline.trace, missing)
    assert said.endswith("Do not rely on this verdict: 25.0 % of the launched kernels are not in the capture, and "
                         "the time that they took is counted as idle.")  # fmt: skip
    assert "Do not rely" not in verdict_sentence(found, STEPS, found.timeline.trace, {7: missing[PID]})


def test_the_straggler_leads_the_sentence() -> None:
    assert _said(_judged(300), straggler="Rank 1 is late.").startswith("straggler: Rank 1 is late. Of that rank: ")


@pytest.mark.parametrize(
    ("captured", "words"),
    [
        (1.009, "the profiler added no measurable time."),
        (1.02, "the profiler added 20.0 ms (2.0 %), which is not counted."),
        (1.5, "the profiler added 500 ms (50.0 %), which is not counted."),
    ],
)
def test_what_the_profiler_added_is_reported(captured: float, words: str) -> None:
    correction = Correction(
        undisturbed_seconds=1.0, captured_seconds=captured, device_seconds=0.7, busy_pct=70.0, lost_pct={}
    )
    said = _said(replace(_judged(300), correction=correction))
    assert "A step takes 1.00 s without the profiler, and the GPU works for 700 ms of it (70.0 %); " in said
    assert words in said
    assert "of the step without the profiler is lost" in said
    assert "on average" not in said


@pytest.mark.parametrize(
    ("devices", "files", "where"),
    [
        ((0,), {}, ""),
        ((0, 1), {}, " of GPU 0"),
        ((0,), {PID: 0, 7: 1}, " of GPU 0 (pid 100)"),
        ((0, 1), {PID: 0, 7: 1}, " of GPU 0"),
    ],
)
def test_the_device_is_named_where_there_are_several(
    devices: tuple[int, ...], files: dict[int, int], where: str
) -> None:
    found = _judged(300)
    made = Tables()
    for device in devices:
        made.op(0, 1, device=device)
    said = verdict_sentence(found, STEPS, made.trace(file_of=files), {})
    assert f"30.0 % of 3 whole steps{where} is lost" in said


def test_what_lies_in_no_step_is_reported_with_its_length() -> None:
    timeline = losing_timeline(100 * US)
    steps = steps_at(0, STEP_NS, 2 * STEP_NS, 3 * STEP_NS)
    made = Tables()
    made.call("c", -500 * US, 4 * STEP_NS)
    window = made.trace()
    assert left_out_text(steps, timeline, window) == "the first 500 µs and the last 1.00 ms (no whole step)"
    cut = replace(steps, cut_before=2, cut_after=1)
    assert (
        left_out_text(cut, timeline, window)
        == "the first 500 µs (2 extra steps), and the last 1.00 ms (1 extra step)"
    )
    after = replace(steps, cut_after=1)
    assert (
        left_out_text(after, timeline, window)
        == "the first 500 µs (no whole step), and the last 1.00 ms (1 extra step)"
    )
    slow = replace(timeline, slow_first_ns=500 * US)
    assert left_out_text(steps, slow, window) == (
        "the last 1.00 ms (no whole step), and the first whole step (slowed down by the start of the capture)"
    )
    within = Tables()
    within.call("c", 0, 3 * STEP_NS)
    assert left_out_text(steps, None, within.trace()) == ""
    assert left_out_text(steps, None, window) == "the first 500 µs and the last 1.00 ms (no whole step)"


def _notes(made: Tables, **fields: Any) -> list[str]:
    trace = made.trace(**fields)
    if not len(trace.ops):
        return capture_notes(trace, [], {})
    steps = steps_at(0)
    return capture_notes(trace, [only_timeline(trace, steps)], {PID: steps})


def test_notes_name_what_a_capture_lacks() -> None:
    made = Tables()
    assert _notes(made, notes=["first"]) == [
        "first",
        "the capture has no device activity: no kernel, copy or memset is in it",
    ]
    made.op(0, 10, "", kind=model.MEMCPY)
    assert _notes(made)[:2] == [
        "the capture has copies or memsets but no kernel",
        "the capture has no CUDA calls of the host: what caused a gap cannot be said",
    ]
    made.op(20, 30, "", kind=model.GRAPH)
    made.call("c", 0, 1, correlation=5)
    made.op(40, 50, correlation=5)
    found = _notes(made)
    assert found[0] == "2 of 3 pieces of device work have no launching call in the capture"
    assert found[1].startswith("GPU 0, pid 100: 1 CUDA graph traced as a whole")
    assert found[2] == (
        "GPU 0, pid 100: no whole step on the device (made); its shares are of the time from its first to its "
        "last activity"
    )


@pytest.mark.parametrize(("took", "is_noted"), [(11, True), (10, False)])
def test_the_profiler_s_own_time_is_noted_from_a_percent_on(took: int, is_noted: bool) -> None:
    made = Tables()
    made.launched(1, 0, 0, 1000)
    overhead = model.build(model.Table, {"start": [-900, 100], "end": [-100, 100 + took]})
    notes = _notes(made, overhead=overhead)
    assert ("the profiler itself took 1.1 % of the capture's time" in notes) == is_noted


@pytest.mark.parametrize(("world", "nccl", "is_noted"), [(2, True, True), (1, True, False), (2, False, False)])
def test_a_rank_alone_is_noted(world: int, nccl: bool, is_noted: bool) -> None:
    made = Tables()
    made.launched(1, 0, 0, 1000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if nccl else "gemm")
    notes = _notes(made, ranks=[model.TracedRank(PID, 0, world)])
    assert any(note.startswith(f"this is rank 0 of {world}, alone") for note in notes) == is_noted


def _corrected(lost: dict[LossId, float], before: float | None, after: float | None, **more: Any) -> Correction:
    """Device time of one step of 1 ms; the device works for `1 - lost` of it."""
    timeline = losing_timeline(round(sum(lost.values()) * 10) * US)
    return correct_shares(timeline, lost, more.pop("one_off", 0), UnprofiledStep(before, after, **more))


@pytest.mark.parametrize(
    ("before", "after", "stays", "seconds", "apart"),
    [
        (0.8e-3, 0.8e-3, False, 0.8e-3, 0.0),
        (0.8e-3, None, False, 0.8e-3, None),
        (None, 0.9e-3, True, 0.9e-3, None),
        (0.8e-3, 0.96e-3, False, 0.88e-3, 20.0),
        (0.8e-3, 0.9e-3, True, 0.8e-3, None),  # the profiler that stays makes the later ones longer
        (0.9e-3, 0.8e-3, True, 0.85e-3, 12.5),
        (0.0, 0.8e-3, False, 0.8e-3, None),
    ],
)
def test_the_step_without_the_profiler_is_the_mean_of_those_before_and_after(
    before: float | None, after: float | None, stays: bool, seconds: float, apart: float | None
) -> None:
    found = _corrected({"launch_bound": 30.0}, before, after, stays=stays)
    assert found.reason == ""
    assert found.undisturbed_seconds == pytest.approx(seconds)
    assert found.apart_pct == (None if apart is None else pytest.approx(apart))
    assert found.captured_seconds == pytest.approx(1e-3)
    assert found.device_seconds == pytest.approx(0.7e-3)
    assert found.busy_pct == pytest.approx(100 * 0.7e-3 / seconds)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (None, None, "the step time without the profiler is unknown"),
        (0.0, -1.0, "the step time without the profiler is unknown"),
        (0.75e-3, 0.91e-3, "the steps before and after the capture differ by 21 %"),
        (0.69e-3, None, "a captured step of 1.00 ms with 700 µs of device time is not the step that takes 690 µs"),
        (
            1.21e-3,
            None,
            "a captured step of 1.00 ms with 700 µs of device time is not the step that takes 1.21 ms",
        ),
    ],
)
def test_shares_are_not_corrected_by_another_step(before: float | None, after: float | None, reason: str) -> None:
    found = _corrected({"launch_bound": 30.0}, before, after)
    assert found.reason.startswith(reason)
    assert found.lost_pct == {}


@pytest.mark.parametrize(
    ("lost", "before", "left"),
    [
        # The profiler's 0.1 ms are of launching first.
        ({"launch_bound": 20.0, "sync_bound": 10.0}, 0.9e-3, {"launch_bound": 0.1, "sync_bound": 0.1}),
        # Then of what else the host was late with, each in the same part: 0.2 - 0.1 of 0.3 are left.
        (
            {"launch_bound": 10.0, "sync_bound": 10.0, "input_bound": 20.0},
            0.7e-3,
            {"sync_bound": 1 / 30, "input_bound": 2 / 30},
        ),
        ({"idle": 20.0, "communication_bound": 10.0}, 0.9e-3, {"idle": 0.1, "communication_bound": 0.1}),
        # Then of gaps between kernels, at last of all.
        ({"kernel_gaps": 10.0, "h2d_bound": 20.0}, 0.95e-3, {"kernel_gaps": 0.05, "h2d_bound": 0.2}),
        ({"kernel_gaps": 10.0, "h2d_bound": 20.0}, 0.8e-3, {"h2d_bound": 0.1}),
        # A longer step without it was idle for longer.
        ({"launch_bound": 20.0}, 1.1e-3, {"launch_bound": 0.2, "idle": 0.1}),
        ({"idle": 20.0}, 1.1e-3, {"idle": 0.3}),
    ],
)
def test_what_the_profiler_added_is_taken_from_what_it_slows_down(
    lost: dict[LossId, float], before: float, left: dict[str, float]
) -> None:
    """`left` is in ms."""
    found = _corrected(lost, before, None)
    assert found.reason == ""
    assert found.lost_pct == {kind: pytest.approx(100 * ms * 1e-3 / before, abs=0.01) for kind, ms in left.items()}
    assert list(found.lost_pct.values()) == sorted(found.lost_pct.values(), reverse=True)


def test_one_off_work_is_no_part_of_the_captured_step() -> None:
    found = _corrected({"launch_bound": 30.0}, 0.8e-3, None, one_off=300 * US)
    assert found.captured_seconds == pytest.approx(0.9e-3)


def _waiting(waited: int, before: int) -> tuple[int, str]:
    """A capture without steps: work, a gap of 100 us (`waited` us of it depend on earlier work), and more work."""
    made = Tables()
    made.op(0, before)
    made.op(before + 100 * US, before + 100 * US + 800 * US)
    timeline = only_timeline(made.trace(), steps_at(0))
    (found,) = without_start_up([timeline], [gaps_of(timeline, dependency=waited / 100)])
    return found.begin_ns, found.begins_after


@pytest.mark.parametrize(
    ("waited", "before", "left_out"),
    [(51, 8 * US, True), (50, 8 * US, False), (100, 8080, True), (100, 8100, False)],
)
def test_a_wait_for_work_from_before_the_capture_is_left_out(waited: int, before: int, left_out: bool) -> None:
    """It is most of the gap, and a hundredth of the work may lie before it: of 800 us 8 and a little."""
    begin, words = _waiting(waited, before)
    assert begin == (before + 100 * US if left_out else 0)
    assert words.startswith("a wait of 108 µs for work from before") == left_out
