#: steps = none
#: line = attached
"""A program that closes all descriptors (as one that turns into a daemon does), then opens files and trains on."""

import os

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


train(3)
os.closerange(3, 256)
files = [open(f"of the user's {number}", "wb", buffering=0) for number in range(12)]  # noqa: SIM115
train(3)
for file in files:
    file.write(b"what the user wrote\n")
train(3)
digest.model(net, optimizer)
digest.end()
for file in files:
    print(os.fstat(file.fileno()).st_size)
