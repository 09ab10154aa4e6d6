"""A launch-bound training that prints what its steps take: python -m tests.gpu.watched_training SECONDS

One line a second: unix seconds, the mean and median milliseconds of the steps that began in it, and of a step the
processor milliseconds, the voluntary and the other context switches of the thread that trains. On a GPU where
there is one.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time

import torch
from torch import nn

LAYERS = 60


def main() -> None:
    """Train until the time is over."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    width = 256 if device == "cuda" else 32
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    batch = torch.randn(64, width, device=device)
    ends = time.monotonic() + float(sys.argv[1])
    second, taken, before = int(time.time()), [], _spent()
    while time.monotonic() < ends:
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        taken.append(1e3 * (time.perf_counter() - begun))
        if int(time.time()) != second:
            now = _spent()
            spent = (f"{(now_one - one) / len(taken):.4f}" for one, now_one in zip(before, now, strict=True))
            print(second, f"{statistics.mean(taken):.4f}", f"{statistics.median(taken):.4f}", *spent, flush=True)
            second, taken, before = int(time.time()), [], now


def _spent() -> tuple[float, int, int]:
    of_thread = resource.getrusage(resource.RUSAGE_THREAD)
    return 1e3 * time.thread_time(), of_thread.ru_nvcsw, of_thread.ru_nivcsw


if __name__ == "__main__":
    main()
