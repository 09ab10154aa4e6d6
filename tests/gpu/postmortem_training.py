"""Two ranks of torchrun, the last of which fails as asked: torchrun … postmortem_training.py FAULT [gloo]"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

FAILS_AT = 30
TIMEOUT_SECONDS = 15


def next_batch(step: int, fault: str, device: torch.device) -> torch.Tensor:
    """Return a batch; the fault "loader" never does."""
    if fault == "loader" and step == FAILS_AT:
        time.sleep(1000)
    return torch.ones(1024, device=device)


def fail(fault: str) -> None:
    """Do what ends or stops a process."""
    if fault == "exception":
        raise ValueError("label 17 is out of range")
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)


@record
def main() -> None:
    """Train until the fault."""
    fault, backend = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "nccl"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS))
    rank = dist.get_rank()
    is_last = rank == dist.get_world_size() - 1
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    for step in range(1, 400):
        batch = next_batch(step, fault if is_last else "", device)
        if is_last and step == FAILS_AT:
            fail(fault)
            batch = torch.ones(512, device=device) if fault == "shape" else batch
        dist.all_reduce(batch)
        if backend == "nccl":
            torch.cuda.synchronize()
        print(f"rank {rank} step {step}", flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
