"""What torch.distributed knows of this process's run, where no launcher says it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmtop.instrument.serve.run_info import Facts

_WRAPPED = 8
"""So many stores within one another are opened at most."""


def learn(facts: Facts) -> bool:
    """Fill in the rank, and where the ranks meet, if the environment did not say so.

    Asks nobody: it only looks at what this process holds.

    Returns:
        Whether there is a process group, so that there is nothing more to learn.
    """
    dist: Any = sys.modules.get("torch.distributed")
    is_initialized = getattr(dist, "is_initialized", None)
    if is_initialized is None or not dist.is_available() or not is_initialized():
        return False
    if facts.rank is None:
        facts.rank, facts.world_size = dist.get_rank(), dist.get_world_size()
        facts.changed()
    if facts.launch is not None and not facts.launch.master and (master := _meeting_place()):
        facts.launch = facts.launch._replace(master=master)
        facts.changed()
    return True


def _meeting_place() -> str:
    """The address or the file that the ranks met by, as init_process_group() was told; empty if it is not kept."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    group = getattr(getattr(c10d, "GroupMember", None), "WORLD", None)
    known = getattr(world, "pg_map", None)
    if not isinstance(known, dict) or group not in known:
        return ""
    store = known[group][1]
    for _ in range(_WRAPPED):
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            break
        store = inner
    host, port, path = (getattr(store, name, None) for name in ("host", "port", "path"))
    if isinstance(host, str) and isinstance(port, int):
        return f"{host}:{port}"
    return f"file:{path}" if isinstance(path, str) and path else ""
