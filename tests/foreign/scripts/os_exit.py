#: steps = 6
#: exit = 7
"""Ends by os._exit: no exit function runs, and what was not flushed is lost."""

import os

import digest
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(6):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
digest.model(net, optimizer)
digest.end()
print("flushed", flush=True)
print("lost")
os._exit(7)
