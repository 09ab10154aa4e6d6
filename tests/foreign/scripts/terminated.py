#: steps = 5
#: exit = -15
#: slow = one of many, and none of them is fast
"""SIGTERM: a handler of the user's the first time (as SLURM's warning), death the second."""

import os
import signal

import digest
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
told = []
signal.signal(signal.SIGTERM, lambda number, frame: told.append(signal.Signals(number).name))
for number in range(5):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    if number == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    optimizer.step()
digest.add("told", told)
digest.model(net, optimizer)
digest.end()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGTERM)
