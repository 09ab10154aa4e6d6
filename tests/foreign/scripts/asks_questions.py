#: steps = 4
#: stdin = 4 words are read
#: slow = one of many, and none of them is fast
"""Reads what to do from stdin."""

import digest
import torch
from torch import nn

digest.seed()
count, *words = input("how many steps? ").split()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(int(count)):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
try:
    input("and now? ")
except EOFError:
    print(words)
digest.model(net, optimizer)
digest.end()
