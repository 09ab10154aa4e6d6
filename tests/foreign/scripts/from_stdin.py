#: steps = 4
#: run = /bin/sh -c "{python} - one two < {script}"
#: slow = one of many, and none of them is fast
"""The program comes on stdin, and is read to its end before it runs."""

import sys

import digest
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(4):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(sys.argv, repr(sys.stdin.read()))
digest.model(net, optimizer)
digest.end()
