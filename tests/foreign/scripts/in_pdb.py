#: steps = 5
#: compiler = loaded
#: run = {python} -m pdb -c "break train" -c continue -c next -c continue {script}
#: stdin = q
#: slow = one of many, and none of them is fast
"""In the debugger of the standard library, which stops once in the loop and goes on."""

import digest
import torch
from torch import nn


def train():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return net, optimizer


digest.seed()
number = 7
digest.model(*train())
digest.end()
