"""Kernels by name: each against a class that was given by hand, and captures as wholes."""

from __future__ import annotations

import json
import lzma
from collections import Counter

import pytest

from llmtop.naming.communication import collective_of
from llmtop.naming.kernel_names import is_collective, kind_of
from tests.support.data import DATA

BY_HAND = [
    (name, kind)
    for kind, name in (
        line.split("\t") for line in (DATA / "kernel_classes.tsv").read_text().splitlines() if line[0] != "#"
    )
]
MORE = [
    ("one_shot_all_reduce_kernel", "NCCL"),
    ("void two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16*, unsigned long)", "NCCL"),
    ("multimem_one_shot_all_reduce_kernel", "NCCL"),
    ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymkDevWorkArgs)", "NCCL"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "NCCL"),
    ("rccl_main_kernel(ncclDevComm*)", "NCCL"),
    ("triton_poi_fused_convolution_relu_0", "elementwise"),
    ("triton_per_fused_native_layer_norm_3", "normalisation"),
    ("triton_red_fused__softmax_2", "reduction"),
    ("triton_tem_fused_mm_7", "GEMM"),
    ("triton_tem_fused_flex_attention_1", "attention"),
    ("triton_tem_fused_convolution_4", "convolution"),
    ("triton_for_fused_0", "optimizer"),
    ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_128x128>(x)", "convolution"),
    ("fused_moe_kernel", "GEMM"),
    ("void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<1, float, int>(x)", "convolution"),
    ("void fbgemm_gpu::f8f8bf16_rowwise_kernel(x)", "GEMM"),
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
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "NCCL"),
    ("ncclSymkDevKernel_AllGather_LL", "NCCL"),
    ("void ncclKernel_Broadcast", "NCCL"),
    ("my_nccl_like_Kernel", "other"),
    ("gemm", "GEMM"),
    ("spin(long)", "other"),
]


@pytest.mark.parametrize(("name", "kind"), [*BY_HAND, *MORE], ids=lambda text: text[:50])
def test_a_kernel_has_the_class_given_by_hand(name: str, kind: str) -> None:
    assert kind_of(name) == kind
    assert is_collective(name) == (kind == "NCCL")


def test_little_of_any_capture_has_no_class() -> None:
    captures = json.loads(lzma.decompress((DATA / "kernel_times.json.xz").read_bytes()))
    assert len(captures) > 100
    unclassed, everything = Counter[str](), Counter[str]()
    for name, capture in captures.items():
        for kernel, seconds in capture["seconds"].items():
            everything[name] += seconds
            unclassed[name] += seconds * (kind_of(kernel) == "other")
    large = [name for name, capture in captures.items() if capture["kernels"] > 1000 and everything[name]]
    assert len(large) > 70
    shares = {name: unclassed[name] / everything[name] for name in large}
    assert {name: share for name, share in shares.items() if share > 0.05} == {}
    assert unclassed.total() < 0.05 * everything.total()


@pytest.mark.parametrize(
    ("kernel", "collective"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "AllReduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)", "ReduceScatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "SendRecv"),
        ("one_shot_all_reduce_kernel", "AllReduce"),
        ("multimem_all_gather_kernel", "AllGather"),
        ("cross_device_reduce_2stage", "AllReduce"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "other"),
    ],
)
def test_a_collective_is_told_from_its_kernel(kernel: str, collective: str) -> None:
    assert collective_of(kernel) == collective
