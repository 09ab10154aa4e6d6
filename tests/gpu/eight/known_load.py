"""Ranks that load their GPUs by a known amount, in turns: torchrun … known_load.py BACKEND FOLDER

Idle; all-reduces of a known size, for `PHASES` seconds each; matrix products on the ranks that `planted` names.
Before each of these rank 0 prints {"ready": NAME} and waits for a file NAME in FOLDER, after it {"done": NAME, …}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu.eight.judging import CHUNK, PHASES, planted, sizes

PATIENCE_S = 60.0


def said(**what: Any) -> None:
    """Tell who started it."""
    if dist.get_rank() == 0:
        print(json.dumps(what), flush=True)


class Load:
    """One rank."""

    def __init__(self, backend: str, folder: Path) -> None:
        dist.init_process_group(backend)
        self.gpu, self.folder = backend == "nccl", folder
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if self.gpu else torch.device("cpu")
        if self.gpu:
            torch.cuda.set_device(self.device)
        torch.set_num_threads(1)
        self.control = dist.new_group(backend="gloo")
        size, wide = sizes(self.gpu)
        self.message = torch.zeros(size // 4, device=self.device)
        self.size = size
        self.matrix = torch.randn(wide, wide, device=self.device, dtype=torch.bfloat16 if self.gpu else None)

    def wait(self) -> None:
        """Until its GPU has done all."""
        if self.gpu:
            torch.cuda.synchronize()

    def idle(self) -> dict[str, Any]:
        """Do nothing."""
        time.sleep(PHASES["idle"])
        return {}

    def chunk(self) -> None:
        """Some all-reduces."""
        for _ in range(CHUNK):
            dist.all_reduce(self.message)
        self.wait()

    def all_reduce(self) -> dict[str, Any]:
        """As many as fit, the same number on each rank."""
        calls = 0
        over = torch.zeros(1)
        ends = time.monotonic() + PHASES["all_reduce"]
        while not over[0]:
            self.chunk()
            calls += CHUNK
            over[0] = float(time.monotonic() > ends)
            dist.broadcast(over, 0, group=self.control)
        return {"calls": calls, "message_bytes": self.size}

    def products(self) -> dict[str, Any]:
        """Matrix products on the ranks that are named; the others sleep."""
        named = planted(self.ranks)
        ends = time.monotonic() + PHASES["products"]
        while time.monotonic() < ends:
            if self.rank not in named:
                time.sleep(0.1)
                continue
            for _ in range(20):
                torch.mm(self.matrix, self.matrix)
            self.wait()
        return {"planted": named}

    def run(self) -> None:
        """All in turn."""
        self.chunk()  # the first one connects
        works = {"idle": self.idle, "all_reduce": self.all_reduce, "products": self.products}
        for name, work in works.items():
            said(ready=name)
            deadline = time.monotonic() + PATIENCE_S
            while self.rank == 0 and not (self.folder / name).exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            dist.barrier(group=self.control)
            begun = time.time()
            did = work()
            ended = time.time()
            dist.barrier(group=self.control)
            said(done=name, begun=begun, ended=ended, **did)
        dist.destroy_process_group()


if __name__ == "__main__":
    Load(sys.argv[1], Path(sys.argv[2])).run()
