"""A training of some ranks, written as people write them: it knows nothing of llmtop. Started by check_ranks.py.

From step `PLANTED_AT` on the last rank does what `--plant` says. Prints one JSON line when the training ends: at
which step that began, and how long steps took; with `--stamps` writes when each of rank 0's steps ended.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset

from tests.gpu.rank_plants import NEIGHBOURS, PLANTED_AT, PLANTS

SLEEP_S = 0.04
TOKENS = 1024
MULTIPLIES = """
import sys, torch
where = sys.argv[1]
torch.set_num_threads(1)
size = 8192 if where != "cpu" else 512
a = torch.randn(size, size, device=where, dtype=torch.bfloat16 if where != "cpu" else None)
b = a @ a
if where != "cpu":
    torch.cuda.synchronize()
print("at work", flush=True)
while True:
    for _ in range(20):
        b = a @ a
    if where != "cpu":
        torch.cuda.synchronize()
"""
COPIES = """
import sys, torch
where = sys.argv[1]
a = torch.zeros(1 << (28 if where != "cpu" else 24), device=where)
b = torch.ones_like(a)
torch.set_num_threads(1)
b.copy_(a)
if where != "cpu":
    torch.cuda.synchronize()
print("at work", flush=True)
while True:
    for _ in range(20):
        b.copy_(a)
    if where != "cpu":
        torch.cuda.synchronize()
"""


class Block(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Batches(IterableDataset[torch.Tensor]):
    """Random tokens; from the planted step on each batch comes late, if it is to be so here."""

    def __init__(self, rows: int, late: bool) -> None:
        self.rows, self.late = rows, late

    def __iter__(self) -> Iterator[torch.Tensor]:
        index = 0
        while True:
            if self.late and index >= PLANTED_AT:
                time.sleep(SLEEP_S)
            index += 1
            yield torch.randint(TOKENS, (self.rows,))


def options() -> argparse.Namespace:
    """What check_ranks.py says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("ddp", "fsdp2"), required=True)
    parser.add_argument("--plant", choices=PLANTS, required=True)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--until", type=Path, help="end as soon as this file is there")
    parser.add_argument(
        "--stamps", type=Path, help="write there when rank 0's steps ended, seconds of CLOCK_MONOTONIC"
    )
    return parser.parse_args()


def build(kind: str, device: torch.device, width: int, layers: int) -> tuple[nn.Module, nn.Module]:
    """The module that is trained, and a copy that is not."""
    model = nn.Sequential(*(Block(width) for _ in range(layers))).to(device)
    teacher = copy.deepcopy(model).requires_grad_(False)
    if kind == "ddp":
        where = None if device.type == "cpu" else [device.index]
        return nn.parallel.DistributedDataParallel(model, device_ids=where, gradient_as_bucket_view=True), teacher
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, teacher


def main() -> None:
    """Train until the time is over."""
    told = options()
    gpu = told.backend == "nccl"
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[local % len(cores)]})
    dist.init_process_group(told.backend)
    last = dist.get_rank() == dist.get_world_size() - 1
    plant = told.plant if last else ""
    heavy = told.plant == "communication"
    if gpu:  # NVLink moves a gigabyte in some 5 ms, as long as a host takes to launch 8 small layers under FSDP2
        width, layers = (8192, 4) if heavy else (2048, 8)
    else:
        width, layers = (512, 4) if heavy else (192, 6)
    rows = (64 if heavy else 8192) if gpu else (2 if heavy else 192)
    model, teacher = build(told.kind, device, width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=gpu)
    table = torch.randn(TOKENS, width, device=device)
    loader = DataLoader(Batches(rows, plant == "slow_data"), batch_size=None, pin_memory=gpu)
    neighbour, begun, steps = None, time.monotonic(), 0
    planted_at = torch.full((1,), 0 if told.plant in NEIGHBOURS else PLANTED_AT)
    times: list[float] = []
    over = torch.zeros(1)
    control = dist.new_group(backend="gloo")
    for index, batch in enumerate(loader):
        planted = index >= PLANTED_AT
        x = table[batch.to(device, non_blocking=True)]
        if planted and plant == "slow_clock":
            x = torch.cat([x, x[: rows // 2]])
        if planted and plant in NEIGHBOURS and neighbour is None:
            program = COPIES if plant == "neighbour" else MULTIPLIES
            neighbour = subprocess.Popen([sys.executable, "-c", program, str(device)], stdout=subprocess.PIPE)
            assert neighbour.stdout is not None
            os.set_blocking(neighbour.stdout.fileno(), False)
        if neighbour is not None and not planted_at[0] and neighbour.stdout and neighbour.stdout.read():
            planted_at[0] = index  # it takes seconds to start
        if planted and plant == "sleep":
            time.sleep(SLEEP_S)
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            if planted and plant == "extra_forward":
                with torch.no_grad():
                    for _ in range(1 if gpu else 3):
                        teacher(x)
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.monotonic())
        steps = index
        if index % 50 == 49:  # all ranks end after the same step
            dist.all_reduce(planted_at, dist.ReduceOp.MAX, group=control)
            ends = time.monotonic() - begun > told.seconds or (told.until is not None and told.until.exists())
            over[0] = float(ends and 0 < planted_at[0] < index - 60)
            dist.broadcast(over, 0, group=control)
            if over[0]:
                break
    if neighbour is not None:
        neighbour.kill()
    if dist.get_rank() == 0:
        lengths = sorted(b - a for a, b in zip(times[PLANTED_AT:], times[PLANTED_AT + 1 :], strict=False))
        fact = {
            "planted_at": int(planted_at[0]),
            "steps": steps,
            "step_s": lengths[len(lengths) // 2] if lengths else None,
        }
        print(json.dumps(fact), flush=True)
        if told.stamps is not None:
            told.stamps.write_text(json.dumps(times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
