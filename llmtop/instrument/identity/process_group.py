"""Rank and run from torch.distributed, where no launcher sets them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmtop.format import printable
from llmtop.instrument.identity.launcher_env import Store, local_world_size
from llmtop.naming import variable_names
from llmtop.protocol import tcp_store

if TYPE_CHECKING:
    from llmtop.instrument.identity.run_info import Facts

OFF = "LLMTOP_JOB_STORE"
"""Set to "off", nothing of llmtop's reads or writes the job's store."""
_LONGEST = 64
_WRAPPED = 8
"""Most stores within one another that are opened."""


def learn(facts: Facts) -> bool:
    """Fill in the rank and the rendezvous address, if the environment has none.

    Reads only this process's own state.

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
    master = _meeting_place()
    if facts.launch is not None and not facts.launch.master and master:
        facts.launch = facts.launch._replace(master=master)
        facts.changed()
    facts.store = _store(master, os.environ, facts.world_size)
    if facts.store is not None:
        facts.changed()
    return True


def _store(master: str, environment: Mapping[str, str], world_size: int | None) -> Store | None:
    """Return where captures of several nodes are asked for: nowhere if all ranks are here, or met by something
    else."""
    here = local_world_size(environment)
    if not master or master.startswith("file:") or environment.get(OFF) == "off":
        return None
    if (world_size or 1) < 2 or (here is not None and here >= (world_size or 1)):
        return None
    version = str(getattr(sys.modules.get("torch"), "__version__", "")).split(".")
    known = [int(part) for part in version[:2] if part.isdecimal()]
    if tuple(known) < tcp_store.FIRST_TORCH:
        return None
    run = printable(environment.get(variable_names.TORCHELASTIC_RUN, ""))[:_LONGEST]
    start = printable(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))[:_LONGEST]
    return Store(master, f"/llmtop/{run}/{start}")


def _meeting_place() -> str:
    """Return the rendezvous address or file of init_process_group(); "" if it is not kept."""
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
