"""Advice for CUDA programs without a framework: differences from PyTorch, by the id of a finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CALL_STACKS: Final = (
    "nsys profile --trace=cuda,nvtx,osrt --sample=process-tree --cudabacktrace=all:80000 {command}   # the call "
    "stacks of CUDA calls"
)

FIX: Final[Mapping[str, str]] = {
    "launch_bound": (
        "Launch less: join small kernels, give each more to do, or replay the sequence as a CUDA graph "
        "(cudaStreamBeginCapture, cudaGraphLaunch); prepare launches in another thread."
    ),
    "kernel_gaps": "Each kernel costs 1 to 2 µs to start: fewer, longer ones; a CUDA graph shortens the pauses.",
    "input_bound": "Read and prepare the next input in another thread while the GPU works; read ahead of time.",
    "sync_bound": (
        "Do not wait after every kernel: launches of one stream run in order, so one cudaStreamSynchronize before "
        "the host reads a result is enough; use events between streams, and double buffers. cudaFree waits as "
        "well: allocate once, before the loop."
    ),
    "h2d_bound": (
        "Copy from pinned memory (cudaMallocHost) with cudaMemcpyAsync on a stream of its own, in pieces beside "
        "the kernels; keep what does not change on the GPU."
    ),
    "pageable_copies": (
        "Use pinned memory (cudaMallocHost or cudaHostRegister, once) and cudaMemcpyAsync: a pageable copy goes "
        "through a staging buffer, blocks the host and does not overlap."
    ),
    "small_kernels": "Join them: several elements a thread, one kernel for several steps, or a CUDA graph of all.",
    "allocations": "cudaMalloc and cudaFree stop the GPU: allocate once before the loop, or use cudaMallocAsync.",
    "unsteady_steps": "Look at the slow ones: inputs of other sizes, writing results, other programs on the GPU.",
    "one_off": "Load modules, allocate and launch each kernel once before the part that matters.",
    "idle": "Find out what the host does there: mark its parts with NVTX ranges, or record CPU samples.",
    "fp32_matrix": (
        "Use the library's product (cuBLAS, CUTLASS) with TF32 or bf16 inputs: the tensor cores compute it "
        "several times as fast."
    ),
}
CONFIRM: Final[Mapping[str, str]] = {"input_bound": "idle time by input disappears"}
NEXT: Final[Mapping[str, str]] = {
    "allocations": "",
    "fp32_matrix": "",
    "small_kernels": "",
    "kernel_gaps": "",
    "one_off": "",
}
NEXT_WITHOUT_PYTHON: Final[Mapping[str, str]] = {
    **dict.fromkeys(("launch_bound", "input_bound", "sync_bound", "h2d_bound", "idle"), _CALL_STACKS),
    "unknown": "nsys profile --trace=cuda,nvtx {command}",
    "unsteady_steps": "",
}
"""Where the process is known not to run Python."""
