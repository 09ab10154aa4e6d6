"""Snapshots made up for tests, one value at a time."""

from __future__ import annotations

from typing import Any

from llmtop.model.snapshot import Gpu, Host, Rank, Snapshot


def gpu(index: int = 0, **fields: Any) -> Gpu:
    """A GPU that answers; its UUID says which one it is."""
    return Gpu(**{"index": index, "uuid": f"GPU-{index:08x}", "name": "NVIDIA H200", **fields})


def rank(pid: int = 100, **fields: Any) -> Rank:
    """An attached training."""
    return Rank(**{"pid": pid, "host": "node", **fields})


def snapshot(time: float = 1000.0, **fields: Any) -> Snapshot:
    """A moment on a host called node."""
    return Snapshot(**{"time": time, "host": Host(name="node"), **fields})
