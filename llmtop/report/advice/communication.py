"""Advice on exposed communication, by the parallelism of the model and the number of captured ranks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

ONE_RANK: Final = (
    "One rank alone cannot show whether it waits for a slower rank or for the transfer: capture all ranks at once."
)
ALL_RANKS: Final = "llmtop capture --at-step +20 --ranks all   # then: llmtop report FOLDER, all ranks as one"

_OF_WRAPPER: Final = {
    "DDP": (
        "Overlap with backward: DDP(gradient_as_bucket_view=True, static_graph=True) with bucket_cap_mb tuned, "
        "gradient accumulation with no_sync(); send less: bf16 gradients (bf16_compress_hook)."
    ),
    "FSDP": (
        "Overlap: FSDP prefetching (backward_prefetch=BACKWARD_PRE, limit_all_gathers=True, or fully_shard's "
        "set_modules_to_forward_prefetch); shard within a node only (HYBRID_SHARD); send less: bf16 parameters."
    ),
    "DeepSpeed": (
        "Overlap: overlap_comm with allgather_bucket_size and reduce_bucket_size tuned; a lower ZeRO stage "
        "gathers less; send less: bf16 gradients."
    ),
}
_OF_NONE: Final = (
    "Overlap what is sent with computing: join many small collectives into few, and start each as soon as its "
    "data is ready (async_op=True, a stream of its own); send less: bf16, larger batches a GPU."
)
_PATH: Final = (
    "Check the path: NCCL_DEBUG=INFO names NVLink, P2P or SHM and the NICs, nvidia-smi topo -m the wiring."
)


def communication_fix(wrappers: Collection[str], *, one_rank: bool) -> str:
    """Return the advice on exposed communication in a training.

    Args:
        wrappers: of "DDP", "FSDP" and "DeepSpeed" those that the capture shows.
        one_rank: whether the capture has one rank of several.
    """
    if one_rank:
        return f"{ONE_RANK} Advice on overlap and links follows from that."
    known = [text for name, text in _OF_WRAPPER.items() if name in wrappers]
    return " ".join([*(known or [_OF_NONE]), _PATH])
