"""Advice for JAX programs: differences from PyTorch, by the id of a finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llmtop.report.advice.commands import STACKS

_AGAIN: Final = "llmtop capture --engine jax.profiler --steps 5"

FIX: Final[Mapping[str, str]] = {
    "launch_bound": (
        "Dispatch less: put all of a step into one jax.jit function with donated arguments "
        "(donate_argnums); run several steps a call with jax.lax.scan or fori_loop; make each step larger. XLA "
        "replays launches as command buffers (CUDA graphs) itself: --xla_gpu_enable_command_buffer says of what."
    ),
    "kernel_gaps": (
        "Each kernel costs 1 to 2 µs to start: fewer, longer ones (one jit function instead of several, larger "
        "shapes, jax.nn.dot_product_attention instead of its parts); command buffers shorten the pauses."
    ),
    "input_bound": (
        "Make the next batch while this one is trained on: a loader in other processes (grain, tf.data), and "
        "jax.device_put of the next batch before the step is called, which copies beside the work."
    ),
    "sync_bound": (
        "Do not read values back within the step: float(loss), .item(), np.asarray(…), printing an array and "
        "block_until_ready each wait for the device and end the host's lead. Keep losses on the device and read "
        "those of some steps ago, or every N steps."
    ),
    "h2d_bound": (
        "Copy less and earlier: jax.device_put of the next batch before this step is called; token ids instead of "
        "what is made of them; keep what does not change on the device; offload less."
    ),
    "communication_bound": (
        "Overlap: --xla_gpu_enable_latency_hiding_scheduler=true and the pipelined collectives of XLA; a sharding "
        "that moves less (jax.debug.visualize_array_sharding shows it); gradients in bf16; a larger batch a "
        "device; check the path: NCCL_DEBUG=INFO names NVLink, P2P or SHM and the NICs."
    ),
    "idle": (
        "Find out what the host does there: mark its parts with llmtop.phase(…) or jax.profiler.TraceAnnotation. "
        "Checkpoints, evaluation, logging and compiling anew for a new shape (jax_compiles) are the usual ones."
    ),
    "unknown": "Capture again with the steps marked by llmtop.integrations.jax.step(), or under nsys.",
    "small_kernels": (
        "Let XLA fuse them: one jax.jit function over all of the step, no float64 or Python loops over small "
        "arrays; larger shapes."
    ),
    "allocations": (
        "cudaMalloc and cudaFree stop the GPU: let JAX take its memory at the start "
        "(XLA_PYTHON_CLIENT_PREALLOCATE), donate what a step replaces (donate_argnums); if memory is short: "
        "jax.checkpoint, sharding, a smaller batch."
    ),
    "pageable_copies": (
        "A pageable copy goes through a staging buffer: jax.device_put a batch ahead, so that it lies beside work."
    ),
    "unsteady_steps": (
        "Look at the slow ones: compiling anew for a new shape (jax_compiles counts), garbage collection, "
        "checkpoints, evaluation, a loader that runs dry every N batches."
    ),
    "fp32_matrix": (
        "Let the tensor cores work: jax.default_matmul_precision('tensorfloat32'), or parameters and inputs of "
        "matrix products in bfloat16, which is faster again and halves the bytes."
    ),
    "copies_casts": (
        "Find who converts and who copies: astype within the step, weights in float32 that each step casts, "
        "transposes that XLA could not fuse; donate what a step replaces (donate_argnums)."
    ),
}
CONFIRM: Final[Mapping[str, str]] = {
    "allocations": "no cudaMalloc after the first steps",
    "copies_casts": "the share of copies falls",
    "h2d_bound": "copies run while kernels run",
}
NEXT: Final[Mapping[str, str]] = {
    "kernel_gaps": _AGAIN,
    "small_kernels": _AGAIN,
    "idle": STACKS,
    "unknown": _AGAIN,
    "one_off": f"{_AGAIN}   # once the first steps are over",
    "fp32_matrix": "",
    "copies_casts": _AGAIN,
    "allocations": "jax.profiler.save_device_memory_profile('memory.prof')   # in the script; pprof shows it",
    "sync_bound": f"{STACKS}: the line that waits is on top",
    "h2d_bound": STACKS,
}
