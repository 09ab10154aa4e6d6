"""Figures that hold two clocks apart: the host may run ahead of a device, whose steps are then the longer ones."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.report.model import PhaseMean, Report
from llmtop.trace.files.open import open_trace
from tests.support.data import DATA, KINETO
from tests.support.traces import Capture, write_sqlite

PERIOD, STEPS = 1000.0, 6


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the labelled captures, unpacked."""
    folder = tmp_path_factory.mktemp("clocks")
    for part, names in (
        ("tuning", ["kineto-healthy_graph.rank0.json", "nsys-sync_gradients.sqlite"]),
        ("held-out", ["kineto-held_healthy_wide.rank0.json"]),
    ):
        with tarfile.open(DATA / "labelled" / f"{part}.tar.xz") as tar:
            for name in names:
                tar.extract(name, folder)
    return folder


def _ahead(steps: int = STEPS, lag: float = 3.0) -> Capture:
    """A host that needs 1 ms for a step, on a device that needs 4: 30 launches, half of them in the forward."""
    capture = Capture()
    free = 0.0
    for step in range(steps):
        begin = step * PERIOD
        capture.range("step", begin, begin + PERIOD)
        capture.range("forward", begin, begin + 400)
        capture.range("backward", begin + 400, begin + 900)
        for launch in range(30):
            at = begin + 10 + (launch * 20 if launch < 15 else 400 + (launch - 15) * 20)
            start = max(free, at + lag)
            free = start + 4 * PERIOD / 30
            capture.kernel(start, free, launched=at, took=2)
    return capture


def _phases(report: Report) -> dict[str, PhaseMean]:
    return {row.name: row for row in report.phases}


def test_launches_are_counted_by_the_host_s_steps(tmp_path: Path) -> None:
    trace = _ahead().trace(tmp_path)
    assert analyze_trace(trace).devices[0].launches_per_step == 30
    assert analyze_trace(trace, steps=3).devices[0].launches_per_step == 30


def test_a_phase_s_share_of_the_device_is_of_the_device_s_step(tmp_path: Path) -> None:
    report = analyze_trace(_ahead().trace(tmp_path))
    phases = _phases(report)
    assert report.devices[0].step_seconds == pytest.approx(4e-3)
    for name in ("forward", "backward"):
        assert phases[name].gpu_seconds == pytest.approx(2e-3, rel=0.01)
        assert phases[name].gpu_share_pct == pytest.approx(50, abs=0.5)
    assert phases["forward"].host_seconds == pytest.approx(0.4e-3)
    assert phases["forward"].share_pct == pytest.approx(40)
    assert phases["outside"].share_pct == pytest.approx(10)


@pytest.mark.slow("reads all real traces; test_steps and test_calls_a_step read one")
@pytest.mark.parametrize(
    ("name", "launches", "shares"),
    [
        ("kineto-held_healthy_wide.rank0.json", 287, {"backward": 60.0, "forward": 29.3}),
        ("kineto-healthy_graph.rank0.json", 6, {"forward_backward": 91.7, "optimizer": 4.0}),
    ],
)
def test_real_trainings_whose_host_is_far_ahead(
    captures: Path, name: str, launches: int, shares: dict[str, float]
) -> None:
    report = analyze(captures / name)
    assert report.devices[0].launches_per_step == launches
    found = _phases(report)
    for phase, share in shares.items():
        assert found[phase].gpu_share_pct == pytest.approx(share, abs=0.1)
    hot = next(finding for finding in report.findings if finding.id == "hot_kernel")
    if launches == 287:
        assert hot.evidence["launches_per_step"] == 16
        assert "--launch-skip 48 --launch-count 2" in hot.next


def test_idle_time_in_a_phase_is_a_mean_over_the_steps_that_the_phase_is_of(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(5):
        begin = step * PERIOD
        capture.range("step", begin, begin + PERIOD)
        capture.range("dataload", begin + 205, begin + 800)
        capture.kernel(begin + 5, begin + 200, launched=begin + 2, took=2)
        capture.kernel(begin + 800, begin + PERIOD, launched=begin + 795, took=2)
    report = analyze_trace(capture.trace(tmp_path))
    assert report.devices[0].steps == 4, "where the fifth ends on the device is not known"
    assert _phases(report)["dataload"].gpu_idle_seconds == pytest.approx(595e-6)
    finding = report.findings[0]
    assert finding.id == "input_bound"
    assert finding.evidence["gpu_idle_in_phase_ms"] == pytest.approx(finding.saves_at_most_ms, rel=0.02)


def test_one_process_on_two_gpus_has_figures_for_each(tmp_path: Path) -> None:
    capture = _ahead(lag=3.0)
    second = Capture(device=1, correlation=10_000)
    for step in range(STEPS):
        begin = step * PERIOD
        for launch in range(10):
            at = begin + 411 + launch * 20
            second.kernel(at + 3, at + 13, launched=at, took=2)
    second.correlation = 20_000
    second.call("cudaLaunchKernel", 2 * PERIOD + 592, 2 * PERIOD + 593)  # of which nothing was recorded
    capture.ops += second.ops
    capture.calls += second.calls
    report = analyze_trace(capture.trace(tmp_path))
    assert [device.launches_per_step for device in report.devices] == [30, pytest.approx(10 + 1 / 5, abs=0.03)]
    one, other = report.devices
    assert one.launch_api_seconds == pytest.approx(6 * 30 * 2e-6)
    assert other.launch_api_seconds == pytest.approx((6 * 10 + 0.5) * 2e-6)
    rows = {(row.name, row.device): row for row in report.phases}
    assert set(rows) == {(name, device) for name in ("forward", "backward", "outside") for device in (0, 1)}
    assert rows["forward", 1].gpu_seconds == 0
    assert rows["backward", 1].gpu_seconds == pytest.approx(100e-6)
    assert (rows["backward", 1].gpu_idle_seconds or 0) < 0.5e-3, "no longer than the phase"
    assert (rows["backward", 0].gpu_idle_seconds or 0) < 0.01e-3


def test_a_gpu_that_is_only_touched_in_passing_has_no_phases(tmp_path: Path) -> None:
    capture = _ahead()
    touch = Capture(device=1, correlation=10_000)
    touch.kernel(100, 101, launched=90)
    capture.ops += touch.ops
    capture.calls += touch.calls
    assert {row.device for row in analyze_trace(capture.trace(tmp_path)).phases} == {0}


def test_without_launches_that_are_known_a_phase_has_no_device_time(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(5):
        capture.range("step", step * PERIOD, (step + 1) * PERIOD)
        capture.range("forward", step * PERIOD, step * PERIOD + 500)
        capture.kernel(step * PERIOD + 100, step * PERIOD + 900)
    forward = _phases(analyze_trace(capture.trace(tmp_path)))["forward"]
    assert (forward.gpu_seconds, forward.gpu_share_pct) == (None, None), "not 0"
    assert forward.gpu_idle_seconds is not None


def test_what_is_left_out_does_not_count_the_slow_first_step_twice(captures: Path) -> None:
    for path, before in ((KINETO, "the first 78.4 ms"), (captures / "nsys-sync_gradients.sqlite", "3.64 ms")):
        said = analyze(path).steps.left_out
        assert before in said
        assert "and the first whole step (slowed down by the start of the capture)" in said


def test_steps_that_were_not_asked_for_are_said_to_be_that(tmp_path: Path) -> None:
    trace = _ahead(steps=8).trace(tmp_path)
    assert "no whole step" in analyze_trace(trace).steps.left_out
    said = analyze_trace(trace, steps=(1, 4)).steps.left_out
    assert said.count("no whole step") == 0
    assert "(1 extra step)" in said
    assert "(4 extra steps)" in said


def test_a_first_step_that_was_asked_for_is_not_the_start_of_the_capture(tmp_path: Path) -> None:
    capture, begin = Capture(), 0.0
    for step in range(8):
        length = 2000.0 if step in (0, 2) else 1000.0
        capture.range("step", begin, begin + length)
        capture.kernel(begin + 20, begin + length - 20, launched=begin + 10)
        begin += length
    report = analyze_trace(open_trace(write_sqlite(tmp_path / "slow.sqlite", [capture])), steps=(2, 6))
    assert report.steps.count == 4
