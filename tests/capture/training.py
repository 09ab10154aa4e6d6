"""A small training for the capture tests: steps of 60 ms with four phases, attached, and one line a step.

usage: training.py [--until FILE] [--step-ms MS] [--torch] [--slow-every N [--slow-times F]] [--plain]
                   [--lockstep SOCKET] [--workers] [--nvtx]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import time
from typing import Any


def main() -> None:
    """Train until a file appears or SIGTERM comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", default="", help="end after the step in which this file appears")
    parser.add_argument("--step-ms", type=float, default=60.0)
    parser.add_argument("--torch", action="store_true", help="do a little work with PyTorch in each step")
    parser.add_argument("--slow-every", type=int, default=0, help="every so many steps one takes longer")
    parser.add_argument("--slow-times", type=float, default=5.0, help="how many times as long")
    parser.add_argument("--plain", action="store_true", help="import nothing of llmtop")
    parser.add_argument(
        "--lockstep", default="", help="wait in each step for the other of two ranks, over this socket"
    )
    parser.add_argument("--nvtx", action="store_true", help="let PyTorch call NVTX as it does with CUDA")
    parser.add_argument("--odd-index", action="store_true", help="count steps in tens")
    parser.add_argument("--workers", action="store_true", help="fork one that works and one that waits for orders")
    options = parser.parse_args()
    if options.workers:
        _fork_workers()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    if options.nvtx:
        from tests.support import torch_nvtx

        torch_nvtx.register()
    work = _torch_work() if options.torch else None
    other = _other_rank(options.lockstep) if options.lockstep else None
    step, phase = _plain() if options.plain else _attached()
    index = -1
    while not (options.until and os.path.exists(options.until)):
        index += 1
        slow = options.slow_every and index % options.slow_every == options.slow_every - 1
        seconds = options.step_ms / 1000 * (options.slow_times if slow else 1)
        with step(index=10 * index) if options.odd_index else step():
            with phase("dataload"):
                time.sleep(seconds / 4)
            with phase("forward"):
                time.sleep(seconds / 4)
                loss = work.forward() if work else None
            with phase("backward"):
                time.sleep(seconds / 4)
                if other is not None:
                    other.sendall(b"x")
                    assert other.recv(1) == b"x"
                if loss is not None:
                    loss.backward()
            with phase("optimizer"):
                time.sleep(seconds / 4)
                if work:
                    work.optimizer_step()
        print(index, flush=True)


_RANK_SECONDS = 100
"""How long one rank waits for the other: a capture may stop that one meanwhile."""


def decode() -> None:
    """What a worker does all the time."""
    while True:
        sum(range(200))


def waits_for_orders(orders: Any) -> None:
    """What a worker does that has nothing to do."""
    orders.get()


def _fork_workers() -> None:
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    orders = fork.Queue()
    for worker in (
        fork.Process(target=decode, daemon=True),
        fork.Process(target=waits_for_orders, args=(orders,), daemon=True),
    ):
        worker.start()


def _other_rank(path: str) -> socket.socket:
    """A collective of two: whoever comes first waits for the other."""
    if os.environ["RANK"] == "0":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            listener.settimeout(_RANK_SECONDS)
            other = listener.accept()[0]
            other.settimeout(_RANK_SECONDS)
            return other
    other = socket.socket(socket.AF_UNIX)
    other.settimeout(_RANK_SECONDS)
    while other.connect_ex(path):
        time.sleep(0.01)
    return other


def _attached() -> tuple[Any, Any]:
    import llmtop

    llmtop.attach()
    return llmtop.step, llmtop.phase


def _plain() -> tuple[Any, Any]:
    return contextlib.nullcontext, lambda name: contextlib.nullcontext()


def _torch_work() -> Any:
    import torch

    from tests.support.light_optimizer import LightSGD

    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = LightSGD(model.parameters(), lr=0.01)

    class Work:
        def forward(self) -> Any:
            return model(torch.randn(8, 64)).sum()

        def optimizer_step(self) -> None:
            optimizer.step()
            optimizer.zero_grad()

    return Work()


if __name__ == "__main__":
    main()
