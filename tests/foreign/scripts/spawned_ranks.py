#: steps = none
#: steps[rank0] = 5
#: steps[rank1] = 5
#: slow = starts two interpreters more
"""torch.multiprocessing.spawn, as many tutorials have it: two ranks, one of which ends with an error."""

import logging
import os

import digest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel


def train(rank, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    digest.seed(rank)
    net = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    digest.model(net, optimizer)
    digest.end(f"rank{rank}", children=False)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 1:
        raise ValueError("at the end")


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # torch says how the other rank ended, which is by chance
    try:
        multiprocessing.spawn(train, (f"{os.getcwd()}/meeting",), nprocs=2)
    except multiprocessing.ProcessRaisedException as error:
        print(str(error).strip().splitlines()[-1])
    if os.path.exists("meeting"):
        os.unlink("meeting")
    digest.end()
