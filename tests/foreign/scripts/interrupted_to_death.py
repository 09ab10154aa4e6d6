#: steps = 4
#: exit = -2
#: slow = one of many, and none of them is fast
"""Ctrl+C that nobody catches: Python prints where, and dies of the signal."""

import os
import signal

import digest
import torch
from torch import nn

digest.seed()
signal.signal(signal.SIGINT, signal.default_int_handler)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(4):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
digest.model(net, optimizer)
digest.end()
os.kill(os.getpid(), signal.SIGINT)
