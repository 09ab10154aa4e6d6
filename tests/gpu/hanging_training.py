"""Ranks of torchrun of which the last never joins the 40th all-reduce: torchrun … hanging_training.py [gloo]

Each prints its step as it goes, so that what hangs can be told apart from what never began.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

HANGS_AT = 40


def main() -> None:
    """Train until the hang."""
    backend = sys.argv[1] if len(sys.argv) > 1 else "nccl"
    dist.init_process_group(backend)
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    model = nn.Linear(512, 512, bias=False).to(device)  # one all-reduce a step
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 1000):
        model(torch.randn(64, 512, device=device)).square().mean().backward()
        if step == HANGS_AT and rank == last:
            print(f"rank {rank} hangs at {time.time()}", flush=True)
            time.sleep(1000)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if backend == "nccl":
            torch.cuda.synchronize()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
