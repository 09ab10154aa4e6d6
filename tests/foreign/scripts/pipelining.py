#: steps = none
#: steps[rank0] = 5
#: steps[rank1] = 5
#: slow = two ranks
"""A pipeline of two stages over gloo (torch.distributed.pipelining): micro-batches, one optimizer a rank."""

import os
import sys

import digest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


def train(rank):
    torch.manual_seed(7)
    part = nn.Sequential(nn.Linear(8, 8), nn.Tanh()) if rank == 0 else nn.Linear(8, 1)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=lambda out, y: (out - y).square().mean())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        x, y = torch.randn(8, 8), torch.randn(8, 1)
        if rank == 0:
            schedule.step(x)
        else:
            seen = []
            schedule.step(target=y, losses=seen)
            losses += [one.item() for one in seen]
        optimizer.step()
    digest.add("losses", losses)
    digest.model(part, optimizer)
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
