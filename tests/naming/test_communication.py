"""Kernels that communicate, by library; each name as its library's source has it."""

from __future__ import annotations

import re

import pytest

from llmtop.naming.communication import LIBRARIES, collective_of, communication_library
from llmtop.naming.kernel_names import is_collective, kind_of

NAMES = [
    ("NCCL", "AllReduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    ("NCCL", "AllGather", "ncclSymkDevKernel_AllGather_LL"),
    ("NCCL", "SendRecv", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"),
    ("NCCL", "other", "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"),
    ("RCCL", "other", "rccl_main_kernel(ncclDevComm*)"),
    ("RCCL", "other", "mscclKernel_Sum_half_Simple_false(ncclDevComm*)"),
    ("DeepEP", "AllToAll", "void deep_ep::internode::dispatch<false, 8>(int4*, float*)"),
    (
        "DeepEP",
        "AllToAll",
        "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*, float*, bool const*)",
    ),
    ("DeepEP", "AllToAll", "void dpsk::ep::internode::cached_notify<false>(int, int)"),
    ("DeepEP", "AllToAll", "void deep_ep::legacy::internode_ll::dispatch<true, 7168>(void*)"),
    ("DeepEP", "AllToAll", "void deep_ep::elastic::hybrid_dispatch_impl<8>(int)"),
    ("DeepEP", "SendRecv", "void deep_ep::elastic::pp_send_impl<8>(int)"),
    ("DeepEP", "Barrier", "void deep_ep::legacy::intranode::barrier<8>(int**, int)"),
    ("UCCL", "AllToAll", "void uccl::internode_ll::combine<7168, 9>(void*)"),
    ("UCCL", "AllToAll", "void uccl::intranode::notify_dispatch<8>(int const*)"),
    ("pplx", "AllToAll", "void (anonymous namespace)::dispatchKernel<10u, true>(unsigned int*)"),
    ("pplx", "AllToAll", "void combineKernel<10u, __nv_bfloat16>(unsigned int*)"),
    ("TensorRT-LLM", "AllToAll", "void moeA2ADispatchKernel<WarpPolicy, 8>(int const*)"),
    ("TensorRT-LLM", "AllToAll", "void moeA2ACombineKernel<__nv_bfloat16, BlockPolicy, 8>(int)"),
    ("TensorRT-LLM", "AllReduce", "void twoshotAllreduceKernel<(unsigned char)8, float>(float*)"),
    ("TensorRT-LLM", "AllReduce", "void allreduce_fusion_kernel_oneshot_lamport<1, __half, 8, true>(int)"),
    ("mori", "AllToAll", "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(Args)"),
    ("mori", "AllToAll", "void mori::moe::EpCombineInterNodeV1KernelLowLatency<float>(Args)"),
    ("mori", "AllGather", "void mori::collective::AllGatherRingKernel<float>(int)"),
    ("Transformer Engine", "AllGather", "void userbuffers_fp16_sum_inplace_gpu_mc_ag<8>(int, int)"),
    ("Transformer Engine", "ReduceScatter", "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int)"),
    ("Transformer Engine", "AllReduce", "void userbuffers_fp16_sum_inplace_gpu_mc<8>(int, int)"),
    ("Transformer Engine", "SendRecv", "kuserbuffers_pushsendrecv(int*, int*, int4*)"),
    ("mscclpp", "AllReduce", "void mscclpp::collective::allreduceNvlsPacket<(mscclpp::ReduceOp)0, float>(void*)"),
    ("mscclpp", "AllGather", "void mscclpp::collective::(anonymous namespace)::allgatherFullmesh<true>(void*)"),
    ("NVSHMEM", "AllGather", "void fcollect_on_stream_kernel<int, (threadgroup_t)2>(int, int*)"),
    ("NVSHMEM", "AllReduce", "void rdxn_on_stream_kernel<int, (rdxn_ops)4>(int, int*)"),
    ("NVSHMEM", "Barrier", "barrier_on_stream_kernel_threadgroup(int, int)"),
    ("NVSHMEM", "SendRecv", "nvshmemi_proxy_rma_entrypoint(void*, void*, rma_bytesdesc, int)"),
    (
        "symmetric memory",
        "AllReduce",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)",
    ),
    ("symmetric memory", "AllReduce", "void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)"),
    ("vLLM", "AllReduce", "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)"),
    ("XLA", "AllReduce", "all-reduce.3"),
]
ON_ONE_GPU = [
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void deep_ep::legacy::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void deep_ep::elastic::dispatch_copy_epilogue_impl<8>(int)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<8>(int)",
    "moeA2APrepareDispatchKernel(int*, int*, int, unsigned int*)",
    "void mori::moe::EpDispatchCopyToStaging<float>(Args)",
    "kuserbuffers_inc(int*)",
    "nvshmemi_init_array_kernel(long*, int, long)",
    "void at::native::dispatch_elementwise_kernel<4>(int)",
    "void cub::DeviceReduceKernel<float>(float*)",
    "gemm_kernel",
]


@pytest.mark.parametrize(("library", "kind", "name"), NAMES)
def test_a_kernel_of_each_library_by_what_it_does(library: str, kind: str, name: str) -> None:
    assert communication_library(name) == library
    assert is_collective(name)
    assert kind_of(name) == "NCCL"
    assert collective_of(name) == kind


@pytest.mark.parametrize("name", ON_ONE_GPU)
def test_what_stays_on_one_gpu_is_no_communication(name: str) -> None:
    assert communication_library(name) is None
    assert kind_of(name) != "NCCL"


def test_each_library_has_its_source_and_an_example() -> None:
    named = [library for library in LIBRARIES if library.name]
    assert {library.name for library in named} == {library for library, _, _ in NAMES}
    for library in named:
        assert library.sources
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+: \S+\.\w+", source) for source in library.sources)


def test_what_pytorch_calls_its_collectives() -> None:
    names = ("allreduce", "_allgather_base", "_reduce_scatter_base", "all_to_allv", "broadcast", "send")
    found = [collective_of(name) for name in names]
    assert found == ["AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Broadcast", "other"]
