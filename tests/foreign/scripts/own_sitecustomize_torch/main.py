#: steps = 5
#: compiler = loaded
#: env = PYTHONPATH={folder}/site
#: slow = one of many, and none of them is fast
"""A sitecustomize.py of the user's that imports torch itself."""

import sys

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
print(sys.modules["sitecustomize"].__file__)
digest.model(net, optimizer)
digest.end()
