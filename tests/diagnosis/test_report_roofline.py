"""Which ceiling the evidence points at, and the balance of the machine."""

from __future__ import annotations

import pytest

from llmtop.diagnosis.capture import analyze
from llmtop.diagnosis.kernels import kind_of_kernel
from llmtop.peaks import memory_bytes_per_s, peak
from tests.support.data import HEALTHY, KINETO, LAUNCH_BOUND


def test_matrix_work_points_at_the_tensor_cores() -> None:
    said = analyze(HEALTHY).roofline
    assert "the ceiling is compute" in said
    assert "206 FLOP a byte" in said
    assert "only ncu can tell" in said


def test_a_lost_step_points_at_no_kernel() -> None:
    said = analyze(LAUNCH_BOUND).roofline
    assert "not a kernel's: 90% of the step is lost" in said
    assert "tensor active 0.9%" in said


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
        ("NVIDIA L40S", 864),
        ("NVIDIA L4", 300),
        ("NVIDIA B200", 8000),
    ],
)
def test_bandwidth_by_name(name: str, gb_per_s: float) -> None:
    assert memory_bytes_per_s(name) == gb_per_s * 1e9
    assert peak(name, "bf16") is not None


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "Some GPU", ""])
def test_an_unknown_gpu_has_no_bandwidth(name: str) -> None:
    assert memory_bytes_per_s(name) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "GEMM"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>(Params)", "GEMM"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "GEMM"),
        ("triton_tem_fused_mm_1", "GEMM"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("void at::native::vectorized_layer_norm_kernel<float>(int)", "normalisation"),
        ("void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>", "optimizer"),
        ("void at::native::reduce_kernel<512, 1>(ReduceOp)", "reduction"),
        ("void cunn_SoftMaxForward<8, float>(float*)", "reduction"),
        ("triton_poi_fused_gelu_3", "elementwise"),
        ("triton_red_fused_native_layer_norm_2", "normalisation"),
        ("triton_per_fused_sum_4", "reduction"),
        ("void at::native::vectorized_elementwise_kernel<4, AddFunctor>(int)", "elementwise"),
        ("void at::native::elementwise_kernel<128, 2, gpu_kernel_impl_nocast<lambda>>(int)", "elementwise"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "NCCL"),
        ("my_special_kernel", "other"),
    ],
)
def test_classes_of_kernels(name: str, kind: str) -> None:
    assert kind_of_kernel(name) == kind
