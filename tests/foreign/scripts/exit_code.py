#: steps = 3
#: exit = 42
#: slow = one of many, and none of them is fast
"""sys.exit from within functions that exit handlers, finally and a thread follow."""

import atexit
import sys
import threading

import digest
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)


def train():
    for number in range(9):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if number == 2:
            sys.exit(42)


def last():
    with torch.no_grad():
        print("last", f"{net(torch.ones(1, 4)).item():.6f}", threading.active_count())


atexit.register(last)
try:
    train()
finally:
    print("finally")
    digest.model(net, optimizer)
    digest.end()
