"""Roles of ranks by the groups of real meshes: four gloo ranks with pipelining, tensor parallel and FSDP2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.instrument.identity.roles import MOST_ROLES, read_roles
from tests.support.processes import environment

pytestmark = pytest.mark.torch

MESH = """
import json, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from llmtop.instrument.identity.roles import read_roles
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=4)
before = read_roles()
init_device_mesh("cpu", (2, 2), mesh_dim_names=NAMES)
print(json.dumps([before, read_roles()]), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def _roles(tmp_path: Path, names: str) -> list[list[dict[str, int]]]:
    (tmp_path / "mesh.py").write_text(MESH.replace("NAMES", names))
    ranks = [
        subprocess.Popen(
            [sys.executable, tmp_path / "mesh.py", tmp_path / "store", str(rank)],
            env=environment(OMP_NUM_THREADS="1"),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        return [json.loads(one.communicate(timeout=240)[0]) for one in ranks]
    finally:
        for one in ranks:
            one.kill()


@pytest.mark.slow("starts four processes with torch; test_a_process_without_torch_has_none runs the same code")
@pytest.mark.parametrize("names", ['("pp", "dp")', '("dp_replicate", "tp")'])
def test_each_rank_has_its_coordinates_by_the_names_of_the_mesh(names: str, tmp_path: Path) -> None:
    first, second = json.loads(names.replace("(", "[").replace(")", "]"))
    found = _roles(tmp_path, names)
    assert [before for before, _ in found] == [{}] * 4
    assert [after for _, after in found] == [{first: rank // 2, second: rank % 2} for rank in range(4)]


def test_a_process_without_torch_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d", raising=False)
    assert read_roles() == {}


class _Group:
    def __init__(self, description: str, rank: int = 5) -> None:
        self.group_desc = description
        self._rank = rank

    def rank(self) -> int:
        return self._rank


def test_megatron_s_groups_and_meshes_without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables as torch has them, with descriptions that Megatron-Core and unnamed meshes give."""
    own = {5: 1, 4: 0}
    groups = {
        _Group("TENSOR_MODEL_PARALLEL_GROUP"): own,
        _Group("PIPELINE_MODEL_PARALLEL_GROUP"): {1: 0, 5: 1},
        _Group("mesh_dim_0"): own,
        _Group("mesh_default"): own,
        _Group("undefined"): own,
        _Group("mesh_\x1b[2J"): own,
        _Group("mesh_cp"): {1: 0, 2: 1},  # of other ranks
        **{_Group(f"mesh_axis{number}"): own for number in range(20)},
    }

    class World:
        pg_group_ranks = groups

    class Members:
        WORLD = _Group("default_pg")

    class Tables:
        _world = World
        GroupMember = Members

    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", Tables)
    found = read_roles()
    assert (found["tp"], found["pp"]) == (1, 1)
    assert set(found) <= {"tp", "pp", *(f"axis{number}" for number in range(20))}
    assert len(found) == MOST_ROLES
