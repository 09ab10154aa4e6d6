#: steps = 3
#: exit = 1
"""An error with a cause, at the end, that nobody catches: Python's own traceback, to the last line."""

import digest
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
digest.model(net, optimizer)
digest.end()
raise RuntimeError("after all steps") from ValueError("the cause")
