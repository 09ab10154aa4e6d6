"""Train a small classifier on shards of an archive."""

import lzma
import os
import time
from pathlib import Path

import numpy as np
import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        worker = get_worker_info()
        while True:
            for path in self.paths[worker.id :: worker.num_workers]:
                yield from self.samples(path)

    def samples(self, path):
        with lzma.open(path) as shard:
            for label in range(8):
                with stamp("planted"):
                    content = shard.read(1 << 20)
                yield torch.from_numpy(np.frombuffer(content, np.uint8)[:512] / np.float32(255)), label


def write_shards(folder):
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(4):
        walk = random.integers(0, 12, 8 << 20, np.uint8)
        (folder / f"{number}.xz").write_bytes(lzma.compress(walk.tobytes(), preset=0))
    return sorted(folder.glob("*.xz"))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shards = Shards(write_shards(Path("shards")))
    loader = DataLoader(shards, batch_size=8, num_workers=2, multiprocessing_context="spawn", prefetch_factor=3)
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for values, labels in loader:
        with stamp("step"):
            loss = nn.functional.cross_entropy(model(values), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
