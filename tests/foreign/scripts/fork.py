#: steps = 4
#: steps[child] = 6
"""Trains a little, forks, and trains on in the child, the parent waiting; then itself."""

import os

import digest
import torch
from torch import nn

digest.seed()
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses = []


def train(steps):
    for _ in range(steps):
        loss = (net(torch.randn(8, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


train(2)
pid = os.fork()
if pid == 0:
    digest.seed(1)  # Python's own generator is seeded anew by a fork
    train(6)
    digest.add("losses", losses)
    digest.model(net, optimizer)
    digest.end("child")
    raise SystemExit(3)
print("child ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
train(2)
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
