#: steps = 4
#: exit = 0
"""Ctrl+C in the middle of a step, caught once to write a checkpoint, during a sleep and during a computation."""

import os
import signal
import threading
import time

import digest
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
caught = []


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


train(3)
net(torch.randn(8, 4)).square().mean().backward()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    time.sleep(60)
except KeyboardInterrupt:
    caught.append("sleep")
try:
    os.kill(os.getpid(), signal.SIGINT)
    caught.append("not here")
except KeyboardInterrupt:
    caught.append("kill")
torch.save(net.state_dict(), "checkpoint.pt")
train(1)
digest.add("caught", caught)
digest.model(net, optimizer)
digest.end()
