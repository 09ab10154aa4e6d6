"""Parts of device time: passes of a training, stages of inference, graphs, copies, number formats."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from llmtop.analysis.steps.token_passes import TokenPasses, token_passes
from llmtop.analysis.work.hlo_operations import hlo_parts, hlo_passes
from llmtop.analysis.work.operators import (
    OperatorCalls,
    launched_by_graph,
    launching_operators,
    matching_names,
    operator_calls,
)
from llmtop.analysis.work.workload import is_compiled, is_language_model, is_plain_program, parallel_wrappers
from llmtop.hardware.gpu_specs import has_matrix_cores
from llmtop.naming.kernel_names import computes_products, is_collective, is_softmax, kind_of, matrix_type
from llmtop.naming.phase_names import is_optimizer_step, role_of
from llmtop.report.device_time import DeviceTimePart, TimeBreakdown
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import distinct_combinations, distinct_values, is_among
from llmtop.trace.intervals import Ns, Numbers

WorkMask = npt.NDArray[np.bool_]

_AMD = re.compile(r"\bAMD\b|Instinct|Radeon|\bMI\d{3}", re.I)
_NVIDIA = re.compile(r"NVIDIA|Tesla|GeForce|Quadro|\b[AHBL]\d{2,3}\b", re.I)
_BACKWARD_KERNEL = re.compile(
    r"_bwd|bwd_|AttnBwd|FmhaBwd|backward|wgrad|_grad_(?:kernel|weight|input)|GammaBeta", re.I
)
"""Kernel names of the backward pass, without dgrad: a transposed convolution runs forward by these kernels."""
_SERVES = re.compile(
    r"reshape_and_cache|paged_?attention|concat_and_cache|store_kv_?cache|BatchDecode|BatchPrefill|mla_decode"
    r"|flash_fwd_splitkv|unified_attention|rotary_embedding_kernel",
    re.I,
)
"""Kernels of inference servers: those that keep keys and values in pages."""
_SERVERS_OPERATOR = re.compile(r"^(?:vllm|_C_cache_ops|_vllm_fa\d_C|sgl_kernel|sglang|trtllm)::")
"""Operators that inference servers register with PyTorch."""
SERVERS_OPERATORS: Final = "operators of an inference server"
_DECODE = re.compile(
    r"\bdecode\b|decode_one_token|decode_n_tokens|execute_\w*?context_0[(_].*generation_[1-9]", re.I
)
_PREFILL = re.compile(
    r"\bprefill\b|_prefill\b|\bstep\[EXTEND|execute_\w*?context_[1-9]\d*[(_](?:(?!generation).)*(?:generation_0|$)",
    re.I,
)
_STAGE_FUNCTION = re.compile(r": (?:_?prefill|_?decode_step|decode_one_token|decode_n_tokens)$")
_MIXED = re.compile(r"step\[MIXED|execute_\w*?context_[1-9]\d*[(_].*generation_[1-9]", re.I)
"""Ranges of vLLM (execute_…context_R(…)_generation_R(…): requests of either stage in a batch), of SGLang
(step[DECODE bs=32]), and functions and ranges that say the word."""
_STAGES = (("decode", _DECODE), ("prefill", _PREFILL), ("prefill and decode in one batch", _MIXED))
_MISPLACED = 0.1
"""Share of the time of kernels named as backward's that may be found in forward: some names belong to both."""
_FEWER_PRODUCTS = 0.75
_WHOLE_GRAPHS = "CUDA graphs traced as a whole"
"""Such a graph may hold all of a step; what of it is which pass is not known."""
_COPY_OPERATORS = frozenset({"aten::copy_", "aten::_to_copy", "aten::to", "aten::clone", "aten::contiguous"})
_BATCHED_PRODUCTS = frozenset({"aten::bmm", "aten::baddbmm"})
_MOVES_DATA = ("elementwise", "normalisation")
_COPY_KERNEL = re.compile(r"direct_copy_kernel|copy_kernel_cuda|copy_device_to_device")


def time_breakdown(trace: model.Trace) -> TimeBreakdown | None:
    """Return what the device time consists of; None without device work."""
    ops = trace.ops
    took = ops.end - ops.start
    everything = int(took.sum())
    if not everything:
        return None

    def share(chosen: WorkMask) -> float:
        return 100.0 * int(took[chosen].sum()) / everything

    def part(name: str, chosen: WorkMask) -> DeviceTimePart:
        return DeviceTimePart(name=name, seconds=int(took[chosen].sum()) / 1e9, share_pct=share(chosen))

    row, calls = launching_operators(trace), operator_calls(trace)
    workload, told_by = _workload(trace, calls)
    passes = _passes(trace, row, calls) if workload == "training" else {}
    differentiated = hlo_passes(trace)
    if differentiated:
        workload, told_by, passes = "training", "operations run backward (transpose)", differentiated
    stages = _stages(trace) if workload == "inference" else {}
    stages_by = "ranges and functions of these names" if stages else ""
    answers = None if stages or workload == "training" else token_passes(trace)
    if answers is not None:
        stages_by = "inferred: which kernels lie between one choice of a token and the next"
        stages = {name: answers.rows(prefill=name == "prefill") for name in ("prefill", "decode")}
        stages["neither"] = ~(stages["prefill"] | stages["decode"])
        workload, told_by = "inference", told_by or "tokens are chosen after passes of two kinds"
    parts = {name: part(name, c) for name, c in passes.items()}
    parts, ratio = _compare_passes(trace, passes, parts)
    graph = launched_by_graph(trace)
    return TimeBreakdown(
        vendor=_vendor(trace),
        framework=trace.framework if trace.ops.hlo.any() else None,
        operations=hlo_parts(trace),
        workload=workload,
        told_by=told_by,
        passes=tuple(one for one in parts.values() if one.seconds),
        backward_to_forward=ratio,
        stages=tuple(
            msgspec.structs.replace(part(name, c), **({} if answers is None else _per_pass(answers, name)))
            for name, c in stages.items()
            if c.any()
        ),
        stages_by=stages_by,
        graph_launches=_graph_launches(trace),
        graph_pct=share(graph) if len(trace.calls) else None,
        copy_cast_pct=share(_copies(trace, row)),
        fp32_matrix_pct=share(_full_fp32(trace)) if _all_gpus_have_matrix_cores(trace) else None,
        language_model=is_language_model(trace, serves=bool(stages) or _serves(trace)),
        compiled=is_compiled(trace),
        plain_program=is_plain_program(trace),
        wrappers=parallel_wrappers(trace),
        softmax_pct=share(_kernels_matching(trace, is_softmax)),
        unfused_attention_pct=share(_attention_parts(trace, row)),
        elementwise_pct=share(_kernels_matching(trace, lambda name: kind_of(name) in _MOVES_DATA)),
    )


def _full_fp32(trace: model.Trace) -> WorkMask:
    """Matrix products and convolutions that no tensor core computes."""
    return _kernels_matching(
        trace, lambda name: kind_of(name) in ("GEMM", "convolution") and matrix_type(name) == "fp32"
    )


def _serves(trace: model.Trace) -> bool:
    kernels = _names_of(trace, trace.ops.full_name[trace.ops.kind == model.KERNEL])
    return any(map(_SERVES.search, kernels)) or any(
        map(_SERVERS_OPERATOR.search, _names_of(trace, trace.host.name))
    )


def _attention_parts(trace: model.Trace, row: Ns) -> WorkMask:
    """Softmax kernels, and batched products by their operator; nothing where no softmax ran by itself."""
    softmax = _kernels_matching(trace, is_softmax)
    if not softmax.any() or not len(trace.host):
        return softmax
    products = matching_names(trace, lambda name: name in _BATCHED_PRODUCTS)[trace.host.name[row]] & (row >= 0)
    return np.asarray(softmax | (products & (trace.ops.kind == model.KERNEL)))


def _per_pass(answers: TokenPasses, stage: str) -> dict[str, Any]:
    """Return how many passes of a stage there are, and how long one takes."""
    if stage not in ("prefill", "decode"):
        return {}
    prefill = stage == "prefill"
    return {"passes": int((answers.prefill == prefill).sum()), "pass_seconds": answers.seconds(prefill=prefill)}


def _all_gpus_have_matrix_cores(trace: model.Trace) -> bool:
    """Return True if all GPUs of the capture are known to be faster at matrix products in narrower types than
    fp32."""
    used = [trace.gpu(*pair) for pair in distinct_combinations(trace.ops.process, trace.ops.device)]
    return all(gpu is not None and bool(gpu.name) and has_matrix_cores(gpu.name or "") for gpu in used)


def _kernels_matching(trace: model.Trace, fits: Callable[[str], object]) -> WorkMask:
    """Kernels whose full name fits."""
    kernels = trace.ops.kind == model.KERNEL
    like = np.zeros(len(trace.names), dtype=bool)
    for number in distinct_values(trace.ops.full_name[kernels]).tolist():
        like[number] = bool(fits(trace.names[number]))
    return np.asarray(kernels & like[trace.ops.full_name])


def _vendor(trace: model.Trace) -> Literal["NVIDIA", "AMD", "Google", "CPU"] | None:
    names = [gpu.name for gpu in trace.gpus.values() if gpu.name]
    if model.CPU in names:
        return "CPU"
    if any(name.startswith(model.TPU) for name in names):
        return "Google"
    if any(map(_AMD.search, names)):
        return "AMD"
    if any(map(_NVIDIA.search, names)):
        return "NVIDIA"
    called = [trace.names[number] for number in distinct_values(trace.calls.name).tolist()]
    if any(name.startswith("hip") for name in called):
        return "AMD"
    return "NVIDIA" if any(name.startswith("cu") for name in called) else None


def _workload(trace: model.Trace, calls: OperatorCalls) -> tuple[Literal["training", "inference"] | None, str]:
    """Return "training" or "inference" and the evidence; (None, "") where unknown."""
    kernels = _names_of(trace, trace.ops.full_name[trace.ops.kind == model.KERNEL])
    ranges = _names_of(trace, trace.ranges.name)
    matrix_work = any(kind_of(name) in ("GEMM", "convolution", "attention") for name in kernels)
    evidence: tuple[tuple[Literal["training", "inference"], str, object], ...] = (
        ("training", "operators of autograd's backward pass", (calls.backward >= 0).any()),
        ("training", "the optimizer's range", any(map(is_optimizer_step, ranges))),
        (
            "inference",
            "ranges named like prefill or decode",
            any(pattern.search(name) for name in ranges for _, pattern in _STAGES),
        ),
        ("training", "kernels of an optimizer", any(kind_of(name) == "optimizer" for name in kernels)),
        ("training", "kernels of a backward pass", any(map(_BACKWARD_KERNEL.search, kernels))),
        ("training", "ranges named like a backward pass", any(role_of(name) == "backward" for name in ranges)),
        ("inference", "kernels that keep a cache of keys and values", any(map(_SERVES.search, kernels))),
        ("inference", SERVERS_OPERATORS, any(map(_SERVERS_OPERATOR.search, _names_of(trace, trace.host.name)))),
        (
            "inference",
            "no operator was recorded for autograd",
            matrix_work and len(calls.rows) and not trace.host.sequence.any(),
        ),
    )
    return next(((workload, words) for workload, words, told in evidence if told), (None, ""))


def _names_of(trace: model.Trace, numbers: Numbers) -> list[str]:
    return [trace.names[number] for number in distinct_values(numbers).tolist()]


def _launched_within(trace: model.Trace, fits: Callable[[str], object], functions: bool = False) -> WorkMask:
    """Device work that was launched while a fitting range was open in its process, on any of its threads: the
    backward pass runs on one of autograd's."""
    chosen = np.zeros(len(trace.ops), dtype=bool)
    like = np.zeros(len(trace.names), dtype=bool)
    for number in distinct_values(trace.ranges.name).tolist():
        like[number] = bool(fits(trace.names[number]))
    closed = like[trace.ranges.name] & (trace.ranges.end != model.OPEN)
    tables: list[tuple[model.Ranges | model.HostSpans, WorkMask]] = [(trace.ranges, closed)]
    if functions:
        python = (trace.host.kind == model.PYTHON) & matching_names(
            trace, lambda name: _STAGE_FUNCTION.search(name) and fits(name)
        )[trace.host.name]
        tables.append((trace.host, python))
    known = np.flatnonzero(trace.launched_by >= 0)
    launched_at = trace.calls.start[trace.launched_by[known]] if len(known) else known
    process = trace.ops.process[known]
    for pid in distinct_values(process).tolist():
        spans = [
            iv.union(table.start[mine & (table.process == pid)], table.end[mine & (table.process == pid)])
            for table, mine in tables
        ]
        own = process == pid
        chosen[known[own]] = iv.contains(iv.union_of(*spans), launched_at[own])
    return chosen


def _passes(trace: model.Trace, row: Ns, calls: OperatorCalls) -> dict[str, WorkMask]:
    """Disjoint parts of all device work, in the order of a step."""
    ops, rest = trace.ops, np.ones(len(trace.ops), dtype=bool)
    copied = is_among(ops.kind, (model.MEMCPY, model.MEMSET))
    found: dict[str, WorkMask] = {}

    def take(name: str, chosen: WorkMask) -> None:
        nonlocal rest
        found[name] = rest & chosen
        rest = rest & ~chosen

    take("communication", _kernels_matching(trace, is_collective))
    take("launch not recorded", trace.launched_by < 0)
    optimizer = _launched_within(trace, lambda name: role_of(name) == "optimizer" or is_optimizer_step(name))
    take("optimizer", optimizer | _kernels_matching(trace, lambda name: kind_of(name) == "optimizer"))
    if (calls.backward >= 0).any():
        again = np.zeros(len(trace.host), dtype=bool)
        again[calls.rows[calls.again]] = True
        back = np.zeros(len(trace.host), dtype=bool)
        back[calls.rows[calls.backward >= 0]] = True
        take("recomputed forward", (row >= 0) & again[row])
        take("backward", (row >= 0) & back[row])
        take("copies and memsets", copied)
        take(_WHOLE_GRAPHS, ops.kind == model.GRAPH)
        take("forward", rest)
    else:
        take("backward", _launched_within(trace, lambda name: role_of(name) == "backward"))
        take("copies and memsets", copied)
        take("forward", _launched_within(trace, lambda name: role_of(name) == "compute"))
        take(_WHOLE_GRAPHS, ops.kind == model.GRAPH)
        take("other", rest)
    order = ("forward", "recomputed forward", "backward", "optimizer", "communication", "copies and memsets")
    return {name: found[name] for name in (*order, _WHOLE_GRAPHS, "other", "launch not recorded") if name in found}


def _compare_passes(
    trace: model.Trace, passes: dict[str, WorkMask], parts: dict[str, DeviceTimePart]
) -> tuple[dict[str, DeviceTimePart], float | None]:
    """Return the parts, with forward and backward as one where nothing separates them, and the ratio of their
    times.

    The ratio is None where one of them is absent, or a part of backward is not in it.
    """
    forward, back = parts.get("forward"), parts.get("backward")
    if forward is None or back is None or not forward.seconds:
        return parts, None
    if _runs_backward_outside(trace, passes):
        both = DeviceTimePart(
            name="forward and backward, not separable",
            seconds=forward.seconds + back.seconds,
            share_pct=forward.share_pct + back.share_pct,
        )
        return {"both": both} | {n: part for n, part in parts.items() if n not in ("forward", "backward")}, None
    return parts, None if _lacks_products(trace, passes) else back.seconds / forward.seconds


def _runs_backward_outside(trace: model.Trace, passes: dict[str, WorkMask]) -> bool:
    """Return True if a part of backward is no work of autograd's operators but of a schedule of its own
    (DualPipe).

    Either kernels that are named as backward's are found in forward, or attention runs backward as it runs forward
    while backward has much less of other products: even with frozen weights it needs one for each of forward's.
    """
    took = trace.ops.end - trace.ops.start
    named = _kernels_matching(trace, _BACKWARD_KERNEL.search)
    forward, back = passes["forward"], passes["backward"]
    if int(took[forward & named].sum()) > _MISPLACED * int(took[(forward | back) & named].sum()):
        return True
    attends = _kernels_matching(trace, lambda name: kind_of(name) == "attention")
    multiplies = _kernels_matching(trace, lambda name: kind_of(name) == "GEMM")
    ahead, behind = (
        (int(took[part & attends].sum()), int(took[part & multiplies].sum())) for part in (forward, back)
    )
    return 0 < ahead[0] <= behind[0] and behind[1] < _FEWER_PRODUCTS * ahead[1]


def _lacks_products(trace: model.Trace, passes: dict[str, WorkMask]) -> bool:
    """Return True if backward has less of matrix products than forward: it needs two for each of forward's, so
    a part of the model is frozen, or a part of backward runs elsewhere."""
    took = trace.ops.end - trace.ops.start
    products = _kernels_matching(trace, computes_products)
    return int(took[passes["backward"] & products].sum()) < int(took[passes["forward"] & products].sum())


def _stages(trace: model.Trace) -> dict[str, WorkMask]:
    """Device work by the stage of inference that launched it; empty where the stages are unknown."""
    found: dict[str, WorkMask] = {}
    rest = np.ones(len(trace.ops), dtype=bool)
    for name, pattern in reversed(_STAGES):
        mine = rest & _launched_within(trace, pattern.search, functions=True)
        if mine.any():
            found[name] = mine
            rest &= ~mine
    if found and rest.any():
        found["neither"] = rest
    return found


def _graph_launches(trace: model.Trace) -> int:
    names = distinct_values(trace.calls.name)
    graphs = names[[bool(re.search(r"GraphLaunch", trace.names[number])) for number in names.tolist()]]
    return int(is_among(trace.calls.name, graphs).sum()) if len(graphs) else 0


def _copies(trace: model.Trace, row: Ns) -> WorkMask:
    """Copies and conversions of type within a device."""
    moved = (trace.ops.kind == model.MEMCPY) & (trace.ops.direction == model.DEVICE_TO_DEVICE)
    found = moved | _kernels_matching(trace, _COPY_KERNEL.search)
    if not (row >= 0).any():
        return np.asarray(found)
    by_operator = matching_names(trace, lambda name: name in _COPY_OPERATORS)[trace.host.name[row]] & (row >= 0)
    return np.asarray(found | (by_operator & (trace.ops.kind == model.KERNEL)))
