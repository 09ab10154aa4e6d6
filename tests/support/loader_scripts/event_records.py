"""Train a small regression on lists of events."""

import os
import random
import time

import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Events(Dataset):
    def __init__(self, count):
        chance = random.Random(0)
        self.events = [
            [{"time": float(n), "kind": "abc"[n % 3], "value": chance.random()} for n in range(12_000)]
            for _ in range(count)
        ]

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        with stamp("sample"):
            return self.events[index % len(self.events)]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Events(8), batch_size=8, num_workers=2, collate_fn=list)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    batches = iter(loader)
    while time.monotonic() < end:
        with stamp("planted"):
            batch = next(batches)
        with stamp("step"):
            values = torch.tensor([[event["value"] for event in events[:64]] for events in batch])
            loss = nn.functional.mse_loss(model(values), values.mean(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
