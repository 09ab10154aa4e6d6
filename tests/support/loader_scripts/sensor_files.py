"""Train a small regression on small files, with statistics of the losses in the background."""

import collections
import os
import threading
import time
from pathlib import Path

import numpy as np
import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Statistics(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True, name="statistics")
        self.losses = collections.deque([0.0] * 2000, maxlen=2000)
        self.mean = self.spread = 0.0

    def run(self):
        while True:
            with stamp("planted"):
                losses = list(self.losses)
                self.mean = sum(loss for loss in losses) / len(losses)
                self.spread = sum((loss - self.mean) ** 2 for loss in losses) / len(losses)


class Sensors(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        with stamp("sample"):
            content = Path(self.paths[index % len(self.paths)]).read_bytes()
            values = np.frombuffer(content, np.float32)[:64]
            return torch.from_numpy(values.copy()), values[:1].copy()


def write_sensors(folder):
    folder.mkdir(exist_ok=True)
    for number in range(64):
        np.random.default_rng(number).random(1 << 17, np.float32).tofile(folder / f"{number}.bin")
    return sorted(folder.glob("*.bin"))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    statistics = Statistics()
    loader = DataLoader(Sensors(write_sensors(Path("sensors"))), batch_size=32)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if not os.environ.get("PLANT_OFF"):
        statistics.start()
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for values, target in loader:
        with stamp("step"):
            loss = nn.functional.mse_loss(model(values), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            statistics.losses.append(loss.item())
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
