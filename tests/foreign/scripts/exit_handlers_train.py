#: steps = 5
"""The last steps are trained in an exit handler, after the threads have been joined."""

import atexit

import digest
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


@atexit.register
def finish():
    train(2)
    print(f"{net(torch.ones(1, 4)).item():.6f}")


train(5)
digest.model(net, optimizer)
digest.end()
