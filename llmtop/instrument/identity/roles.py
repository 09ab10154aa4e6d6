"""Which part of the model a rank holds: its coordinates in tensor, pipeline, data and other parallel groups.

Read from torch.distributed's own tables, where DeviceMesh (and so FSDP2) and Megatron-Core name their groups.
Nothing is imported, no collective is called, and nothing of the training is kept. A dimension that has all ranks
uses the default group, which has no name: hooks note its coordinate from the parameters' mesh or the pipeline.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

MOST_ROLES = 8
_MESH = "mesh_"
_UNNAMED = re.compile(r"^(dim_\d+|default)$")
_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_.-]{0,23}$")
_MEGATRON = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
}
"""Descriptions of Megatron-Core's groups, and (with an underscore in front) its variables."""


_noted: dict[str, int] = {}


def note(coordinates: Mapping[str, int]) -> None:
    """Store coordinates that no group's name shows."""
    _noted.update({role: at for role, at in coordinates.items() if _NAME.match(role) and not _UNNAMED.match(role)})


def read_roles() -> dict[str, int]:
    """Return this rank's coordinate by role ("tp": 1), in the order in which the groups were made; empty if
    unknown."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    members = getattr(world, "pg_group_ranks", None)
    if not isinstance(members, dict):
        return dict(_noted)
    parallel_state: Any = sys.modules.get("megatron.core.parallel_state")
    megatron = {
        id(getattr(parallel_state, f"_{name}", None)): role
        for name, role in _MEGATRON.items()
        if getattr(parallel_state, f"_{name}", None) is not None
    }
    found: dict[str, int] = {}
    own = _own_rank(c10d)
    for group, ranks in list(members.items()):
        if not isinstance(ranks, dict) or own not in ranks:
            continue
        role = megatron.get(id(group)) or _role(getattr(group, "group_desc", None))
        if role is not None and role not in found and len(found) < MOST_ROLES:
            found[role] = int(ranks[own])
    for role, at in list(_noted.items()):
        if len(found) < MOST_ROLES:
            found.setdefault(role, at)
    return found


def _own_rank(c10d: Any) -> int | None:
    group = getattr(getattr(c10d, "GroupMember", None), "WORLD", None)
    rank = getattr(group, "rank", None)
    return int(rank()) if callable(rank) else None


def _role(description: object) -> str | None:
    """Return the role that a group's description names."""
    if not isinstance(description, str):
        return None
    if description in _MEGATRON:
        return _MEGATRON[description]
    if not description.startswith(_MESH):
        return None
    name = description.removeprefix(_MESH)
    return name if _NAME.match(name) and not _UNNAMED.match(name) else None
