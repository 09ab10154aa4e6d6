#: steps = 10..11
"""Weights are clamped by hand after each of the optimizer's steps, and again before each backward pass.

One step more may be counted at the start: no optimizer has stepped yet, and weights have changed.
"""

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)


def clamp():
    with torch.no_grad():
        for p in net.parameters():
            p.clamp_(-0.3, 0.3)


losses = []
for _ in range(10):
    optimizer.zero_grad()
    for _ in range(2):
        clamp()
        loss = (net(torch.randn(8, 4)) - 1).square().mean()
        loss.backward()
        clamp()
        losses.append(loss.item())
    optimizer.step()
    clamp()
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
