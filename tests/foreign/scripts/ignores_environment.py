#: steps = none
#: run = {python} -E {script}
#: says = ignores its environment
#: slow = isolated.py has the other option
"""`python -E` ignores what `llmtop run` has prepared, as `-I` does."""

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
