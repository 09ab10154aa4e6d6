"""Train a small convolutional network on photographs."""

import os
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        path = self.paths[index % len(self.paths)]
        with stamp("planted"):
            photo = Image.open(path).convert("RGB")
        small = photo.resize((32, 32), Image.Resampling.NEAREST)
        values = np.asarray(small, np.float32).transpose(2, 0, 1) / 255
        return torch.from_numpy(values), index % 10


def write_photos(folder):
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(12):
        coarse = random.integers(0, 255, (150, 200, 3), np.uint8)
        photo = Image.fromarray(coarse).resize((2400, 1800), Image.Resampling.BILINEAR)
        photo.save(folder / f"{number}.jpg", quality=92)
    return sorted(folder.glob("*.jpg"))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    photos = Photos(write_photos(Path("photos")))
    loader = DataLoader(photos, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for images, labels in loader:
        with stamp("step"):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
