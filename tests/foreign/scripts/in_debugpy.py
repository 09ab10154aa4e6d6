#: steps = 5
#: run = {python} -X frozen_modules=off -m debugpy --listen 127.0.0.1:0 {script}
#: needs = debugpy
#: slow = one of many, and none of them is fast
"""Under debugpy, as editors start a program; nobody connects. It replaces how threads start."""

import threading

import digest
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
digest.add("threads", sorted(type(one).__name__ for one in threading.enumerate()))
digest.model(net, optimizer)
digest.end()
