#: steps = none
#: line = none
#: steps[daemon] = 5
#: slow = one of many, and none of them is fast
"""Forks twice, leaves its session and its streams, and trains as a daemon; the first process waits."""

import os
import sys
import time

import digest
import torch
from torch import nn

digest.seed()
torch.set_num_threads(1)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    digest.seed(1)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    digest.model(net, optimizer)
    digest.end("daemon")
    with open("done.new", "w") as file:
        file.write("done")
    os.rename("done.new", "done")
    sys.exit()
os.wait()
for _ in range(6000):
    if os.path.exists("done"):
        break
    time.sleep(0.01)
digest.end()
