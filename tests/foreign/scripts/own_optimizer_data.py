#: steps = 119
"""An optimizer that changes `p.data`, as one did before torch 0.4: nothing that torch counts is changed by it
but the gradients, which are cleared before each backward pass."""

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
losses = []
for _ in range(120):
    loss = (net(torch.randn(8, 4)) - 1).square().mean()
    net.zero_grad()
    loss.backward()
    for p in net.parameters():
        p.data.add_(p.grad.data, alpha=-0.05)
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(net)
digest.end()
