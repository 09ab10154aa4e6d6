#: steps = 25..29
"""MAML by copies: an inner loop with a fresh optimizer for each task, one step of the outer optimizer.

In the first round, before the outer optimizer has stepped, its four inner steps may be counted.
"""

import copy

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
outer = torch.optim.Adam(net.parameters(), lr=1e-2)
losses = []
for _ in range(25):
    outer.zero_grad()
    for _ in range(2):
        shift, learner = torch.rand(1), copy.deepcopy(net)
        inner = torch.optim.SGD(learner.parameters(), lr=0.05)
        for _ in range(2):
            x = torch.randn(8, 1)
            inner.zero_grad()
            nn.functional.mse_loss(learner(x), torch.sin(x + shift)).backward()
            inner.step()
        x = torch.randn(8, 1)
        loss = nn.functional.mse_loss(learner(x), torch.sin(x + shift))
        for p, gradient in zip(net.parameters(), torch.autograd.grad(loss, learner.parameters()), strict=True):
            p.grad = gradient if p.grad is None else p.grad + gradient
        losses.append(loss.item())
    outer.step()
digest.add("losses", losses)
digest.model(net, outer)
digest.end()
