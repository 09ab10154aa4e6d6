#: steps = 5
#: env = PYTHONSAFEPATH=1
#: slow = one of many, and none of them is fast
"""PYTHONSAFEPATH: neither the script's folder nor the current one is on the path."""

import os
import sys

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

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
print(sys.flags.safe_path)
digest.model(net, optimizer)
digest.end()
