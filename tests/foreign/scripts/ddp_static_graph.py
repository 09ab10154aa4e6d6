#: steps = none
#: steps[rank0] = 6
#: steps[rank1] = 6
#: slow = one of many, and none of them is fast
"""DDP with a static graph, activations computed again, a frozen part and buffers; then PowerSGD as its hook."""

import os
import sys

import digest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 8).requires_grad_(False)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        x = self.frozen(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=False)
        return self.head(x)


def train(rank):
    torch.manual_seed(7)
    net = DistributedDataParallel(Net(), static_graph=True, gradient_as_bucket_view=True)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=3)
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05)
    torch.manual_seed(rank)
    losses = []
    for _ in range(6):
        loss = net(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    digest.add("losses", losses)
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
