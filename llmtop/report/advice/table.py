"""Advice as data: for each finding what the field does about it, how to confirm it, and the exact next command.

The texts are templates; `{device}`, `{command}`, `{kernel}` and the like are filled in by analysis/findings.py
with what the capture shows. Numbers in a text have their source beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from llmtop.model.bottlenecks import LossId
from llmtop.report.advice import jax as advice_jax
from llmtop.report.advice import torch_xla as advice_torch_xla
from llmtop.report.advice.commands import STACKS


@dataclass(frozen=True)
class Advice:
    """What to do about one kind of finding."""

    fix: str
    confirm: str
    next: str


RECORDS_LOST: Final = "records_lost"
FindingId = Literal[
    LossId,
    "straggler",
    "records_lost",
    "hot_kernel",
    "small_kernels",
    "allocations",
    "pageable_copies",
    "unsteady_steps",
    "fp32_matrix",
    "copies_casts",
]
"""What the report on a capture can find; on a recording the findings are its alerts."""

"""Names no process: the one in the capture may be gone by the time that a person reads the report."""

ADVICE: Final[Mapping[FindingId, Advice]] = {
    "records_lost": Advice(
        fix=(
            "Idle time, shares and phases of that process are wrong by the missing kernels; totals of what was "
            "recorded are right. nsys 2025.3 loses them in a process that it collects from repeatedly, and has "
            "crashed such a process some collections later: save a checkpoint, start the training anew before the "
            "next nsys capture, or take another nsys, or torch.profiler in a training that was not started with "
            "--nsys."
        ),
        confirm="the next report has no such line",
        next="llmtop run -- {command}   # then: llmtop capture --engine torch.profiler --steps 5",
    ),
    "launch_bound": Advice(
        fix=(
            "Launch less: torch.compile(model, mode='reduce-overhead') or CUDA graphs replay a whole step with "
            "one call; a fused (fused=True) or foreach optimizer replaces hundreds of launches; a larger "
            "micro-batch gives each kernel more to do; move Python work out of the step."
        ),
        confirm="launches a step and the share of launching fall, kernels under 10 µs become fewer",
        next=STACKS,
    ),
    "kernel_gaps": Advice(
        fix=(
            "Each kernel costs 1 to 2 µs to start, whoever launches it: fewer, longer kernels (torch.compile, "
            "fused norms, losses and optimizers, a larger micro-batch); CUDA graphs shorten the pauses."
        ),
        confirm="kernels a step fall, the share of these gaps with them",
        next="TORCH_LOGS=graph_breaks {command}   # after torch.compile: where it had to break",
    ),
    "input_bound": Advice(
        fix=(
            "Make the next batch while this one is trained on: DataLoader(num_workers=8, prefetch_factor=4, "
            "persistent_workers=True, pin_memory=True) and batch.to(device, non_blocking=True); tokenise and "
            "decode ahead of time; read from local disk or memory-mapped files; move CPU augmentation to the GPU."
        ),
        confirm="the dataload phase shrinks on the GPU's clock, idle time by input goes",
        next=STACKS,
    ),
    "sync_bound": Advice(
        fix=(
            "Do not read values back within the step: keep losses and norms on the GPU and log every N steps; "
            "replace .item(), .cpu(), .tolist(), print(tensor), `if tensor:`, nonzero() and boolean masks; use "
            "torch.where, non_blocking copies and clip_grad_norm_(…, foreach=True); take torch.cuda.synchronize() "
            "out. torch.cuda.set_sync_debug_mode('warn') prints each place."
        ),
        confirm="calls that wait fall to about one a step",
        next=STACKS + ": the line that calls .item() or .cpu() is on top",
    ),
    "h2d_bound": Advice(
        fix=(
            "Copy from pinned memory and beside the work: DataLoader(pin_memory=True) and .to(device, "
            "non_blocking=True) on a stream of its own, one batch ahead; copy less (token ids, uint8 images, "
            "masks made on the GPU); keep what does not change on the GPU; offload less."
        ),
        confirm="copies become pinned, run while kernels run, and reach the rate of the PCIe link",
        next=STACKS + ": the line that calls .to() or .cuda() is on top",
    ),
    "communication_bound": Advice(
        fix=(
            "Overlap: DDP(gradient_as_bucket_view=True, static_graph=True) with bucket_cap_mb tuned, FSDP "
            "prefetching (backward_prefetch=BACKWARD_PRE, limit_all_gathers=True); send less: bf16 gradients "
            "(bf16_compress_hook), gradient accumulation with no_sync(), a larger batch a GPU; check the path: "
            "NCCL_DEBUG=INFO names NVLink, P2P or SHM and the NICs, nvidia-smi topo -m the wiring."
        ),
        confirm="exposed NCCL falls while NCCL itself may stay",
        next="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET {command}",
    ),
    "straggler": Advice(
        fix=(
            "Look at that rank alone: its clock and temperature against the others', its NUMA node and CPU "
            "affinity, its share of the data (sequence lengths, padding), other processes on its GPU or host. "
            "Balance by tokens, not by samples."
        ),
        confirm="exposed NCCL becomes even over the ranks",
        next="nvidia-smi -i {device} -q -d CLOCK,PERFORMANCE,TEMPERATURE",
    ),
    "idle": Advice(
        fix=(
            "Find out what the host does there: mark its parts with llmtop.phase(…) or NVTX ranges, or capture "
            "again with OS runtime traces. Checkpoints, evaluation, logging and garbage collection "
            "(gc.freeze(), gc.disable() between steps) are the usual ones. Where launched work waited: look for "
            "cudaStreamWaitEvent and copies on other streams, and record the nodes of CUDA graphs "
            "(nsys --cuda-graph-trace=node)."
        ),
        confirm="the same capture names a cause",
        next=STACKS,
    ),
    "one_off": Advice(
        fix="It is left out of the shares. Capture later, when the steps take the same time each.",
        confirm="the next report has no such line",
        next="llmtop capture --steps 5   # once the first steps are over",
    ),
    "unknown": Advice(
        fix="Capture again with the CUDA trace on the host's side: nsys --trace=cuda,nvtx, or "
        "torch.profiler with ProfilerActivity.CPU and CUDA.",
        confirm="the next report names causes",
        next="llmtop capture --steps 5",
    ),
    "hot_kernel": Advice(
        fix="",
        confirm="the kernel's mean time falls",
        next="{ncu}",
    ),
    "small_kernels": Advice(
        fix="Fuse them: torch.compile, a fused or foreach optimizer, fused norms and losses; or replay them as a "
        "CUDA graph.",
        confirm="the number of kernels a step falls",
        next="TORCH_LOGS=graph_breaks {command}   # after torch.compile: where it had to break",
    ),
    "allocations": Advice(
        fix=(
            "cudaMalloc and cudaFree stop the GPU. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, fixed shapes "
            "(pad to buckets), no torch.cuda.empty_cache() in the loop; if memory is short: activation "
            "checkpointing, sharding (FSDP, ZeRO), a smaller micro-batch."
        ),
        confirm="no cudaMalloc after the first steps",
        next=(
            "torch.cuda.memory._record_memory_history(max_entries=100000)   # in the script, and after some steps "
            "torch.cuda.memory._dump_snapshot('memory.pickle'); then: llmtop report memory.pickle"
        ),
    ),
    "pageable_copies": Advice(
        fix="pin_memory=True in the DataLoader (or tensor.pin_memory() once), then .to(device, "
        "non_blocking=True): a pageable copy goes through a staging buffer, blocks the host and does not overlap.",
        confirm="the copies are pinned and their GB/s rise",
        next="",
    ),
    "unsteady_steps": Advice(
        fix="Look at the slow ones: garbage collection, checkpoints, evaluation, variable shapes (recompiling, "
        "cuBLAS heuristics), a loader that runs dry every N batches.",
        confirm="the spread of the steps falls",
        next="llmtop capture --when 'step > 1.5x'",
    ),
    "fp32_matrix": Advice(
        fix=(
            "Let the tensor cores work. From Ampere on: torch.set_float32_matmul_precision('high') turns TF32 "
            "on for "
            "matrix products and torch.backends.cudnn.allow_tf32 = True for convolutions (10 bits of mantissa "
            "instead "
            "of 23), and torch.autocast('cuda', torch.bfloat16) or a model in bf16 is faster again and halves the "
            "bytes. On V100 and T4: autocast in fp16 with a GradScaler."
        ),
        confirm="the names of the matrix kernels lose ffma, sgemm and simt",
        next="{try_it}",
    ),
    "copies_casts": Advice(
        fix=(
            "Find who converts and who copies: .to(dtype) in the forward pass, autocast over weights that stay "
            "fp32 (keep a bf16 copy, or torch.compile, which fuses casts into what follows), .contiguous(), "
            ".clone() and "
            "transposes before views; channels_last for convolutions; write into place (out=, copy_ into a buffer "
            "that stays)."
        ),
        confirm="the share of aten::copy_ falls",
        next=("llmtop capture --engine torch.profiler --option stacks --option shapes   # which lines"),
    ),
}
"""By the id of a finding: for a training on a GPU of NVIDIA's."""


@dataclass(frozen=True)
class Situation:
    """What advice must fit besides the finding."""

    vendor: str | None = None
    """"NVIDIA", "AMD", "Google" (TPUs), "CPU" (of XLA's operations) or None."""
    workload: str | None = None
    """"training", "inference" or None."""
    graphs: bool = False
    """Whether CUDA graphs are replayed already."""
    framework: str | None = None
    """"JAX", "torch_xla", or None: PyTorch's own."""


_SERVING_FIX: Final[Mapping[str, str]] = {
    "launch_bound": (
        "Launch less: replay each decode step as a CUDA graph (vLLM: without --enforce-eager; SGLang: "
        "--cuda-graph-max-bs up to the batches that come; transformers: a static cache and torch.compile(mode="
        "'reduce-overhead')); let more requests share a batch; move Python work (sampling, detokenising, "
        "scheduling) out of the loop."
    ),
    "input_bound": (
        "The GPU waits for requests or for what prepares them: tokenise, detokenise and decode images in other "
        "processes; schedule the next batch while this one runs (vLLM: --async-scheduling; SGLang's overlap "
        "scheduler); batch continuously; send more requests at once."
    ),
    "sync_bound": (
        "Do not wait for each token: sample on the GPU and read the tokens back a step later; replace .item(), "
        ".cpu(), .tolist() and `if tensor:` in the loop; non_blocking copies into pinned memory."
    ),
    "h2d_bound": (
        "Copy from pinned memory and beside the work (non_blocking, a stream of its own); make masks, "
        "positions and "
        "block tables on the GPU; keep weights and the cache of keys and values there; offload less."
    ),
    "communication_bound": (
        "Split less: fewer ranks a model (tensor parallel size), pipeline or data parallel instead; the "
        "server's own "
        "all-reduce for small messages; larger batches; check the path: NCCL_DEBUG=INFO names links and NICs."
    ),
    "pageable_copies": (
        "Pinned buffers (tensor.pin_memory() once), then .to(device, non_blocking=True): a pageable copy goes "
        "through a staging buffer, blocks the host and does not overlap."
    ),
    "unsteady_steps": (
        "Look at the slow ones: prefill among decode steps (chunked prefill evens them), batch sizes without a "
        "captured graph, compiling for a new shape, garbage collection."
    ),
    "idle": (
        "Find out what the host does there: waiting for requests, scheduling, detokenising and logging are the "
        "usual ones. Mark its parts with llmtop.phase(…) or NVTX ranges. Where launched work waited: look for "
        "cudaStreamWaitEvent and copies on other streams, and record the nodes of CUDA graphs "
        "(nsys --cuda-graph-trace=node)."
    ),
    "allocations": (
        "cudaMalloc and cudaFree stop the GPU: reserve the cache of keys and values at the start, pad to "
        "buckets of shapes, no torch.cuda.empty_cache() in the loop."
    ),
}
_GRAPHS_FIX: Final[Mapping[str, str]] = {
    "launch_bound": (
        "CUDA graphs are replayed already; what is launched outside of them costs: take it into the graph "
        "(sampling, "
        "the optimizer, gradient clipping, static shapes), capture the batch sizes that still run without one, "
        "and move Python work out of the step."
    ),
    "kernel_gaps": (
        "CUDA graphs are replayed already; within one each kernel still costs about 1 µs to start: fewer, longer "
        "kernels (torch.compile, fused norms, losses and optimizers, larger batches)."
    ),
    "small_kernels": "Fuse them: torch.compile, fused norms, losses and optimizers, larger batches.",
}
_AMD_NEXT: Final[Mapping[str, str]] = {
    "hot_kernel": "rocprof-compute profile --name llmtop-kernel --kernel {kernel} -- {command}",
    "straggler": "rocm-smi -d {device} --showclocks --showtemp --showperflevel",
    "fp32_matrix": "",
}
_AMD_WORDS: Final = (
    ("cudaMalloc and cudaFree", "hipMalloc and hipFree"),
    ("cudaMalloc", "hipMalloc"),
    ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    ("nvidia-smi topo -m", "rocm-smi --showtopo"),
    ("names NVLink, P2P or SHM", "names XGMI, P2P or SHM"),
    ("the tensor cores", "the matrix cores"),
    (", and record the nodes of CUDA graphs (nsys --cuda-graph-trace=node)", ""),
    ("cudaStreamWaitEvent", "hipStreamWaitEvent"),
    ("CUDA graph", "HIP graph"),
    ("nsys --trace=cuda,nvtx, or torch.profiler", "torch.profiler"),
)
"""RCCL reads NCCL's variables, and PyTorch's own calls keep the name torch.cuda."""


_FRAMEWORKS: Final = {"JAX": advice_jax, "torch_xla": advice_torch_xla}


def advice_for(kind: FindingId, situation: Situation) -> Advice:
    """What to do about a finding, where it was found.

    Args:
        kind: the finding's id.
        situation: on whose GPU, in which work.
    """
    plain = ADVICE[kind]
    fix, following, confirm = plain.fix, plain.next, plain.confirm
    if situation.workload == "inference":
        fix = _SERVING_FIX.get(kind, fix)
    words = _FRAMEWORKS.get(situation.framework or "")
    if words is not None:
        fix = words.FIX.get(kind, fix)
        confirm, following = words.CONFIRM.get(kind, confirm), words.NEXT.get(kind, following)
    elif situation.graphs:
        fix = _GRAPHS_FIX.get(kind, fix)
    if situation.vendor == "Google":
        fix = fix.replace(", or under nsys", "")
    if situation.vendor in ("CPU", "Google") and kind in ("hot_kernel", "straggler"):
        following = ""
    if situation.vendor == "AMD":
        following = _AMD_NEXT.get(kind, following)
        for theirs, own in _AMD_WORDS:
            fix, following, confirm = (text.replace(theirs, own) for text in (fix, following, confirm))
    return Advice(fix=fix, confirm=confirm, next=following)
