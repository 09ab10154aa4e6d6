"""What is known of the captures from H200s, read anew."""

from __future__ import annotations

import re

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.report.model import Report
from tests.support.data import HEALTHY, KINETO, LAUNCH_BOUND, TWO_GPUS


@pytest.fixture(scope="module")
def healthy() -> Report:
    return analyze(HEALTHY)


@pytest.fixture(scope="module")
def launch_bound() -> Report:
    return analyze(LAUNCH_BOUND)


@pytest.fixture(scope="module")
def two_gpus() -> Report:
    return analyze(TWO_GPUS)


@pytest.fixture(scope="module")
def kineto() -> Report:
    return analyze(KINETO)


def test_a_healthy_training_is_gpu_bound_without_a_warning(healthy: Report) -> None:
    (device,) = healthy.devices
    assert device.busy_pct == pytest.approx(98.6, abs=0.15)
    assert healthy.verdict == "gpu_bound"
    assert not healthy.at_border
    assert all(finding.severity == "info" for finding in healthy.findings)


def test_the_host_s_clock_and_the_gpu_s_are_told_apart(healthy: Report) -> None:
    phases = {phase.name: phase for phase in healthy.phases}
    assert list(phases) == ["dataload", "forward", "backward", "optimizer", "outside"], "in the order of a step"
    assert sum(phase.share_pct or 0 for phase in phases.values()) == pytest.approx(100)
    # The loader waits for the GPU: 88 % of the step by the host's clock, nothing on the GPU, which is busy then.
    assert (phases["dataload"].share_pct or 0) > 85
    assert (phases["dataload"].gpu_share_pct or 0) < 0.1
    assert (phases["dataload"].gpu_idle_seconds or 0) < 0.002
    assert sum(phase.gpu_share_pct or 0 for phase in phases.values()) == pytest.approx(95, abs=5)


def test_launch_bound(launch_bound: Report) -> None:
    (device,) = launch_bound.devices
    assert device.busy_pct == pytest.approx(9.4, abs=0.15)
    assert device.kernels == 63474
    assert device.kernels_under_10us_pct == pytest.approx(99.8, abs=0.05)
    assert device.kernel_median_us == pytest.approx(1.2, abs=0.05)
    assert launch_bound.verdict == "launch_bound"
    assert launch_bound.window_seconds == pytest.approx(1.06, abs=0.01)
    call = next(row for row in launch_bound.api if row.name == "cudaLaunchKernel")
    assert call.seconds == pytest.approx(0.269, abs=0.001)
    assert launch_bound.findings[0].id == "launch_bound"
    assert launch_bound.findings[0].severity == "critical"


def test_gpu_metrics_are_read_where_they_were_recorded(launch_bound: Report, healthy: Report) -> None:
    metrics = {metric.name: metric for metric in launch_bound.metrics}
    assert metrics["sm_active"].mean_pct == pytest.approx(1.6, abs=0.1)
    assert len(metrics["dram_read"].values_pct) == 120
    assert healthy.metrics == ()


def test_two_gpus_overlap_their_nccl(two_gpus: Report) -> None:
    assert [device.device for device in two_gpus.devices] == [0, 1]
    for device in two_gpus.devices:
        assert device.nccl_pct == pytest.approx(25, abs=2)
        assert device.nccl_exposed_pct is not None
        assert device.nccl_exposed_pct < 2
    assert two_gpus.verdict == "gpu_bound"
    assert all(finding.severity == "info" for finding in two_gpus.findings)
    assert {row.name for row in two_gpus.collectives} == {"AllReduce"}


def test_the_rank_that_waits_least_is_judged(two_gpus: Report) -> None:
    judged = [device for device in two_gpus.devices if device.judged]
    assert len(judged) == 1
    assert judged[0].nccl_exposed_pct == min(device.nccl_exposed_pct or 0 for device in two_gpus.devices)


def test_a_kineto_capture_at_the_border_says_so(kineto: Report) -> None:
    (device,) = kineto.devices
    assert device.busy_pct == pytest.approx(90.3, abs=0.05)
    assert kineto.at_border
    assert "threshold" in kineto.summary
    assert "9.7 %" in kineto.summary
    assert kineto.verdict == "gpu_bound"
    assert any("slowed down by the start of the capture" in note for note in kineto.notes)


def test_steps_are_cut_out_and_what_is_left_out_is_said(healthy: Report, kineto: Report) -> None:
    assert healthy.steps.count == 7
    assert "optimizer" in healthy.steps.found_by
    assert "(no whole step)" in healthy.steps.left_out
    assert healthy.steps.seconds_p50 == pytest.approx(0.1127, abs=0.001)
    assert "Optimizer.step#AdamW.step" in kineto.steps.found_by


def test_the_verdict_stands_on_fewer_steps(launch_bound: Report) -> None:
    cut = analyze(LAUNCH_BOUND, steps=5)
    assert cut.steps.count <= 5
    assert cut.verdict == launch_bound.verdict
    assert sum(row.count for row in cut.kernels) == 63474, "totals cover the whole file"
    later = analyze(LAUNCH_BOUND, steps=(6, 10))
    assert 0 < later.steps.count <= 4


def test_kernels_are_grouped_and_classed(two_gpus: Report) -> None:
    kinds = {kernel.name: kernel.kind for kernel in two_gpus.kernels}
    assert kinds["ncclDevKernel_AllReduce_Sum_f32_RING_LL"] == "NCCL"
    assert kinds["nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"] == "GEMM"
    assert kinds["layer_norm_grad_input_kernel_vectorized"] == "normalisation"
    assert kinds["vectorized_elementwise_kernel: MulFunctor<float>"] == "elementwise"
    assert kinds["multi_tensor_apply_kernel: FusedAdamMathFunctor<float>"] == "optimizer"
    assert sum(kernel.share_pct for kernel in two_gpus.kernels) == pytest.approx(100)
    for kernel in two_gpus.kernels:
        assert sum(variant.count for variant in kernel.variants) == kernel.count


def test_the_next_command_for_a_hot_kernel_is_exact(launch_bound: Report) -> None:
    hot = next(finding for finding in launch_bound.findings if finding.id == "hot_kernel")
    assert "ncu --set full --clock-control none --target-processes all " in hot.next
    pattern = re.search(r"--kernel-name-base demangled --kernel-name 'regex:([^']*)' ", hot.next)
    assert pattern is not None, "393 launches of that function in a row are of other kernels: a word tells it"
    by_hot = [row for row in launch_bound.kernels if any(re.search(pattern[1], v.name) for v in row.variants)]
    assert [row.name for row in by_hot] == [hot.evidence["kernel"]], "ncu lets no other kernel through"
    assert "--launch-skip 2610 --launch-count 1 " in hot.next, "three steps of 870 launches are skipped"
    assert all("-p 672" not in finding.next for finding in launch_bound.findings), "the process is gone by then"


def test_the_timeline_shows_one_median_step(two_gpus: Report) -> None:
    timeline = two_gpus.timeline
    assert timeline is not None
    assert timeline.seconds == pytest.approx(two_gpus.steps.seconds_p50 or 0, rel=0.02)
    lanes = [row.lane for row in timeline.rows]
    assert lanes.count("gpu") == 2, "work and NCCL"
    assert set(lanes) >= {"gaps", "host", "phases"}
    for row in timeline.rows:
        assert all(
            span.start >= 0 and span.start + span.seconds <= timeline.seconds * 1.0001 for span in row.spans
        )
