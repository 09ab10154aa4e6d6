#: steps = 8
"""All descriptors that the process may have are in use during the training, and some again after it."""

import os
import resource

import digest
import torch
from torch import nn

digest.seed()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)


def train():
    for _ in range(4):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


train()
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
train()
for number in opened:
    os.close(number)
digest.model(net, optimizer)
digest.end()
