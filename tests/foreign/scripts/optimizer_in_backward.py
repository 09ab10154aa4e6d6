#: steps = 9
#: phases = forward backward
"""One optimizer for each parameter, which steps as soon as its gradient is there."""

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizers = {p: torch.optim.SGD([p], lr=0.05, momentum=0.9) for p in net.parameters()}


def apply(p):
    optimizers[p].step()
    optimizers[p].zero_grad()


for p in net.parameters():
    p.register_post_accumulate_grad_hook(apply)
losses = []
for _ in range(9):
    loss = (net(torch.randn(8, 4)) - 1).square().mean()
    loss.backward()
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(net, *optimizers.values())
digest.end()
