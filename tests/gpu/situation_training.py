"""A GPT training in one of the situations that a screen must tell apart; started by check_situations.py.

It is written as people write them and knows nothing of llmtop: situation_training.py NAME, under torchrun for the
situations of two ranks. Prints "training" after its first steps, and goes on until it is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

FIRST_STEPS = 5
WELL_SECONDS = 7.0
"""For so long after the first step all is well where it then hangs or one rank becomes slow."""
CHECKPOINT_STEPS = 60


class Block(nn.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same."""
        parts = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Language(nn.Module):
    """Tokens to the logits of the next ones, and what the last block gave."""

    def __init__(self, size: argparse.Namespace) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(size.tokens, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.Sequential(*(Block(size.width, size.heads) for _ in range(size.layers)))
        self.head = nn.Linear(size.width, size.tokens, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, length) -> (batch, length, tokens), (batch, length, width)."""
        hidden = self.blocks(self.embed(tokens) + self.place.weight[: tokens.shape[1]])
        return self.head(hidden), hidden


class Texts(IterableDataset[Tensor]):
    """Random tokens; where they are packed, each text takes a while to unpack."""

    def __init__(self, size: argparse.Namespace, unpack_seconds: float) -> None:
        self.size, self.unpack_seconds = size, unpack_seconds
        self.packed = zlib.compress(os.urandom(1 << 16) * 16, 9)

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            ends = time.perf_counter() + self.unpack_seconds
            while time.perf_counter() < ends:
                zlib.decompress(self.packed)
            yield torch.randint(self.size.tokens, (self.size.length + 1,))


def size_of(name: str, gpu: bool) -> argparse.Namespace:
    """A GPT that fills an H100, one that hardly starts it, or one for a CPU."""
    if not gpu:
        return argparse.Namespace(tokens=256, length=64, width=64, heads=2, layers=2, batch=4)
    if name == "launch_bound":
        return argparse.Namespace(tokens=256, length=64, width=64, heads=2, layers=24, batch=4)
    return argparse.Namespace(tokens=32000, length=2048, width=1024, heads=16, layers=12, batch=8)


def loader_of(name: str, size: argparse.Namespace, gpu: bool) -> DataLoader[Tensor]:
    """Batches; of the starved training by one worker that unpacks each text."""
    if name != "starved":
        return DataLoader(Texts(size, 0.0), size.batch, pin_memory=gpu)
    return DataLoader(Texts(size, 0.03 if gpu else 0.01), size.batch, num_workers=1, pin_memory=gpu)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Write a checkpoint, and beside it the sum by which a reader knows that it is whole."""
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    with path.open("rb") as file:
        found = hashlib.sha256()
        while piece := file.read(1 << 24):
            found.update(piece)
    path.with_suffix(".sha256").write_text(found.hexdigest())


def wait_for_the_disk() -> None:
    """What never comes back."""
    time.sleep(100_000)


def main() -> None:
    """Train until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="what is wrong with it, as check_situations.py calls it")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    told = parser.parse_args()
    gpu, name = told.backend == "nccl", told.name
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    last, of_ranks = False, "RANK" in os.environ
    if of_ranks:
        dist.init_process_group(told.backend)
        last = dist.get_rank() == dist.get_world_size() - 1
    size = size_of(name, gpu)
    model: Any = Language(size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False if name == "launch_bound" else None)
    if of_ranks:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[local] if gpu else None)
    loader = loader_of(name, size, gpu)
    kept, losses, begun = [], [], time.monotonic()
    for step, texts in enumerate(loader, 1):
        well = time.monotonic() - begun < WELL_SECONDS
        texts = texts.to(device, non_blocking=True)
        if name == "straggler" and last and not well:
            time.sleep(0.05 if gpu else 0.02)  # a slow disk, say
        with torch.autocast("cuda", torch.bfloat16) if gpu else contextlib.nullcontext():
            logits, hidden = model(texts[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if name == "leaking":
            kept.append(hidden.detach())
        if name == "checkpointing" and step % CHECKPOINT_STEPS == 0:
            save(model, optimizer, Path("last.pt"))
        if name == "hung" and last and not well:
            wait_for_the_disk()
        if step % 50 == 0:
            losses.append(loss.item())
        if step == FIRST_STEPS:
            os.write(1, b"training\n")  # at once and whole, though ranks share the output
            begun = time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
