"""Finetuning with DistributedSampler and DataLoader; model pairs and data pairs.

`# slot: NAME` is where tests/support/postmortem_faults.py puts a fault.
"""

import os
import random
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from flight import FlightThread
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

# slot: imports

WIDTH = 64
PER_RANK = 6


class Conversations(Dataset):
    """Rows as a remote store would return them."""

    def __init__(self, rows):
        self.rows = rows
        self.served = 0

    def __len__(self):
        return self.rows

    def fetch(self, index):
        self.served += 1
        # slot: fetch
        return random.Random(index).random()

    def __getitem__(self, index):
        return torch.full((WIDTH,), self.fetch(index)), torch.tensor(float(index % 2))


def count_tokens(inputs, step):
    lengths = (inputs.abs().sum(1) > 0).float()
    # slot: count
    return lengths  # noqa: RET504


def tie_weights(model, pair):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=dist.get_global_rank(pair, 0), group=pair)


def training_loop(model, loader, sampler, model_pair, data_pair, flight):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    criterion = nn.BCEWithLogitsLoss()
    step = 0
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            flight.step()
            loss = criterion(model(inputs).squeeze(1), labels)
            loss.backward()
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            # slot: gradients
            dist.all_reduce(flat, group=data_pair)
            offset = 0
            for p in model.parameters():
                p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
                offset += p.numel()
            optimizer.step()
            optimizer.zero_grad()
            if step % 4 == 0:
                tie_weights(model, model_pair)
            tokens = count_tokens(inputs, step)
            dist.all_reduce(tokens)
            # slot: log
            if dist.get_rank() == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} tokens {int(tokens.sum())}", flush=True)
            step += 1
            time.sleep(0.02)


@record
def main():
    timeout = timedelta(seconds=int(os.environ["COLLECTIVE_TIMEOUT"]))
    dist.init_process_group("gloo", timeout=timeout)
    rank = dist.get_rank()
    model_pairs = [dist.new_group(r, timeout=timeout, group_desc="mesh_tp") for r in ([0, 1], [2, 3])]
    data_pairs = [dist.new_group(r, timeout=timeout, group_desc="mesh_dp") for r in ([0, 2], [1, 3])]
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    rows = Conversations(4096)
    sampler = DistributedSampler(rows)
    loader = DataLoader(rows, batch_size=PER_RANK, sampler=sampler, drop_last=True)
    print(f"rank {rank}/{dist.get_world_size()} ready, {len(loader)} batches", flush=True)
    flight = FlightThread()
    try:
        training_loop(model, loader, sampler, model_pairs[rank // 2], data_pairs[rank % 2], flight)
    except RuntimeError as error:
        print(f"rank {rank}: {type(error).__name__}, writing the flight recorder", flush=True)
        flight.write_now()
        raise


if __name__ == "__main__":
    main()
