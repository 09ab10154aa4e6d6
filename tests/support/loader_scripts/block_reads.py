"""Train a small classifier on blocks of a large file."""

import mmap
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, Dataset

BLOCK = 4 << 20
BLOCKS = 64


class Blocks(Dataset):
    def __init__(self, path):
        self.path = path
        self.file = None

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if self.file is None:
            self.file = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
            self.buffer = mmap.mmap(-1, BLOCK)
        values = np.zeros(256, np.float32)
        for _ in range(8):
            position = random.randrange(BLOCKS) * BLOCK
            with stamp("planted"):
                os.preadv(self.file, [self.buffer], position)
            values += np.frombuffer(self.buffer[:256], np.uint8)
        return torch.from_numpy(values / 2048), index % 10


def write_blocks(path):
    if path.exists():
        return
    with path.open("wb") as file:
        for _ in range(BLOCKS):
            file.write(os.urandom(BLOCK))
        file.flush()
        os.fsync(file.fileno())


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    write_blocks(Path("blocks.bin"))
    loader = DataLoader(Blocks("blocks.bin"), batch_size=8, num_workers=2, prefetch_factor=4)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for values, labels in loader:
        with stamp("step"):
            loss = nn.functional.cross_entropy(model(values), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
