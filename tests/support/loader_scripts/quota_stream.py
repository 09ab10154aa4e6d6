"""Train a small classifier on a stream of samples with a quota."""

import os
import time

import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Quota:
    """At most `rate` samples a second."""

    def __init__(self, rate):
        self.interval = 1 / rate
        self.next_at = time.monotonic()

    def take(self):
        wait = self.next_at - time.monotonic()
        if wait > 0:
            with stamp("planted"):
                time.sleep(wait)
        self.next_at = max(self.next_at, time.monotonic() - self.interval) + self.interval


class Stream(IterableDataset):
    def __init__(self, rate):
        self.rate = rate

    def __iter__(self):
        worker = get_worker_info()
        quota = Quota(self.rate / worker.num_workers)
        random = torch.Generator().manual_seed(worker.id)
        while True:
            quota.take()
            yield torch.randn(128, generator=random), worker.id


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Stream(rate=40), batch_size=8, num_workers=2)
    model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for values, labels in loader:
        with stamp("step"):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(values), labels).backward()
            optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
