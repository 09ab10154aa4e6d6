"""Advice for torch_xla programs: differences from PyTorch, by the id of a finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llmtop.report.advice.commands import STACKS

_AGAIN: Final = "llmtop capture --engine xla.profiler --seconds 5"
_METRICS: Final = "print(torch_xla.debug.metrics.metrics_report())   # in the script, after some steps"

FIX: Final[Mapping[str, str]] = {
    "launch_bound": (
        "Noting the operations takes the host longer than the device runs them: torch_xla.compile or "
        "torch.compile(backend='openxla') note them once; run several steps between two marks; a larger batch."
    ),
    "kernel_gaps": "Fewer, longer operations: larger shapes, torch_xla.experimental.scan over equal layers.",
    "input_bound": (
        "Make the next batch while this one is trained on: torch_xla.distributed.parallel_loader.MpDeviceLoader "
        "copies it to the device beside the work, a DataLoader with workers makes it."
    ),
    "sync_bound": (
        "Do not read values back within the step: .item(), float(loss), printing a tensor and every operation "
        "that torch_xla does not have (aten:: counters of its metrics) each run all that was noted and wait. "
        "Read losses every N steps, or with xm.add_step_closure."
    ),
    "h2d_bound": (
        "Copy less and earlier: MpDeviceLoader; token ids instead of what is made of them; keep what does not "
        "change on the device."
    ),
    "communication_bound": (
        "Move less: gradients in bf16, fewer and larger all-reduces (bucket_cap_mb of xm.all_reduce_bucketized_"
        "gradients), another sharding (torch_xla.distributed.spmd), a larger batch a device."
    ),
    "idle": (
        "Find out what the host does there: mark its parts with torch_xla.debug.profiler.Trace. Compiling anew "
        "for a new shape (CompileTime in torch_xla's metrics), checkpoints, evaluation, logging are usual ones."
    ),
    "unknown": (
        "Mark the parts of a step with torch_xla.debug.profiler.Trace and the step with StepTrace, and look at "
        "the host's stacks: the file says what the device ran, and seldom why it waited."
    ),
    "small_kernels": "Let XLA fuse them: all of a step between two marks, larger shapes, fewer small tensors.",
    "unsteady_steps": (
        "Look at the slow ones: compiling anew for a new shape (UncachedCompile in torch_xla's metrics counts "
        "that, and padding to buckets ends it), checkpoints, evaluation, a loader that runs dry every N batches."
    ),
    "fp32_matrix": (
        "Let the matrix units work in bfloat16: the model in bf16, or torch.autocast('xla', torch.bfloat16); "
        "it is faster and halves the bytes."
    ),
    "copies_casts": (
        "Find who converts and who copies: .to(dtype) within the step, weights in float32 that each step casts, "
        "transposes that XLA could not fuse."
    ),
}
CONFIRM: Final[Mapping[str, str]] = {
    "launch_bound": "the host's time between two marks falls",
    "unsteady_steps": "UncachedCompile stands still once training is under way",
    "h2d_bound": "copies run while the device computes",
    "copies_casts": "the share of copies falls",
}
NEXT: Final[Mapping[str, str]] = {
    "kernel_gaps": _AGAIN,
    "small_kernels": _AGAIN,
    "idle": STACKS,
    "unknown": STACKS,
    "one_off": f"{_AGAIN}   # once all is compiled",
    "fp32_matrix": "",
    "copies_casts": _AGAIN,
    "unsteady_steps": _METRICS,
    "sync_bound": f"{STACKS}: the line that waits is on top",
    "h2d_bound": STACKS,
}
