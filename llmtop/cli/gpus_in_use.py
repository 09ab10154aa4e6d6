"""Whether a command that is started here would have its GPUs for itself."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from llmtop.errors import NotPossibleHere
from llmtop.format import printable, size
from llmtop.snapshot import Gpu, Snapshot

_UNSEEN_BYTES = 2 << 30
"""Memory in use that no listed process has: more than a driver keeps for itself on any GPU."""
_LEAVING_SECONDS = 4.0


def refuse_used_gpus() -> None:
    """Ask the driver who works on the GPUs that a command started here would see.

    What has just ended holds its memory for a moment: that is waited for.

    Raises:
        NotPossibleHere: there is no GPU, or another process works on one of them.
    """
    from collectors.hub import live_hub

    hub = live_hub(interval=1.0)
    try:
        snapshot = hub.once()
        refusal = used(snapshot, visible(snapshot.gpus, os.environ))
        deadline = time.monotonic() + _LEAVING_SECONDS
        while refusal and snapshot.gpus and time.monotonic() < deadline:
            time.sleep(0.5)
            snapshot = hub.poll()
            refusal = used(snapshot, visible(snapshot.gpus, os.environ))
    finally:
        hub.close()
    if refusal:
        raise NotPossibleHere(refusal)


def visible(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES lets a program see; all where it is not set."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    words = [word.strip() for word in chosen.split(",") if word.strip()]
    found = []
    for word in words:
        if word.isdigit():
            found += [gpu for gpu in gpus if gpu.index == int(word)]
        else:
            found += [gpu for gpu in gpus if gpu.uuid.startswith(word)]
    return tuple(dict.fromkeys(found))


def used(snapshot: Snapshot, gpus: tuple[Gpu, ...]) -> str:
    """Why these GPUs are not free, in a sentence; "" if they are."""
    if not gpus:
        return "no NVIDIA GPU can be seen here, and ncu needs one: llmtop doctor says what is missing"
    for gpu in gpus:
        there = [one for one in snapshot.processes if one.gpu_uuid == gpu.uuid and one.gpu_computes]
        if there:
            who = ", ".join(f"{one.pid} ({printable(one.command or '?', 40)})" for one in there[:3])
            return (
                f"GPU {gpu.index} is in use by process {who}: ncu would stop it again and again, and what it "
                "measured would be of both; wait for it, or choose a free GPU with CUDA_VISIBLE_DEVICES"
            )
        if gpu.mem_used_bytes is not None and gpu.mem_used_bytes >= _UNSEEN_BYTES:
            return (
                f"{size(gpu.mem_used_bytes)} of GPU {gpu.index} are in use by processes that cannot be seen from "
                "here (another container's, perhaps): wait for them, or choose a free GPU with "
                "CUDA_VISIBLE_DEVICES"
            )
    return ""
