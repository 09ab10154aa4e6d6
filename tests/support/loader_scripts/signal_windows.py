"""Train a small regression on windows of a long signal."""

import os
import time

import numpy as np
import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, Dataset


def distort(signal, random):
    for _ in range(6):
        signal = np.where(random.random(signal.size) < 0.1, np.roll(signal, 1), np.sin(signal))
    return signal


class Windows(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        random = np.random.default_rng(index)
        signal = np.linspace(0, 1 + index % 7, 250_000)
        with stamp("planted"):
            signal = distort(signal, random)
        return torch.from_numpy(signal[:256].astype(np.float32)), torch.ones(1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Windows(), batch_size=8, num_workers=2, multiprocessing_context="spawn", persistent_workers=True
    )
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for values, target in loader:
        with stamp("step"):
            loss = nn.functional.mse_loss(model(values), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
