"""Train a small image classifier whose data loader is the bottleneck: the script of docs/tutorial.md.

    python examples/slow_loader.py                # each batch is decoded in the training process
    python examples/slow_loader.py --workers 2    # the fix: two worker processes decode ahead

It runs on the CPU and downloads nothing. It does not import llmtop: `llmtop run` attaches it.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    """Random images; each waits for its file, as on network storage, and is then normalized."""

    def __init__(self, count: int, delay_s: float) -> None:
        self.count, self.delay_s = count, delay_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.delay_s)  # what the read of one file takes
        image = torch.rand(3, 32, 32)
        return (image - image.mean()) / image.std(), index % 10


def train(arguments: argparse.Namespace) -> None:
    """Train for `--steps` steps and print the time per step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the model is small: more threads wait for each other
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = Images(arguments.steps * arguments.batch, arguments.delay_ms / 1000)
    loader = DataLoader(images, batch_size=arguments.batch, num_workers=arguments.workers)
    started = time.monotonic()
    for index, (batch, labels) in enumerate(loader):
        loss = F.cross_entropy(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if index % 100 == 99:
            each_ms = 1000 * (time.monotonic() - started) / (index + 1)
            print(f"step {index + 1}: loss {loss.item():.3f}, {each_ms:.1f} ms/step", flush=True)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=10_000, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=16, help="images per step")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="time to read one image, in ms")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader worker processes")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
