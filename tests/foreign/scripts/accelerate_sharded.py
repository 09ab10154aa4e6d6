#: steps = none
#: compiler = loaded
#: needs = accelerate
#: slow = loads Accelerate in two ranks more
#: hands = hands
#: steps[rank0] = 4
#: steps[rank1] = 4
#: hands.steps[rank0] = none
#: hands.steps[rank1] = none
"""Two ranks of Accelerate: each sees its half of the data, also where llmtop has wrapped the loader before."""

import os
import socket
import sys

import digest
import hands as llmtop
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(rank):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    loader = llmtop.loader(DataLoader(TensorDataset(torch.arange(128.0).reshape(32, 4) / 128), batch_size=4))
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    seen = []
    for (x,) in loader:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        seen.append((loss.item(), x[:, 0].tolist()))
    digest.add("seen", seen)
    digest.model(net, optimizer.optimizer)
    digest.end(f"rank{rank}", children=False)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


digest.seed()
torch.set_num_threads(1)
children = []
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
for rank in range(2):
    if pid := os.fork():
        children.append(pid)
        continue
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK=str(rank)
    )
    digest.seed(rank)
    train(rank)
    sys.exit()
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
digest.end()
