#: steps = none
#: line = none
#: steps[rank0] = 8
#: steps[rank1] = 8
"""DDP over gloo, two ranks started by torchrun: a sampler for each rank, no_sync, SyncBatchNorm's buffers.

This file is the program that is started; it starts torchrun as a child, waits, and prints what it says.
"""

import os
import subprocess
import sys

import digest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    digest.seed(rank)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    data = TensorDataset(torch.arange(256.0).reshape(64, 4) / 256)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for number, (x,) in enumerate(loader):
            if number % 2 == 0:
                with net.no_sync():
                    loss = net(x).square().mean()
                    loss.backward()
            else:
                loss = net(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    total = torch.tensor(losses[-1])
    dist.all_reduce(total)
    digest.add("losses", losses)
    digest.add("sum of the ranks", total)
    digest.add("statistics", net._get_ddp_logging_data()["num_parameter_tensors"])
    digest.model(net, optimizer)
    digest.end(f"rank{rank}", children=False)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            __file__,
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        print(done.returncode, done.stdout, done.stderr if done.returncode else "")
        digest.end()
