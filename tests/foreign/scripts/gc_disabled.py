#: steps = 6
#: slow = one of many, and none of them is fast
"""The collector is switched off, has thresholds and a callback of the user's, and collects when it is told to."""

import gc

import digest
import torch
from torch import nn

digest.seed()
collected = []
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
gc.collect()
gc.disable()
gc.set_threshold(500, 7, 3)
gc.callbacks.append(lambda phase, info: collected.append((phase, info["generation"])))
for number in range(6):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if number % 3 == 2:
        gc.collect(1)
digest.add("collected", collected)
digest.add("garbage", gc.garbage)
digest.model(net, optimizer)
digest.end()
