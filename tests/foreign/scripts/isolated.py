#: steps = none
#: run = {python} -I {script}
#: says = ignores its environment
"""`python -I` ignores what `llmtop run` has prepared: it is said once, and nothing else happens."""

import os
import sys

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

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
digest.model(net, optimizer)
digest.end()
