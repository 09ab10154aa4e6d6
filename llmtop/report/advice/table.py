"""Advice as data: for each finding what the field does about it, how to confirm it, and the exact next command.

The texts are templates; `{device}`, `{command}`, `{kernel}` and the like are filled in by analysis/findings.py
with what the capture shows. Numbers in a text have their source beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from llmtop.model.bottlenecks import LossId
from llmtop.report.advice import compiled as advice_compiled
from llmtop.report.advice import inference as advice_inference
from llmtop.report.advice import jax as advice_jax
from llmtop.report.advice import plain as advice_plain
from llmtop.report.advice import torch_xla as advice_torch_xla
from llmtop.report.advice.commands import STACKS
from llmtop.report.advice.communication import ALL_RANKS, communication_fix


@dataclass(frozen=True)
class Advice:
    """Advice on one kind of finding."""

    fix: str
    confirm: str
    next: str


RECORDS_LOST: Final = "records_lost"
NOTHING_RECORDED: Final = (
    "Only the calls of the host are in the capture; their times are right. Usual reasons: another profiler was "
    "attached to the process, or the driver's profiling library (CUPTI) does not reach the GPU, as in some "
    "containers, virtual machines and older versions of WSL 2."
)
NOTHING_RECORDED_NEXT: Final = "nsys status --environment   # what the driver lets a profiler see"
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
    "unfused_attention",
    "elementwise",
    "slow_forward",
]
"""Findings of a report on a capture. The findings of a recording are its alerts."""

"""Names no process: the one in the capture may be gone by the time that a person reads the report."""

ADVICE: Final[Mapping[FindingId, Advice]] = {
    "records_lost": Advice(
        fix=(
            "Idle time, shares and phases of that process are wrong by the missing kernels; totals of what was "
            "recorded are right. nsys 2025.3 loses them in a process that it collects from repeatedly, and has "
            "crashed such a process some collections later: save a checkpoint, start the training anew before "
            "the next nsys capture, or take another nsys, or torch.profiler in a training that was not started "
            "with --nsys."
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
        confirm="launches per step and the share of launching fall, kernels under 10 µs become fewer",
        next=STACKS,
    ),
    "kernel_gaps": Advice(
        fix=(
            "Each kernel costs 1 to 2 µs to start, whoever launches it: fewer, longer kernels (torch.compile, "
            "fused norms, losses and optimizers, a larger micro-batch); CUDA graphs shorten the pauses."
        ),
        confirm="kernels per step fall, the share of these gaps with them",
        next="TORCH_LOGS=graph_breaks {command}   # after torch.compile: where it had to break",
    ),
    "input_bound": Advice(
        fix=(
            "Make the next batch while this one is trained on: DataLoader(num_workers=8, prefetch_factor=4, "
            "persistent_workers=True, pin_memory=True) and batch.to(device, non_blocking=True); tokenise and "
            "decode ahead of time; read from local disk or memory-mapped files; move CPU augmentation to the GPU."
        ),
        confirm="the dataload phase shrinks by the GPU clock, and idle time by input disappears",
        next=STACKS,
    ),
    "sync_bound": Advice(
        fix=(
            "Do not read values back within the step: keep losses and norms on the GPU and log every N steps; "
            "replace .item(), .cpu(), .tolist(), print(tensor), `if tensor:`, nonzero() and boolean masks; use "
            "torch.where, non_blocking copies and clip_grad_norm_(…, foreach=True); take torch.cuda.synchronize() "
            "out. torch.cuda.set_sync_debug_mode('warn') prints each place."
        ),
        confirm="waiting calls fall to about one per step",
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
        fix=communication_fix((), one_rank=False),
        confirm="exposed communication falls while the communication itself may stay",
        next="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET {command}",
    ),
    "straggler": Advice(
        fix=(
            "Look at that rank alone: its clock and temperature against the others', its NUMA node and CPU "
            "affinity, its share of the data (sequence lengths, padding), other processes on its GPU or host. "
            "Balance by tokens, not by samples."
        ),
        confirm="exposed communication becomes equal on all ranks",
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
        fix="Capture later, when the steps take the same time each; this is not counted in the shares.",
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
        confirm="the number of kernels per step falls",
        next="TORCH_LOGS=graph_breaks {command}   # after torch.compile: where it had to break",
    ),
    "allocations": Advice(
        fix=(
            "Keep PyTorch from calling cudaMalloc and cudaFree, which stop the GPU: "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, fixed shapes (pad to buckets), no "
            "torch.cuda.empty_cache() in the loop; if memory is short: activation checkpointing, sharding (FSDP, "
            "ZeRO), a smaller micro-batch."
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
            "Let the tensor cores work: from Ampere on torch.set_float32_matmul_precision('high') turns TF32 on "
            "for matrix products and torch.backends.cudnn.allow_tf32 = True for convolutions (10 bits of "
            "mantissa instead of 23), and torch.autocast('cuda', torch.bfloat16) or a model in bf16 is faster "
            "again and halves the bytes. On V100 and T4: autocast in fp16 with a GradScaler."
        ),
        confirm="the names of the matrix kernels lose ffma, sgemm and simt",
        next="{try_it}",
    ),
    "copies_casts": Advice(
        fix=(
            "Find who converts and who copies: .to(dtype) in the forward pass, autocast over weights that stay "
            "fp32 (keep a bf16 copy, or torch.compile, which fuses casts into what follows), .contiguous(), "
            ".clone() and transposes before views; channels_last for convolutions; write into place (out=, copy_ "
            "into a buffer that stays)."
        ),
        confirm="the share of aten::copy_ falls",
        next=("llmtop capture --engine torch.profiler --option stacks --option shapes   # which lines"),
    ),
    "unfused_attention": Advice(
        fix=(
            "Fuse it: torch.nn.functional.scaled_dot_product_attention or FlashAttention computes softmax and "
            "both products in one kernel and never writes the scores to memory (transformers: "
            "attn_implementation='sdpa' or 'flash_attention_2')."
        ),
        confirm="softmax kernels go, a flash or fmha kernel takes less time than they did",
        next="",
    ),
    "elementwise": Advice(
        fix=(
            "Fuse them: torch.compile joins elementwise work, normalisations and casts into few kernels; "
            "channels_last and autocast for convolutions; fused norms, losses and optimizers (fused=True)."
        ),
        confirm="kernels a step and the share of elementwise kernels fall",
        next="TORCH_LOGS=graph_breaks {command}   # after torch.compile: where it had to break",
    ),
    "slow_forward": Advice(
        fix=(
            "Look for what forward does without a gradient: a teacher or reference model, generation, evaluation, "
            "preparing data on the GPU, metrics; put it under torch.no_grad() in a narrower type, run it less "
            "often, or ahead of time."
        ),
        confirm="backward takes about twice as long as forward",
        next="llmtop capture --engine torch.profiler --option stacks   # which lines",
    ),
}
"""Advice by the id of a finding: for a training on a GPU of NVIDIA's."""


@dataclass(frozen=True)
class Situation:
    """Conditions, besides the finding, that select the advice."""

    vendor: str | None = None
    """"NVIDIA", "AMD", "Google" (TPUs), "CPU" (of XLA's operations) or None."""
    workload: str | None = None
    """"training", "inference" or None."""
    graphs: bool = False
    """True if CUDA graphs are replayed already."""
    framework: str | None = None
    """"JAX", "torch_xla", or None: PyTorch's own."""
    language: bool | None = None
    """True if the model takes tokens; None where nothing tells."""
    serves: bool = False
    """True if prefill and decode of a language model were seen."""
    compiled: bool = False
    """True if torch.compile is used already."""
    plain: bool = False
    """True if no framework took part: a CUDA program of its own."""
    wrappers: tuple[str, ...] = ()
    """Which of DDP, FSDP and DeepSpeed wrap the model."""
    one_rank: bool = False
    """True if the capture has one rank of several."""
    python: bool = True
    """False where the capture names a process that runs no Python."""
    convolutions: bool = False
    """True if convolutions ran."""
    pinned: bool = False
    """True if most bytes between host and device are copied from or to pinned memory already."""


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


_WITHOUT_GPU: Final = (
    (", or under nsys", ""),
    ("(recompiling, cuBLAS heuristics)", "(recompiling)"),
    (" as command buffers (CUDA graphs) itself: --xla_gpu_enable_command_buffer says of what", " itself"),
    ("--xla_gpu_enable_latency_hiding_scheduler=true and the pipelined collectives of XLA; ", ""),
    ("; check the path: NCCL_DEBUG=INFO names NVLink, P2P or SHM and the NICs", ""),
    ("NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET {command}", ""),
    ("cudaMalloc and cudaFree stop the GPU: let JAX", "Let JAX"),
)
"""Words on GPUs and their libraries, and what stands in their place for other devices."""
_WITHOUT_TRAINING: Final = (
    ("(sampling, the optimizer, gradient clipping, static shapes)", "(sampling, static shapes)"),
    ("(graph breaks, the optimizer, metrics)", "(graph breaks, metrics)"),
    ("fused norms, losses and optimizers", "fused norms"),
)
_PERHAPS_TRAINING: Final = (
    (
        "a fused (fused=True) or foreach optimizer replaces",
        "in a training a fused (fused=True) or foreach optimizer replaces",
    ),
    (
        "a fused or foreach optimizer, fused norms and losses",
        "fused norms, in a training a fused or foreach optimizer",
    ),
    ("fused norms, losses and optimizers", "fused norms, in a training fused losses and optimizers"),
    ("(graph breaks, the optimizer, metrics)", "(graph breaks, metrics, in a training the optimizer)"),
)
_WITHOUT_CONVOLUTIONS: Final = (
    ("; channels_last and autocast for convolutions", ""),
    ("; channels_last for convolutions", ""),
    (" and torch.backends.cudnn.allow_tf32 = True for convolutions", ""),
    ("batch normalisation folded into convolutions, ", ""),
    ("; fold batch normalisation into convolutions", ""),
)
"""Words that do not fit, and what stands in their place."""
_WITHOUT_LANGUAGE: Final = (
    ("tokenise and decode ahead of time", "decode ahead of time"),
    ("copy less (token ids, uint8 images, ", "copy less (uint8 images, "),
    ("its share of the data (sequence lengths, padding)", "its share of the data (sizes, padding)"),
    ("Balance by tokens, not by samples.", "Balance by work, not by samples."),
)
"""Words on tokens, and what stands in their place where the model takes none."""
_PINNED_H2D: Final = (
    "The copies are from pinned memory already: copy less (weights kept on the GPU, without CPU offload where "
    "they fit; narrower types such as uint8), and copy beside the work, on a stream of its own, one batch ahead; "
    "at the rate of the link nothing else helps."
)


_PINNED_CONFIRM: Final = "fewer bytes are copied, or they are copied while kernels run"
_WAITED_WORK: Final = " Where launched work waited: "


_OLDER_GPUS: Final = " On V100 and T4: autocast in fp16 with a GradScaler."


def fp32_fix(fix: str, *, has_tf32: bool) -> str:
    """Return the advice on products in fp32 for the GPU that was recorded: TF32, or fp16 where it has none."""
    if not fix.endswith(_OLDER_GPUS):
        return fix
    if has_tf32:
        return fix.removesuffix(_OLDER_GPUS).replace("from Ampere on torch", "torch")
    return "Let the tensor cores work: torch.autocast('cuda', torch.float16), in a training with a GradScaler."


def pageable_results_fix(*, plain: bool) -> str:
    """Advice on copies from the device into pageable memory."""
    buffer = "cudaMallocHost, once" if plain else "torch.empty(…, pin_memory=True), once"
    copy = "cudaMemcpyAsync" if plain else "buffer.copy_(tensor, non_blocking=True)"
    return (
        f"Copy results into a pinned buffer ({buffer}) with {copy}, many at once, and wait once before they are "
        "read: a copy into pageable memory goes through a staging buffer and blocks the host."
    )


def idle_fix(fix: str, waited_pct: float, host_pct: float, host_in: str) -> str:
    """Return the advice on idle time without a cause, for what was seen of it.

    Args:
        fix: of the finding "idle"; advice on launched work that waited comes last.
        waited_pct: how long launched work waited.
        host_pct: the rest of the idle time, in which the host had launched nothing.
        host_in: the operator that the host was in for most of it; "" where none stands out.
    """
    host, _, waited = fix.partition(_WAITED_WORK)
    if host_in:
        host = f"See what {host_in} waits for: its Python line is on top of the stacks."
    if not waited or 10 * waited_pct < host_pct:
        return host
    if 10 * host_pct < waited_pct and not host_in:
        return f"Launched work waited: {waited}"
    return f"{host}{_WAITED_WORK}{waited}"


def advice_for(kind: FindingId, situation: Situation) -> Advice:
    """Return the advice on a finding for a situation.

    Args:
        kind: the finding's id.
        situation: on whose GPU, in which work.
    """
    advice = _for_program(kind, situation)
    fix, following, confirm = advice.fix, advice.next, advice.confirm
    if situation.vendor in ("CPU", "Google"):
        for of_gpus, others in _WITHOUT_GPU:
            fix, following, confirm = (text.replace(of_gpus, others) for text in (fix, following, confirm))
    if situation.vendor in ("CPU", "Google") and kind in ("hot_kernel", "straggler"):
        following = ""
    if situation.vendor == "AMD":
        following = _AMD_NEXT.get(kind, following)
        for theirs, own in _AMD_WORDS:
            fix, following, confirm = (text.replace(theirs, own) for text in (fix, following, confirm))
    return Advice(fix=fix, confirm=confirm, next=following)


def _for_program(kind: FindingId, situation: Situation) -> Advice:
    """Return the advice for a program, whatever it runs on."""
    plain = ADVICE[kind]
    words = _FRAMEWORKS.get(situation.framework or "")
    if words is not None:
        confirm, following = words.CONFIRM.get(kind, plain.confirm), words.NEXT.get(kind, plain.next)
        return Advice(words.FIX.get(kind, _fix_of_workload(kind, situation)), confirm, following)
    if situation.plain:
        following = advice_plain.NEXT.get(kind, plain.next)
        if not situation.python:
            following = advice_plain.NEXT_WITHOUT_PYTHON.get(kind, following)
        confirm = advice_plain.CONFIRM.get(kind, plain.confirm)
        return Advice(advice_plain.FIX.get(kind, plain.fix), confirm, following)
    fix, following = _fix_of_workload(kind, situation), plain.next
    if kind == "communication_bound" and (situation.workload != "inference" or situation.one_rank):
        fix = communication_fix(situation.wrappers, one_rank=situation.one_rank)
        following = ALL_RANKS if situation.one_rank else following
    confirm = plain.confirm
    if kind == "h2d_bound" and situation.pinned:
        fix, confirm = _PINNED_H2D, _PINNED_CONFIRM
    if situation.graphs:
        fix = advice_compiled.GRAPHS_FIX.get(kind, fix)
        following = advice_compiled.GRAPHS_NEXT.get(kind, following)
    elif situation.compiled and not (situation.serves and kind in advice_inference.LANGUAGE_FIX):
        fix = advice_compiled.COMPILED_FIX.get(kind, fix)
        following = advice_compiled.COMPILED_NEXT.get(kind, following)
    if situation.compiled:
        for advised, done in advice_compiled.WITHOUT_COMPILING:
            fix = fix.replace(advised, done)
    if situation.language is False:
        for words_of_tokens, others in _WITHOUT_LANGUAGE:
            fix = fix.replace(words_of_tokens, others)
    return Advice(_fitting(fix, situation), confirm, following)


def _fitting(fix: str, situation: Situation) -> str:
    """Advice without words on an optimizer or convolutions where there are none."""
    changes: list[tuple[str, str]] = []
    if situation.workload == "inference":
        changes += _WITHOUT_TRAINING
    elif situation.workload is None:
        changes += _PERHAPS_TRAINING
    if not situation.convolutions:
        changes += _WITHOUT_CONVOLUTIONS
    for words, others in changes:
        fix = fix.replace(words, others)
    return fix


def _fix_of_workload(kind: FindingId, situation: Situation) -> str:
    """Return the fix for a training, for inference, or for serving a language model."""
    fix = ADVICE[kind].fix
    if situation.workload is None and kind in ("h2d_bound", "pageable_copies"):
        return advice_inference.FIX[kind]  # nothing shows that a DataLoader takes part
    if situation.workload != "inference":
        return fix
    fix = advice_inference.FIX.get(kind, fix)
    return advice_inference.LANGUAGE_FIX.get(kind, fix) if situation.serves else fix
