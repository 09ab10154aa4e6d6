"""The program, in a folder of its own, so that the current one is on the path by the empty entry alone."""

import digest  # this, too, lies in the current folder
import elsewhere
import src
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(src.__name__, elsewhere.__name__)
digest.model(net, optimizer)
digest.end()
