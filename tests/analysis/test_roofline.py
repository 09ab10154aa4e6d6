"""Which ceiling the evidence points at, and the balance of the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.analysis.roofline import roofline_text
from llmtop.analysis.verdict import Judgement, judge
from llmtop.hardware.gpu_specs import memory_bytes_per_s, peak
from llmtop.report.device_time import DeviceTimePart, GemmTime, TimeBreakdown
from llmtop.report.model import KernelTime, KernelVariant
from llmtop.trace import model
from tests.support.data import HEALTHY, KINETO, LAUNCH_BOUND
from tests.support.tables import Tables, gaps_of, losing_timeline, only_timeline, steps_at
from tests.support.traces import Capture


def test_matrix_work_points_at_the_tensor_cores() -> None:
    said = analyze(HEALTHY).roofline
    assert "the ceiling is compute" in said
    assert "206 FLOP a byte" in said
    assert "only ncu can tell" in said


def test_a_lost_step_points_at_no_kernel() -> None:
    said = analyze(LAUNCH_BOUND).roofline
    assert "not a kernel's: 90 % of the step is lost" in said
    assert "tensor active 0.9 %" in said


def test_a_trace_without_the_bandwidth_takes_the_datasheet_s() -> None:
    assert "NVIDIA H200 moves 4.8 TB/s" in analyze(KINETO).roofline


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("NVIDIA H200", 4800),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA A800 40GB Active", 1555),
        ("NVIDIA A800 80GB PCIe", 1935),
        ("NVIDIA A800-SXM4-80GB", 2039),
        ("NVIDIA H800", 3350),
        ("NVIDIA H200 NVL", 4800),
        ("NVIDIA GH200 480GB", 4000),
        ("NVIDIA L40S", 864),
        ("NVIDIA L4", 300),
        ("NVIDIA B200", 8000),
    ],
)
def test_bandwidth_by_name(name: str, gb_per_s: float) -> None:
    assert memory_bytes_per_s(name) == gb_per_s * 1e9
    assert peak(name, "bf16") is not None


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H800 PCIe",
        "NVIDIA H100 64GB HBM2",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA H20-3e",
        "Some GPU",
        "",
    ],
)
def test_an_unknown_gpu_has_no_bandwidth(name: str) -> None:
    assert memory_bytes_per_s(name) is None


@pytest.mark.parametrize(
    ("kernel", "kind", "words"),
    [
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
            "c10::BFloat16",
            "990 TFLOP/s in bf16: its balance is 295 FLOP",
        ),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
            "c10::BFloat16",
            "n/3, so one of 886 and more can be limited by",
        ),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n", "float", "GEMM of n about n/6, so one of 886 and more"),
        ("ampere_sgemm_128x64_tn", "float", "67 TFLOP/s in fp32: its balance is 20 FLOP"),
        ("ampere_sgemm_128x64_tn", "float", "so one of 120 and more can be limited by arithmetic"),
    ],
)
def test_the_balance_is_of_the_type_that_products_run_in(
    tmp_path: Path, kernel: str, kind: str, words: str
) -> None:
    made = Capture()
    for step in range(6):
        at = step * 1_000.0
        made.range("step", at, at + 1_000)
        shapes = {"Input Dims": [[4096, 1024], [1024, 2048]], "Input type": [kind] * 2}
        made.operator("aten::mm", at + 1, at + 9, **shapes)
        made.kernel(at + 10, at + 990, launched=at + 2, name=kernel)
    gpu = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]}
    said = " ".join(analyze_trace(made.chrome_trace(tmp_path, **gpu)).roofline.split())
    assert words in said


SGEMM, BF16 = "ampere_sgemm_128x64_nn", "ampere_bf16_s16816gemm_bf16_128x128_nn"
REDUCE, ADD = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "vectorized_elementwise_kernel<CUDAFunctor_add<float>>"


def _kernels(**seconds: float) -> tuple[KernelTime, ...]:
    """Kernels with so many seconds: `fp32`, `bf16`, `short` (fp32, in calls of 1 us), `add`, `nccl`, `other`."""
    names = {"fp32": SGEMM, "short": SGEMM, "bf16": BF16, "add": ADD, "nccl": REDUCE, "other": "my_kernel"}
    made = []
    for key, took in seconds.items():
        count = round(took / 1e-6) if key == "short" else 1
        variants = (KernelVariant(name=names[key], count=count, seconds=took),)
        made.append(
            KernelTime(
                name=key, kind=key, count=1, seconds=took, share_pct=1.0, mean_us=1.0, min_us=1.0, max_us=1.0,
                variants=variants,
            )
        )  # fmt: skip
    return tuple(made)


def _gpu_bound(lost: int = 0) -> Judgement:
    timeline = losing_timeline(lost)
    return judge([timeline], [gaps_of(timeline, launch=1.0)])


def _said(
    kernels: tuple[KernelTime, ...],
    gemms: tuple[GemmTime, ...] = (),
    breakdown: TimeBreakdown | None = None,
    judgement: Judgement | None = None,
) -> str:
    found = judgement or _gpu_bound()
    assert found.timeline is not None
    return roofline_text(found.timeline.trace, found, kernels, gemms, breakdown)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ({"bf16": 6, "add": 4}, "60 % is matrix work, so the ceiling is compute (tensor cores)"),
        ({"bf16": 59, "add": 41}, "59 % is matrix work, the rest moves data: both compute and memory bandwidth"),
        ({"bf16": 36, "add": 64}, "36 % is matrix work, the rest moves data"),
        ({"bf16": 35, "add": 65}, "Only 35 % is matrix work, so the ceiling is memory bandwidth"),
        ({"bf16": 5, "other": 5}, "50 % is kernels of unknown kind, so their ceiling is unknown"),
        ({"bf16": 51, "other": 49}, "51 % is matrix work, the rest"),
        ({"bf16": 3, "add": 1, "nccl": 96}, "75 % is matrix work"),
        ({"fp32": 4, "bf16": 4}, "and 50 % of that in full fp32, so the ceiling is compute without tensor cores"),
        ({"fp32": 49, "bf16": 51}, "so the ceiling is compute (tensor cores): precision and shapes."),
        ({"short": 6, "fp32": 4}, "most of it in calls of under 10 µs, which mostly start and end"),
        ({"short": 59, "fp32": 41}, "and 100 % of that in full fp32"),
    ],
)
def test_the_ceiling_follows_from_what_the_kernels_compute(seconds: dict[str, float], words: str) -> None:
    assert words in _said(_kernels(**seconds))


def test_kernel_time_is_divided_by_kind_without_communication() -> None:
    said = _said(_kernels(bf16=6, add=3, other=1, nccl=90))
    assert said.startswith("Kernel time without communication: GEMM 60 %, elementwise 30 %, other 10 %. ")


def test_there_is_no_ceiling_without_kernels_that_compute() -> None:
    assert _said(()) == ""
    assert _said(_kernels(nccl=5)) == ""
    made = Tables()
    made.op(0, 900, "", kind=model.GRAPH)
    graph = only_timeline(made.trace(), steps_at(0))
    assert _said(_kernels(bf16=5), judgement=judge([graph], [gaps_of(graph)])) == ""


def test_a_loss_is_the_ceiling_where_there_is_one() -> None:
    said = _said(_kernels(bf16=5), judgement=_gpu_bound(300_000))
    assert "The ceiling here is not a kernel's: 30 % of the step is lost" in said


def _gemm(seconds: float, limit: str | None, roof: float | None = 50.0) -> GemmTime:
    return GemmTime(
        operator="aten::mm", m=64, n=256, k=128, batch=1, dtype="bf16", calls=1, seconds=seconds, mean_us=1.0,
        flops=1, bytes=1, tflops_per_s=123.4, tb_per_s=1.0, peak_pct=12.0, bandwidth_pct=1.0, flops_per_byte=1.0,
        roof_pct=roof, limit=limit, kernel="k",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("memory", "compute", "limited"), [(6.0, 4.0, True), (5.9, 4.1, False), (0.0, 4.0, False), (1.0, 0.0, True)]
)
def test_products_of_few_rows_are_limited_by_memory_where_most_are(
    memory: float, compute: float, limited: bool
) -> None:
    said = _said(_kernels(bf16=9), (_gemm(memory, "memory"), _gemm(compute, "compute"), _gemm(99.0, None)))
    assert ("reading them takes longer than computing: the ceiling is memory bandwidth." in said) == limited


@pytest.mark.parametrize(("share", "limited"), [(60.0, True), (59.9, False)])
def test_decode_of_most_of_the_time_is_limited_by_memory(share: float, limited: bool) -> None:
    stages = tuple(
        DeviceTimePart(name=name, seconds=1.0, share_pct=part)
        for name, part in (("prefill", 99.0), ("decode", share))
    )
    said = _said(_kernels(bf16=9), breakdown=TimeBreakdown(stages=stages))
    assert ("most of it decode, in which a product reads its weights for few tokens" in said) == limited


def test_rates_of_products_are_told_beside_their_roof() -> None:
    rows = (_gemm(3.0, "compute", 60.0), _gemm(1.0, "compute", 59.9), _gemm(9.0, None, None))
    said = _said(_kernels(bf16=9), rows)
    assert "75 % of the time of the matrix products reaches 60 % of its roof or more" in said
    assert "aten::mm of 64x256x128 in bf16, does 123.4 TFLOP/s, 12 % of the peak." in said
    assert "At which roof any other kernel is, only ncu can tell" in said
    assert "By their shapes" not in _said(_kernels(bf16=9), (_gemm(9.0, None, None),))


@pytest.mark.parametrize(
    ("breakdown", "tool", "advice"),
    [
        (None, "ncu can tell", True),
        (TimeBreakdown(vendor="NVIDIA"), "ncu can tell", True),
        (TimeBreakdown(vendor="AMD"), "rocprof-compute can tell", True),
        (TimeBreakdown(vendor="CPU"), None, False),
        (TimeBreakdown(vendor="Google"), None, False),
        (TimeBreakdown(framework="JAX"), "ncu can tell", False),
        (TimeBreakdown(plain_program=True), "ncu can tell", False),
    ],
)
def test_what_only_counters_show_is_told_with_their_tool(
    breakdown: TimeBreakdown | None, tool: str | None, advice: bool
) -> None:
    said = _said(_kernels(bf16=9), breakdown=breakdown)
    assert ("can tell" in said) == (tool is not None)
    assert tool is None or f"At which roof a kernel is, only {tool}" in said
    assert ("Recorded with shapes" in said) == advice
    assert "Recorded with shapes" not in _said(_kernels(bf16=9), (_gemm(1.0, "compute"),), breakdown)


def test_metrics_are_means_of_this_device_without_missing_samples() -> None:
    found = _gpu_bound()
    assert found.timeline is not None
    missing = float("nan")

    def metric(device: int, name: str, *values: float) -> model.SampledMetric:
        return model.SampledMetric(device, name, 0, 1.0, np.array(values))

    trace = found.timeline.trace
    trace.metrics = [
        metric(0, "sm_active", 10.0, missing, 40.0),
        metric(1, "tensor_active", 5.0),
        metric(0, "dram_write", missing),
        metric(0, "pcie_rx", 5.0),
        metric(0, "dram_read", 7.5),
    ]
    said = _said(_kernels(bf16=9), judgement=found)
    assert "Measured over the capture: SM active 25.0 %, DRAM read 7.5 % of peak." in said
    trace.metrics = [metric(0, "pcie_rx", 5.0)]
    assert "Measured" not in _said(_kernels(bf16=9), judgement=found)


def test_the_balance_is_compute_over_bandwidth() -> None:
    """A square product of n in two bytes a value does n / 3 FLOP a byte: 990 / 2 makes 495 FLOP a byte."""
    found = _gpu_bound()
    assert found.timeline is not None
    trace = found.timeline.trace
    assert " moves " not in _said(_kernels(bf16=9), judgement=found)
    trace.gpus = {0: model.TracedGpu(0, "NVIDIA H100 80GB HBM3", dram_bytes_per_s=2e12)}
    said = _said(_kernels(bf16=9), judgement=found)
    assert "NVIDIA H100 80GB HBM3 moves 2.0 TB/s at most and does 990 TFLOP/s in bf16" in said
    assert f"its balance is {990 / 2:.0f} FLOP a byte" in said
    trace.gpus = {0: model.TracedGpu(0, "Imaginary 9000", dram_bytes_per_s=2e12)}
    assert " Imaginary 9000 moves 2.0 TB/s at most." in _said(_kernels(bf16=9), judgement=found)
    trace.gpus = {0: model.TracedGpu(0, "Imaginary 9000")}
    assert "Imaginary" not in _said(_kernels(bf16=9), judgement=found)
