"""Train a small classifier on lines of a log, cleaned with a regular expression."""

import os
import re
import time

import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIELDS = re.compile(r"^(?:(?:\w+)-?)+$")


class Lines(Dataset):
    def __len__(self):
        return 100_000

    def line(self, index):
        if index % 61 == 60:
            return "a" * 24 + "!"
        return f"node-{index}-rank-{index % 8}-ok"

    def __getitem__(self, index):
        line = self.line(index)
        with stamp("planted"):
            is_clean = FIELDS.match(line) is not None
        codes = torch.tensor([ord(letter) % 64 for letter in line.ljust(48)[:48]])
        return codes, int(is_clean)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Lines(), batch_size=8, num_workers=2)
    model = nn.Sequential(
        nn.Embedding(64, 32), nn.Flatten(), nn.Linear(48 * 32, 128), nn.ReLU(), nn.Linear(128, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for codes, labels in loader:
        with stamp("step"):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(codes), labels).backward()
            optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
