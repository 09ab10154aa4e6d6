"""Train a small segmentation and score each pixel."""

import collections
import os
import time

import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        with stamp("sample"):
            scene = torch.randn(3, 128, 128)
            return scene, (scene[0] > 0).long()


def confusion(predicted, labels):
    counts = collections.Counter()
    for guess, label in zip(predicted.flatten().tolist(), labels.flatten().tolist(), strict=True):
        counts[f"{label}-{guess}"] += 1
    return counts


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Scenes(), batch_size=16, num_workers=2, persistent_workers=True)
    model = nn.Conv2d(3, 2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    right = 0
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for scenes, labels in loader:
        with stamp("step"):
            logits = model(scenes)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, labels).backward()
            optimizer.step()
            with stamp("planted"):
                counts = confusion(logits.argmax(1), labels)
            right += counts["0-0"] + counts["1-1"]
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
