"""Kernels by short name and by what they compute."""

from __future__ import annotations

import functools
import re

import numpy as np

from llmtop.diagnosis.report import KernelTime, KernelVariant
from llmtop.trace import model
from llmtop.trace.intervals import Ns

GEMM, ATTENTION, NORMALISATION, ELEMENTWISE, REDUCTION, NCCL, OPTIMIZER, OTHER = (
    "GEMM",
    "attention",
    "normalisation",
    "elementwise",
    "reduction",
    "NCCL",
    "optimizer",
    "other",
)

_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    # In this order: a fused attention has softmax and GEMM in its name, a fused Adam is an elementwise template.
    (NCCL, re.compile(r"\bnccl\w*kernel|rccl|multimem_all_reduce|all_?reduce_kernel", re.I)),
    (
        ATTENTION,
        re.compile(r"flash|fmha|sdpa|attention|attn|mha_|paged_kv|compute_dot_do_o|convert_dq_to_16", re.I),
    ),
    (
        OPTIMIZER,
        re.compile(r"adam(?!ax)|(?<![a-z])sgd|adafactor|FusedOptimizer|multi_tensor_apply|optimizer", re.I),
    ),
    (
        NORMALISATION,
        re.compile(r"layer_?norm|rms_?norm|batch_?norm|group_?norm|GammaBeta|cudnn.*bn_|RowwiseMoments", re.I),
    ),
    (
        GEMM,
        re.compile(
            r"gemm|nvjet|cutlass|wgmma|xmma|s\d+_?gemm|cublas|splitk|gemv|cudnn.*conv|implicit_convolve|convolve|"
            r"winograd|triton_(tem|mm|bmm)|_matmul|dot_kernel|hmma",
            re.I,
        ),
    ),
    (
        REDUCTION,
        re.compile(
            r"reduce|softmax|nll_loss|cross_entropy|triton_(red|per)|\bsum\b|argmax|topk|cumsum|scan", re.I
        ),
    ),
    (
        ELEMENTWISE,
        re.compile(
            r"elementwise|vectorized|copy|fill|CatArray|index|gather|scatter|embedding|dropout|gelu|silu|relu|"
            r"triton_poi|triton_|transpose|permute|where|arange|cast|rope|rotary",
            re.I,
        ),
    ),
)


@functools.lru_cache(maxsize=4096)
def kind_of_kernel(full_name: str) -> str:
    """GEMM, attention, normalisation, elementwise, reduction, NCCL, optimizer or other, by the kernel's name."""
    # Parameters repeat the types of the template and can be thousands of characters long.
    head = full_name[:600]
    for kind, pattern in _KINDS:
        if pattern.search(head):
            return kind
    return OTHER


def kernel_times(trace: model.Trace) -> tuple[KernelTime, ...]:
    """All kernels by short name, whole file, all devices; most time first."""
    kernels = trace.ops.where(trace.ops.kind == model.KERNEL)
    if not len(kernels):
        return ()
    took = kernels.end - kernels.start
    everything = max(int(took.sum()), 1)
    variants = _variants(trace, kernels, took)
    rows = []
    names, of_name = np.unique(kernels.name, return_inverse=True)
    order = np.argsort(of_name.reshape(-1), kind="stable")
    edges = np.searchsorted(of_name.reshape(-1)[order], np.arange(len(names) + 1))
    for index, name in enumerate(names.tolist()):
        times = took[order[edges[index] : edges[index + 1]]]
        total = int(times.sum())
        rows.append(
            KernelTime(
                name=trace.names[name],
                kind=kind_of_kernel(variants[name][0].name),
                count=len(times),
                seconds=total / 1e9,
                share_pct=100.0 * total / everything,
                mean_us=total / 1e3 / len(times),
                min_us=int(times.min()) / 1e3,
                max_us=int(times.max()) / 1e3,
                variants=tuple(variants[name]),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _variants(trace: model.Trace, kernels: model.DeviceOps, took: Ns) -> dict[int, list[KernelVariant]]:
    """The full names behind each short one, most time first."""
    pair, which = np.unique(kernels.name * (len(trace.names) + 1) + kernels.full_name, return_inverse=True)
    counts = np.bincount(which.reshape(-1))
    sums = np.bincount(which.reshape(-1), weights=took)
    found: dict[int, list[KernelVariant]] = {}
    for index, key in enumerate(pair.tolist()):
        short, full = divmod(key, len(trace.names) + 1)
        row = KernelVariant(name=trace.names[full], count=int(counts[index]), seconds=float(sums[index]) / 1e9)
        found.setdefault(short, []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: -row.seconds)
    return found


def seconds_by_kind(kernels: tuple[KernelTime, ...]) -> dict[str, float]:
    """Seconds of kernel time by what they compute; the variants of one short name may differ in that."""
    sums: dict[str, float] = {}
    for kernel in kernels:
        for variant in kernel.variants:
            kind = kind_of_kernel(variant.name)
            sums[kind] = sums.get(kind, 0.0) + variant.seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
