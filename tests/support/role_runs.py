"""Roles and verdicts of seven real trainings of four gloo ranks each, under `llmtop run`.

python -m tests.support.role_runs [NAME ...]

Work is made of matrix products and sleeps, so that a planted difference is larger than what a busy machine adds.
Prints for each run the roles of its ranks, and the alerts about ranks and roles that were raised.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.ports import free_port
from tests.support.processes import environment

RANKS: Final = 4
SECONDS: Final = 45.0
START_SECONDS: Final = 300.0
"""Limit until all ranks have made five steps: four imports of torch took over two minutes at a load of 25."""
_HEAD = """
import os, time, torch
import torch.distributed as dist
import tests.support.light_optimizer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
torch.manual_seed(1)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()

class Work(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.line = nn.Linear(32, 32)
        self.seconds = seconds
    def forward(self, x):
        time.sleep(self.seconds)
        return self.line(x)

def steps(do, parameters):
    optimizer = torch.optim.SGD(parameters, lr=1e-4)
    while True:
        do()
        optimizer.step()
        optimizer.zero_grad()
"""
_PIPELINE = """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
pp, group = mesh.get_local_rank("pp"), mesh["pp"].get_group()
net = Work(SECONDS)
stage = PipelineStage(net, pp, 2, torch.device("cpu"), group=group)
schedule = ScheduleGPipe(stage, 4, loss_fn=lambda y, t: ((y - t) ** 2).mean())
batch = torch.randn(16, 32)
def do():
    schedule.step(batch) if pp == 0 else schedule.step(target=batch)
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad, group=mesh["dp"].get_group())
steps(do, net.parameters())
"""


class RoleRun(NamedTuple):
    """One training and what is to be reported of it."""

    source: str
    roles: list[dict[str, int]]
    """Of each rank."""
    verdict: str
    """"imbalance pp 1", "straggler 2", or "" for a healthy one."""


_PP_DP: Final = [{"pp": rank // 2, "dp": rank % 2} for rank in range(RANKS)]
_DP_TP: Final = [{"dp": rank // 2, "tp": rank % 2} for rank in range(RANKS)]
_TENSOR = """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.work, self.down = nn.Linear(32, 64), Pause(), nn.Linear(64, 32)
    def forward(self, x):
        return self.down(self.work(self.up(x)))
class Pause(nn.Module):
    def forward(self, x):
        time.sleep(0.02)
        return x
net = Block()
plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
"""
RUNS: Final[dict[str, RoleRun]] = {
    "pipeline-unequal": RoleRun(_PIPELINE.replace("SECONDS", "0.02 + 0.02 * (pp == 1)"), _PP_DP, "imbalance pp 1"),
    "pipeline-slow-rank": RoleRun(
        _PIPELINE.replace("SECONDS", "0.02 + 0.02 * (rank == 2)"), _PP_DP, "straggler 2"
    ),
    "tensor": RoleRun(
        _TENSOR
        + """
mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
parallelize_module(net, mesh, plan)
steps(lambda: net(torch.ones(8, 32)).sum().backward(), net.parameters())
""",
        [{"tp": rank} for rank in range(RANKS)],
        "",
    ),
    "fsdp2": RoleRun(
        """
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
net = nn.Sequential(Work(0.02), Work(0.02))
for one in net:
    fully_shard(one, mesh=mesh)
fully_shard(net, mesh=mesh)
steps(lambda: net(torch.randn(8, 32)).sum().backward(), net.parameters())
""",
        [{"dp_replicate": rank // 2, "dp_shard": rank % 2} for rank in range(RANKS)],
        "",
    ),
    "data-tensor": RoleRun(
        _TENSOR
        + """
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
parallelize_module(net, mesh["tp"], plan)
fully_shard(net, mesh=mesh["dp"])
steps(lambda: net(torch.ones(8, 32)).sum().backward(), net.parameters())
""",
        _DP_TP,
        "",
    ),
    "data-pipeline": RoleRun(_PIPELINE.replace("SECONDS", "0.02"), _PP_DP, ""),
    "pipeline-without-mesh": RoleRun(
        """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
net = Work(0.01)
stage = PipelineStage(net, rank, 4, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 4, loss_fn=lambda y, t: ((y - t) ** 2).mean())
batch = torch.randn(16, 32)
def do():
    schedule.step(batch) if rank == 0 else schedule.step(target=batch) if rank == 3 else schedule.step()
steps(do, net.parameters())
""",
        [{"pp": rank} for rank in range(RANKS)],
        "",
    ),
}


def _start(folder: Path, source: str) -> list[subprocess.Popen[bytes]]:
    script, port = folder / "train.py", free_port()
    script.write_text(_HEAD + source)
    return [
        subprocess.Popen(
            [sys.executable, "-m", "llmtop", "run", "-q", "--", sys.executable, str(script)],
            env=environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(RANKS),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                OMP_NUM_THREADS="1",
                LLMTOP_DIR=str(folder / "sockets"),
            ),
            stdout=subprocess.DEVNULL,
            stderr=(folder / f"{rank}.err").open("wb"),
        )
        for rank in range(RANKS)
    ]


def watch(name: str, folder: Path, seconds: float = SECONDS, enough: int | None = None) -> dict[str, Any]:
    """Run one training and return the roles of its ranks and the alerts that were raised.

    Args:
        name: of `RUNS`.
        folder: for its files.
        seconds: of the monitor at most, after all ranks have made steps.
        enough: end once the roles are right, with so many snapshots that have an alert, or, for a healthy run, so
            many in all; None: watch to the end.
    """
    processes = _start(folder, RUNS[name].source)
    monitor = None
    try:
        monitor = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "--json"],
            env=environment(LLMTOP_DIR=str(folder / "sockets")),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert monitor.stdout is not None
        alerts: Counter[str] = Counter()
        roles: list[dict[str, int]] = []
        end = time.monotonic() + seconds + START_SECONDS
        phases: dict[str, float] = {}
        begun, counted = False, 0
        for line in monitor.stdout:
            seen = json.loads(line)
            stepping = [rank for rank in seen["ranks"] if (rank["step"] or 0) >= 5]
            if not begun and len(stepping) == RANKS:
                begun, end = True, time.monotonic() + seconds
            if len(seen["ranks"]) == RANKS:
                roles = [rank["roles"] for rank in sorted(seen["ranks"], key=lambda rank: rank["rank"])]
            for alert in seen["alerts"]:
                if alert["id"] in ("straggler", "imbalance"):
                    evidence = alert["evidence"]
                    at = evidence["rank"] if alert["id"] == "straggler" else None
                    where = at if at is not None else f"{evidence.get('role')} {evidence.get('coordinates')}"
                    alerts[f"{alert['id']} {where}"] += 1
            if seen["ranks"]:
                phases = {one["name"]: round(one["host_seconds"], 4) for one in seen["ranks"][0]["phases"]}
            counted += begun and (bool(alerts) or not RUNS[name].verdict)
            if enough is not None and counted >= enough and roles == RUNS[name].roles:
                break
            if time.monotonic() > end or any(one.poll() is not None for one in processes):
                break
        return {"roles": roles, "alerts": dict(alerts), "stepped": begun, "phases": phases}
    finally:
        for one in (*processes, *([monitor] if monitor else [])):
            one.kill()
            one.wait(60)


def main() -> None:
    """Print the result of each run beside what it should be."""
    for name in sys.argv[1:] or RUNS:
        with tempfile.TemporaryDirectory() as folder:
            found = watch(name, Path(folder))
            errors = [path.read_text()[-400:] for path in Path(folder).glob("*.err") if path.stat().st_size]
        run = RUNS[name]
        print(
            json.dumps(
                {
                    "run": name,
                    "roles_right": found["roles"] == run.roles,
                    "verdict": run.verdict,
                    **found,
                    "errors": errors[:1],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
