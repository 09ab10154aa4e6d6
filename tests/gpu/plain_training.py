"""A training without a line of llmtop: python -m tests.gpu.plain_training KIND BLOCKS [--cpu]

KIND is "gpt" (GPU-bound), "tiny" (launch-bound), "graphed" (the tiny one as a CUDA graph), "compiled"
(torch.compile with mode="reduce-overhead") or "ddp" (the GPT under torchrun). Prints "ready", then, at its end,
one JSON object: the median milliseconds of a step over blocks of 50, each ended by a synchronize.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from examples.train_gpt import GPT, SyntheticLanguage

BLOCK = 50


def size_of(kind: str, cpu: bool) -> argparse.Namespace:
    """A GPT that fills an H200, or one that hardly starts it."""
    if kind in ("gpt", "ddp") and not cpu:
        return argparse.Namespace(vocabulary=32000, sequence=2048, width=1024, heads=16, layers=12, batch=8)
    return argparse.Namespace(vocabulary=64, sequence=16, width=32, heads=2, layers=2, batch=4)


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("blocks", type=int)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    device = torch.device("cpu" if given.cpu else "cuda")
    if given.kind == "ddp":
        torch.distributed.init_process_group("gloo" if given.cpu else "nccl")
        if not given.cpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    size = size_of(given.kind, given.cpu)
    model: Any = GPT(size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=not given.cpu)
    if given.kind == "compiled":
        model = torch.compile(model, mode="default" if given.cpu else "reduce-overhead")
    if given.kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    if given.kind == "graphed" and not given.cpu:
        sample = torch.randint(size.vocabulary, (size.batch, size.sequence), device=device)
        model = torch.cuda.make_graphed_callables(model, (sample,))
    data = iter(DataLoader(SyntheticLanguage(size.vocabulary, size.sequence, 0), size.batch, num_workers=2))
    autocast: Any = contextlib.nullcontext() if given.cpu else torch.autocast("cuda", torch.bfloat16)

    def step() -> None:
        ids: Tensor = next(data).to(device, non_blocking=True)
        with autocast:
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def block() -> float:
        begun = time.perf_counter()
        for _ in range(BLOCK):
            step()
        if not given.cpu:
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begun) / BLOCK

    block()
    print("ready", flush=True)
    print(json.dumps({"step_ms": statistics.median(block() for _ in range(given.blocks))}), flush=True)
    if given.kind == "ddp":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
