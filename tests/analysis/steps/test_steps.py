"""Which ranges are steps and phases, and what part of a capture the shares are taken over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.analysis.steps.step_finder import find_phases, find_steps, select_steps
from tests.support.traces import MAIN, Capture, steady


def _found(capture: Capture, folder: Path, process: int = MAIN) -> tuple[int, str, list[float]]:
    steps = find_steps(capture.trace(folder), process)
    return len(steps), steps.found_by, [round(seconds * 1e6) for seconds in steps.seconds]


@pytest.mark.parametrize(
    "pattern",
    ["step", "Step {}", "train_step", "training_step {}", "ProfilerStep#{}", "iteration {}", "iter_{}", "batch {}",
     "train step", "[pl][profile]run_training_batch"],
)  # fmt: skip
def test_ranges_named_like_a_step(tmp_path: Path, pattern: str) -> None:
    capture = Capture()
    for step in range(5):
        capture.range(pattern.format(step), step * 100, step * 100 + 100)
        capture.range("forward", step * 100 + 10, step * 100 + 40)
    count, found_by, seconds = _found(capture, tmp_path)
    assert (count, seconds) == (5, [100] * 5), found_by


def test_each_entry_of_a_phase_is_known_by_where_it_begins(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(3):
        capture.range(f"step {step}", step * 100, step * 100 + 100)
        capture.range("forward", step * 100 + 10, step * 100 + 40)
        capture.range("forward", step * 100 + 40, step * 100 + 45)
    trace = capture.trace(tmp_path)
    (phase,) = find_phases(trace, find_steps(trace, MAIN))
    first = phase.starts[0]
    assert [round((start - first) / 1000) for start in phase.starts.tolist()] == [0, 30, 100, 130, 200, 230]
    assert round(phase.spans.total / 1000) == 3 * 35


def test_of_steps_that_are_chosen_the_last_is_closed_only_where_none_is_left_out_after_it(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(5):
        capture.range(f"step {step}", step * 100, step * 100 + 100)
    steps = replace(find_steps(capture.trace(tmp_path), MAIN), closed=True)
    chosen = {wanted: select_steps(steps, wanted) for wanted in (3, (2, 5), (1, 4))}
    assert {wanted: one.closed for wanted, one in chosen.items()} == {3: False, (2, 5): True, (1, 4): False}
    counts = {wanted: (len(one), one.cut_before, one.cut_after) for wanted, one in chosen.items()}
    assert counts == {3: (3, 0, 2), (2, 5): (3, 2, 0), (1, 4): (3, 1, 1)}


@pytest.mark.parametrize("name", ["stepper motor", "loss_step_scheduler", "footstep count", "forward"])
def test_other_names_are_not_taken_for_steps(tmp_path: Path, name: str) -> None:
    capture = Capture()
    capture.range(name, 0, 10)
    capture.range(name, 20, 30)
    assert _found(capture, tmp_path)[0] == 0


def test_what_lies_between_two_step_ranges_belongs_to_a_step(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(5):
        capture.range("dataload", step * 100, step * 100 + 40)
        capture.range("step", step * 100 + 40, step * 100 + 100)
    count, found_by, seconds = _found(capture, tmp_path)
    assert (count, seconds) == (4, [100] * 4), "the loader outside of the range is a part of what a step costs"
    assert "to the next" in found_by


def test_the_outer_of_two_kinds_of_step_marks_the_step(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(4):
        capture.range(f"ProfilerStep#{step}", step * 100, step * 100 + 100)
        capture.range("train_step", step * 100 + 30, step * 100 + 90)
    assert "ProfilerStep" in _found(capture, tmp_path)[1]


def test_without_step_ranges_the_optimizer_ends_a_step(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(5):
        for micro in range(3):
            capture.range("forward", step * 100 + micro * 20, step * 100 + micro * 20 + 9)
            capture.range("backward", step * 100 + micro * 20 + 10, step * 100 + micro * 20 + 19)
        capture.range("Optimizer.step#AdamW.step", step * 100 + 80, step * 100 + 95)
    count, found_by, seconds = _found(capture, tmp_path)
    assert (count, seconds) == (4, [100] * 4), "gradient accumulation is one step"
    assert "Optimizer.step#AdamW.step" in found_by


def test_without_those_the_loader_begins_a_step(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(5):
        capture.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", step * 100, step * 100 + 10)
        capture.range("work", step * 100 + 10, step * 100 + 90)
    count, found_by, _ = _found(capture, tmp_path)
    assert count == 4
    assert "DataLoader" in found_by


def test_else_the_most_regular_of_the_outermost_ranges(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(6):
        capture.range("alpha", step * 100, step * 100 + 90)
        capture.range("beta", step * 100 + 5, step * 100 + 20)
    for begin in (3, 350, 380):
        capture.range("gamma", begin * 10_000, begin * 10_000 + 5)
    count, found_by, _ = _found(capture, tmp_path)
    assert count == 5
    assert "'alpha'" in found_by


def test_ranges_of_libraries_are_neither_steps_nor_phases(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(5):
        capture.range("ncclAllReduce", step * 100, step * 100 + 10)
    count, found_by, _ = _found(capture, tmp_path)
    assert count == 0
    assert "none of the ranges" in found_by


def test_no_range_at_all_is_said(tmp_path: Path) -> None:
    capture = Capture()
    for begin in range(0, 5000, 1000):
        capture.kernel(begin + 200, begin + 1000, launched=begin, took=190)
    report = analyze_trace(capture.trace(tmp_path))
    assert report.steps.count == 0
    assert "no ranges" in report.steps.found_by
    assert any("no whole step" in note for note in report.notes)
    assert report.verdict == "launch_bound", "over all device activity"


def test_work_launched_before_the_capture_does_not_look_like_idle_time(tmp_path: Path) -> None:
    # The host runs a whole step ahead; the kernels of the step before the capture are not in it.
    report = analyze_trace(steady(6).trace(tmp_path))
    device = report.devices[0]
    assert device.idle_pct == pytest.approx(1.0, abs=0.1)
    assert device.steps == 5
    assert report.verdict == "gpu_bound"
    assert report.steps.clock == "device"


def test_a_first_step_slowed_down_by_the_capture_s_start_is_left_out(tmp_path: Path) -> None:
    capture = Capture()
    begin = 0.0
    for step in range(6):
        length = 2000.0 if step == 0 else 1000.0
        capture.range("step", begin, begin + length)
        capture.kernel(begin + 20, begin + 980, launched=begin + 10)
        begin += length
    report = analyze_trace(capture.trace(tmp_path))
    assert report.verdict == "gpu_bound"
    assert any("first whole step is left out" in note for note in report.notes)
    assert report.at_border, "over all that was recorded more is lost"


def test_phases_leave_the_slow_first_step_out_as_the_shares_do(tmp_path: Path) -> None:
    capture = Capture()
    begin = 0.0
    for step in range(6):
        length = 20_000.0 if step == 0 else 1000.0
        capture.range("step", begin, begin + length)
        capture.range("forward", begin + 2, begin + length - 100)
        capture.kernel(begin + 20, begin + 980, launched=begin + 10)
        begin += length
    report = analyze_trace(capture.trace(tmp_path))
    assert any("first whole step is left out" in note for note in report.notes)
    assert {row.name: round(row.host_seconds * 1e6) for row in report.phases} == {"forward": 898, "outside": 102}
    assert all((row.gpu_idle_seconds or 0.0) < 0.001 for row in report.phases), "no longer than a step"


def test_a_range_that_covers_nothing_of_what_the_device_does_is_no_step(tmp_path: Path) -> None:
    capture = Capture()
    capture.range("ProfilerStep#0", 0, 36)
    capture.call("cudaDeviceSynchronize", 40, 100_000)
    for kernel in range(100):
        capture.kernel(100 + kernel * 1000, 1090 + kernel * 1000)
    report = analyze_trace(capture.trace(tmp_path))
    assert report.steps.count == 0
    assert report.steps.found_by == "the range 'ProfilerStep' covers too little of the device's activity"
    assert report.devices[0].steps == 0
    assert "36" not in report.summary


def test_a_range_around_all_that_the_device_does_stays_a_step(tmp_path: Path) -> None:
    capture = Capture()
    capture.range("ProfilerStep#0", 0, 110_000)
    for kernel in range(100):
        capture.kernel(100 + kernel * 1000, 1090 + kernel * 1000)
    assert analyze_trace(capture.trace(tmp_path)).steps.count == 1


def test_ranges_of_pytorch_alone_are_named_as_such(tmp_path: Path) -> None:
    capture = Capture()
    capture.kernel(100, 900, launched=50)
    assert analyze_trace(capture.trace(tmp_path)).steps.found_by == "the capture has no ranges"
    capture.operator("aten::mm", 40, 60)
    (tmp_path / "operators").mkdir()
    found_by = analyze_trace(capture.chrome_trace(tmp_path / "operators")).steps.found_by
    assert found_by == "the capture has no ranges besides PyTorch's own"


def test_a_slow_step_in_the_middle_is_an_outlier(tmp_path: Path) -> None:
    capture = Capture()
    begin = 0.0
    for step in range(10):
        length = 2500.0 if step == 6 else 1000.0
        capture.range("step", begin, begin + length)
        capture.kernel(begin + 10, begin + length - 10, launched=begin + 2)
        begin += length
    report = analyze_trace(capture.trace(tmp_path))
    assert report.steps.outliers == (6,)
    assert any(finding.id == "unsteady_steps" for finding in report.findings)
    assert report.steps.seconds_max == pytest.approx(0.0025, rel=0.01)


def test_phases_nest_and_carry_their_parent_s_name(tmp_path: Path) -> None:
    capture = Capture()
    for begin in range(0, 5000, 1000):
        capture.range("step", begin, begin + 1000)
        capture.range("forward", begin + 10, begin + 400)
        capture.range("attention", begin + 20, begin + 120)
        capture.range("attention", begin + 200, begin + 300)
        capture.range("backward", begin + 410, begin + 900)
        capture.range("attention", begin + 420, begin + 520)
        capture.kernel(begin + 30, begin + 130, launched=begin + 25)
        capture.kernel(begin + 500, begin + 900, launched=begin + 450)
    report = analyze_trace(capture.trace(tmp_path))
    rows = {row.name: row for row in report.phases}
    assert set(rows) == {"forward", "forward/attention", "backward", "backward/attention", "outside"}
    assert rows["outside"].host_seconds == pytest.approx(120e-6)
    assert rows["outside"].share_pct == pytest.approx(12.0)
    assert rows["forward/attention"].host_seconds == pytest.approx(200e-6)
    assert rows["forward/attention"].count_per_step == 2
    assert rows["forward"].gpu_seconds == pytest.approx(100e-6)
    assert rows["backward/attention"].gpu_seconds == pytest.approx(400e-6)
    assert rows["backward"].share_pct == pytest.approx(49.0)


def test_device_time_of_another_thread_s_launches_counts_for_the_phase(tmp_path: Path) -> None:
    capture = Capture()
    for begin in range(0, 5000, 1000):
        capture.range("step", begin, begin + 1000)
        capture.range("backward", begin + 100, begin + 900)
        # autograd launches from a thread of its own
        capture.kernel(begin + 200, begin + 950, launched=begin + 150, tid=777)
    report = analyze_trace(capture.trace(tmp_path))
    assert report.phases[0].gpu_seconds == pytest.approx(750e-6)


def test_the_figures_can_be_cut_to_some_steps(tmp_path: Path) -> None:
    trace = steady(12).trace(tmp_path)
    assert analyze_trace(trace).steps.count == 11
    assert analyze_trace(trace, steps=4).steps.count == 4
    assert analyze_trace(trace, steps=(2, 5)).steps.count == 3
    assert analyze_trace(trace, steps=100).steps.count == 11
