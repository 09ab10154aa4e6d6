#: steps = none
#: steps[rank0] = 6
#: steps[rank1] = 4
"""DDP whose ranks have data of different lengths (join), and a communication hook that counts its buckets."""

import os
import sys

import digest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train(rank):
    net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    buckets, losses = [], []

    def hook(state, bucket):
        buckets.append((bucket.index(), bucket.buffer().numel()))
        return default_hooks.allreduce_hook(state, bucket)

    net.register_comm_hook(dist.group.WORLD, hook)
    with Join([net]):
        for _ in range(6 - 2 * rank):
            loss = net(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    digest.add("losses", losses)
    digest.add("buckets", buckets)
    digest.model(net, optimizer)
    digest.end(f"rank{rank}", children=False)


digest.seed()
torch.set_num_threads(1)
children = []
for rank in range(2):
    if pid := os.fork():
        children.append(pid)
        continue
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=rank, world_size=2)
    digest.seed(rank)
    train(rank)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit()
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
print(codes)
if os.path.exists("meeting"):
    os.unlink("meeting")
digest.end()
