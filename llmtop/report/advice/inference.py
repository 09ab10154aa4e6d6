"""Advice for models that only run forward: differences from a training, by the id of a finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_WAITS: Final = (
    "Where launched work waited: look for cudaStreamWaitEvent and copies on other streams, and record the nodes "
    "of CUDA graphs (nsys --cuda-graph-trace=node)."
)

FIX: Final[Mapping[str, str]] = {
    "launch_bound": (
        "Launch less: torch.compile(model, mode='reduce-overhead') or CUDA graphs replay a forward pass with one "
        "call; a larger batch gives each kernel more to do; move Python work out of the loop over the model."
    ),
    "input_bound": (
        "Prepare inputs in other processes or on the GPU (decoding, resizing, normalising); prepare the next "
        "batch while this one runs; a larger batch."
    ),
    "sync_bound": (
        "Do not wait within a pass: read results back one pass later; replace .item(), .cpu(), .tolist(), "
        "nonzero() and `if tensor:` in the loop; non_blocking copies into pinned memory."
    ),
    "h2d_bound": (
        "Copy from pinned memory (tensor.pin_memory(), then .to(device, non_blocking=True)) and beside the work, "
        "on a stream of its own, one input ahead; keep weights on the GPU: without CPU offload where they fit."
    ),
    "communication_bound": (
        "Split less: fewer ranks a model (tensor parallel size), pipeline or data parallel instead; keep large "
        "outputs such as logits sharded; larger batches; check the path: NCCL_DEBUG=INFO names links and NICs."
    ),
    "pageable_copies": (
        "Use pinned buffers (tensor.pin_memory() once), then .to(device, non_blocking=True): a pageable copy goes "
        "through a staging buffer, blocks the host and does not overlap."
    ),
    "unsteady_steps": (
        "Look at the slow ones: inputs of other shapes (compiling anew, cuDNN's choice of algorithms), garbage "
        "collection, loading."
    ),
    "idle": (
        "Find out what the host does there: preparing inputs, reading results and logging are the usual ones. "
        f"Mark its parts with llmtop.phase(…) or NVTX ranges. {_WAITS}"
    ),
    "allocations": (
        "cudaMalloc and cudaFree stop the GPU: fixed shapes (pad to buckets), no torch.cuda.empty_cache() in the "
        "loop, PyTorch's caching allocator left on (PYTORCH_NO_CUDA_MEMORY_CACHING unset)."
    ),
    "small_kernels": (
        "Fuse them: torch.compile, batch normalisation folded into convolutions, a larger batch; or replay a pass "
        "as a CUDA graph."
    ),
    "kernel_gaps": (
        "Each kernel costs 1 to 2 µs to start, whoever launches it: fewer, longer kernels (torch.compile, a "
        "larger batch); CUDA graphs shorten the pauses."
    ),
    "elementwise": (
        "Fuse them: torch.compile joins elementwise work, normalisations and casts into few kernels; fold batch "
        "normalisation into convolutions; channels_last for convolutions."
    ),
}

LANGUAGE_FIX: Final[Mapping[str, str]] = {
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
        "Copy from pinned memory and beside the work (non_blocking, a stream of its own); make masks, positions "
        "and block tables on the GPU; keep weights and the cache of keys and values there; offload less."
    ),
    "communication_bound": (
        "Split less: fewer ranks a model (tensor parallel size), pipeline or data parallel instead; keep logits "
        "sharded or gather less of them; the server's own all-reduce for small messages; larger batches; check "
        "the path: NCCL_DEBUG=INFO names links and NICs."
    ),
    "unsteady_steps": (
        "Look at the slow ones: prefill among decode steps (chunked prefill evens them), batch sizes without a "
        "captured graph, compiling for a new shape, garbage collection."
    ),
    "idle": (
        "Find out what the host does there: waiting for requests, scheduling, detokenising and logging are the "
        f"usual ones. Mark its parts with llmtop.phase(…) or NVTX ranges. {_WAITS}"
    ),
    "allocations": (
        "cudaMalloc and cudaFree stop the GPU: reserve the cache of keys and values at the start, pad to buckets "
        "of shapes, no torch.cuda.empty_cache() in the loop."
    ),
}
"""Fixes for a server of a language model, or a loop over its tokens: only where kernels or ranges show one."""
