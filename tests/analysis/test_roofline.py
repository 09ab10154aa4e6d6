"""Which ceiling the evidence points at, and the balance of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.hardware.gpu_specs import memory_bytes_per_s, peak
from tests.support.data import HEALTHY, KINETO, LAUNCH_BOUND
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
