#: steps = 3
#: exit = 1
"""An error in a forward pass, with a cause, that nobody catches: Python's own traceback, to the last line."""

import digest
import torch
from torch import nn

digest.seed()


class Net(nn.Linear):
    def forward(self, x):
        if len(x) == 7:
            raise RuntimeError("seven rows") from ValueError("the cause")
        return super().forward(x)


net = Net(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
digest.model(net, optimizer)
digest.end()
net(torch.randn(7, 4)).square().mean().backward()
