"""Train a small classifier for many epochs on a small table."""

import multiprocessing
import os
import time

import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_loader():
    table = TensorDataset(torch.randn(256, 64), torch.randint(10, (256,)))
    context = multiprocessing.get_context("spawn")
    return DataLoader(table, batch_size=32, shuffle=True, num_workers=2, multiprocessing_context=context)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = make_loader()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    while time.monotonic() < end:
        for values, labels in loader:
            with stamp("step"):
                loss = nn.functional.cross_entropy(model(values), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main()
