"""Train a small classifier on large frames."""

import os
import time

import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Frames(Dataset):
    def __init__(self):
        self.frames = torch.randint(0, 255, (8, 256, 256, 3), dtype=torch.uint8)

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        with stamp("sample"):
            return self.frames[index % 8], index % 10


def to_device(frames):
    images = frames.permute(0, 3, 1, 2).to(torch.float64, memory_format=torch.contiguous_format)
    return ((images / 255 - 0.5) / 0.25).float()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Frames(), batch_size=32, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for frames, labels in loader:
        with stamp("step"):
            with stamp("planted"):
                images = to_device(frames)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
