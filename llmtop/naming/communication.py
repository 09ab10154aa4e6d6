"""Kernels that move data between ranks, by library: the only patterns on names of communication.

Each row says where its names stand: a file of the library's own repository, at github.com. `traced` is whether a
capture with such a kernel was read (tests/data, or a public one of docs/measurements.md); the others are read in
source. Kernels of these libraries that stay on one GPU (counting tokens, copying into a buffer) are left out.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

HEAD: Final = 600
"""Characters of a kernel's name that are matched: parameters repeat the types of the template, over thousands."""


@dataclass(frozen=True)
class CommunicationLibrary:
    """A library whose kernels communicate, and how they are called."""

    name: str
    pattern: re.Pattern[str]
    sources: tuple[str, ...]
    """Files at github.com that name the kernels, as owner/repository: path."""
    traced: bool


def _library(name: str, pattern: str, *sources: str, traced: bool = False) -> CommunicationLibrary:
    return CommunicationLibrary(name, re.compile(pattern, re.I), sources, traced)


_EXPERTS: Final = (
    r"(?:\w+::)*(?:(?:cached_)?notify\w*|(?:hybrid_)?(?:dispatch|combine)(?:_impl)?|barrier(?:_impl)?"
    r"|clean_low_latency_buffer|pp_(?:send|recv)_impl|engram_fetch(?:_wait)?_impl)\b"
)
"""Kernels of DeepEP, whose names its descendants keep; layout, epilogues and masks stay on the GPU."""

LIBRARIES: Final = (
    # The order matters: the first that matches is taken. The general names of collectives come last.
    _library(
        "NCCL",
        r"(?:^|\bvoid |[\s:])nccl\w*kernel",
        "NVIDIA/nccl: src/device/common.h",
        "NVIDIA/nccl: src/device/symmetric/generate.py",
        traced=True,
    ),
    _library(
        "RCCL",
        r"(?:^|\bvoid |[\s:])(?:rccl|msccl)\w*kernel|\brccl",
        "ROCm/rccl: src/device/common.h",
        "ROCm/rccl: src/device/msccl_kernel_impl.h",
        traced=True,
    ),
    _library(
        "DeepEP",
        rf"\b(?:deep_ep|dpsk::ep)::{_EXPERTS}",
        "deepseek-ai/DeepEP: csrc/kernels/legacy/internode.cu",
        "deepseek-ai/DeepEP: csrc/kernels/legacy/internode_ll.cu",
        "deepseek-ai/DeepEP: csrc/kernels/legacy/intranode.cu",
        "deepseek-ai/DeepEP: deep_ep/include/deep_ep/impls/dispatch.cuh",
        traced=True,
    ),
    _library(
        "UCCL",
        rf"\buccl::(?:ep::)?{_EXPERTS}",
        "uccl-project/uccl: ep/src/internode.cu",
        "uccl-project/uccl: ep/src/internode_ll.cu",
        "uccl-project/uccl: ep/src/intranode.cu",
    ),
    _library(
        "pplx",
        r"(?:^|\bvoid |[\s:])(?:dispatch|combine)Kernel\b",
        "perplexityai/pplx-kernels: csrc/all_to_all/internode_dispatch.cu",
        "perplexityai/pplx-kernels: csrc/all_to_all/internode_combine.cu",
    ),
    _library(
        "TensorRT-LLM",
        r"\bmoeA2A(?:Dispatch|Combine)Kernel|\b(?:one|two)shotAllreduce\w*Kernel|\ballreduce_fusion_kernel_\w+",
        "NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/communicationKernels/moeAlltoAllKernels.cu",
        "NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/communicationKernels/mnnvlAllreduceKernels.cu",
        "NVIDIA/TensorRT-LLM: cpp/tensorrt_llm/kernels/communicationKernels/allReduceFusionKernels.cu",
    ),
    _library(
        "mori",
        r"\bEp(?:Dispatch|Combine)(?:IntraNode|InterNode|LowLatencyAsync(?:Send|Recv)Transfer|Sync)\w*"
        r"|\b(?:OneShot(?:All2all|AllGather|AllReduce)|AllGatherRing|ReduceScatterRing)\w*Kernel",
        "ROCm/mori: src/ops/dispatch_combine/internode.hpp",
        "ROCm/mori: src/ops/dispatch_combine/internode_v1.hpp",
        "ROCm/mori: src/ops/dispatch_combine/low_latency_async.hpp",
        "ROCm/mori: include/mori/collective/inter_node/kernels/one_shot_kernel.hpp",
        "ROCm/mori: include/mori/collective/inter_node/kernels/all_gather.hpp",
        "ROCm/mori: include/mori/collective/inter_node/kernels/reduce_scatter.hpp",
    ),
    _library(
        "Transformer Engine",
        r"\buserbuffers_fp16_sum_inplace_gpu_|\bkuserbuffers_(?:push|pull)",
        "NVIDIA/TransformerEngine: transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu",
    ),
    _library(
        "mscclpp",
        r"\bmscclpp::(?:(?:\w+|\(anonymous namespace\)|<unnamed>)::)*(?:all(?:reduce|gather)\w*|executionKernel)",
        "microsoft/mscclpp: src/ext/collectives/allreduce/allreduce_nvls_packet.cu",
        "microsoft/mscclpp: src/ext/collectives/allgather/allgather_fullmesh.cu",
        "microsoft/mscclpp: src/core/include/execution_kernel.hpp",
    ),
    _library(
        "NVSHMEM",
        r"\b(?:alltoall|broadcast|fcollect|rdxn|reducescatter|barrier|sync)_on_stream_kernel"
        r"|\bnvshmemi_(?:reduce_kernel|proxy_rma_\w*entrypoint|signal_(?:op_kernel|wait_until_on_stream_kernel))"
        r"|\bnvshmemx?_\w*(?:barrier|put|get)",
        "NVIDIA/nvshmem: src/include/internal/non_abi/nvshmemi_h_to_d_coll_defs.cuh",
        "NVIDIA/nvshmem: src/include/internal/non_abi/nvshmemi_h_to_d_rma_defs.cuh",
        "NVIDIA/nvshmem: src/include/internal/non_abi/nvshmemi_h_to_d_sync_defs.cuh",
        "NVIDIA/nvshmem: src/host/stream/coll/rdxn/reduce_team.cu",
    ),
    _library(
        "symmetric memory",
        r"\b(?:one|two)_shot_all_?reduce|\bmultimem_(?:all|one|two|reduce|broadcast)",
        "pytorch/pytorch: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu",
        traced=True,
    ),
    _library("vLLM", r"\bcross_device_reduce", "vllm-project/vllm: csrc/custom_all_reduce.cuh"),
    # XLA's operations, where they stand for what ran (on the CPU and on TPUs).
    _library(
        "XLA",
        r"^(?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\b",
        "openxla/xla: xla/hlo/ir/hlo_opcode.h",
        traced=True,
    ),
    _library("", r"all_?reduce(?!_?op)|all_?gather_?kernel|reduce_?scatter_?kernel|all_?to_?all"),
)
"""The libraries that are known; the last row, without a name, is what says itself which collective it is."""

_KINDS: Final = tuple(
    (name, re.compile(pattern, re.I))
    for name, pattern in (
        (
            "SendRecv",
            r"send_?recv|^collective-permute|\bpp_(?:send|recv)_impl|\bkuserbuffers_(?:push|pull)|proxy_rma",
        ),
        ("AllReduce", r"all[_-]?reduce|cross_device_reduce|\brdxn_on_stream|\bnvshmemi_reduce_kernel"),
        ("AllGather", r"all[_-]?gather|\bfcollect_on_stream|userbuffers_fp16_\w+_ag(?:_|\b)"),
        ("ReduceScatter", r"reduce[_-]?scatter|userbuffers_fp16_\w+_rs(?:_|\b)"),
        ("AllReduce", r"userbuffers_fp16_sum_inplace"),
        (
            "AllToAll",
            r"all[_-]?(?:to|2)[_-]?all|moeA2A(?:Dispatch|Combine)|\bEp(?:Dispatch|Combine)"
            r"|(?:^|[\s:_])(?:dispatch|combine)(?:_impl|Kernel)?\b|notify_?(?:dispatch|combine)?\b",
        ),
        ("Barrier", r"::barrier\b|barrier_impl|barrier_on_stream|nvshmemx?_\w*barrier|sync_on_stream"),
        ("Broadcast", r"broadcast"),
        ("Reduce", r"reduce"),
        ("Gather", r"gather"),
        ("Scatter", r"scatter"),
    )
)


_ANONYMOUS: Final = re.compile(r"(?:\(anonymous namespace\)|<unnamed>)::")


@functools.lru_cache(maxsize=8192)
def communication_library(name: str) -> str | None:
    """Return the library that a kernel communicates with.

    Args:
        name: as recorded, with or without template arguments and parameters; the more, the surer.

    Returns:
        A name of `LIBRARIES`, "" where the kernel names a collective and no library; None for other kernels.
    """
    head = name[:HEAD]
    return next((library.name for library in LIBRARIES if library.pattern.search(head)), None)


def collective_of(name: str) -> str:
    """Return the collective a kernel carries out: AllReduce for ncclDevKernel_AllReduce_Sum_f32_RING_LL, or
    "other"."""
    # Template arguments and parameters name other things.
    head = _ANONYMOUS.sub("", name[:HEAD])
    head = re.split(r"[<(]", head, maxsplit=1)[0]
    return next((kind for kind, pattern in _KINDS if pattern.search(head)), "other")
