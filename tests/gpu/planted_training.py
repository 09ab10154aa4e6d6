"""An attached training of the example GPT with one bottleneck planted; started by check_monitor.py.

Prints one JSON line when the plant begins ({"planted_at": unix s, "step": index}) and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import llmtop

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from bottlenecks import batches, spin
from train_gpt import GPT, options

HANG_SECONDS = 20


def main() -> None:
    """Train healthily for `--healthy` steps, then with the plant for `--planted` steps (or seconds of it)."""
    parser = options()
    parser.add_argument("--plant", choices=("none", "starve", "slow-rank", "hang", "spin"), default="none")
    parser.add_argument("--healthy", type=int, default=60)
    parser.add_argument("--planted", type=int, default=120)
    parser.add_argument("--share", type=float, default=0.5, help="of the planted step that is waited or extra")
    arguments = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if world > 1:
        dist.init_process_group("nccl")
    model = GPT(arguments).cuda()
    extra = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True) if world > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    llmtop.attach(params=sum(p.numel() for p in model.parameters()), dtype="bf16")
    planted, delay, extra_rounds, healthy_since = False, 0.0, 0, time.monotonic()
    source = batches(arguments)

    def fed():  # type: ignore[no-untyped-def]
        for batch in source:
            time.sleep(delay)
            yield batch

    for index, batch in enumerate(llmtop.loader(fed())):
        if index == 20:
            torch.cuda.synchronize()
            healthy_since = time.monotonic()
        if index == arguments.healthy:
            torch.cuda.synchronize()
            step_s = (time.monotonic() - healthy_since) / (arguments.healthy - 20)
            planted = True
            if arguments.plant == "starve":
                # The GPU is idle for share of the step when the wait is that much longer than its work.
                delay = step_s / (1 - arguments.share)
            elif arguments.plant == "slow-rank" and rank == world - 1:
                extra_rounds = max(1, round(arguments.share * step_s / _matmul_seconds(extra)))
            if rank == 0:
                fact = {"planted_at": time.time(), "step": index, "healthy_step_s": step_s, "delay_s": delay}
                print(json.dumps(fact), flush=True)
            if arguments.plant == "spin":
                spin(arguments.planted)
                return
        if planted and arguments.plant == "hang" and rank == world - 1 and index == arguments.healthy + 20:
            time.sleep(HANG_SECONDS)
            os._exit(0)
        if index == arguments.healthy + arguments.planted:
            break
        with llmtop.step(tokens=batch[:, 1:].numel()):
            with llmtop.phase("h2d"):
                ids = batch.cuda(non_blocking=True)
            with llmtop.phase("forward"), torch.autocast("cuda", torch.bfloat16):
                for _ in range(extra_rounds):
                    extra @ extra
                loss = F.cross_entropy(wrapped(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    if world > 1:
        dist.destroy_process_group()


def _matmul_seconds(matrix: torch.Tensor) -> float:
    for _ in range(3):
        matrix @ matrix
    torch.cuda.synchronize()
    started = time.monotonic()
    for _ in range(10):
        matrix @ matrix
    torch.cuda.synchronize()
    return (time.monotonic() - started) / 10


if __name__ == "__main__":
    main()
