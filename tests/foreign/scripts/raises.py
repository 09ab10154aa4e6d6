#: steps = 4
#: exit = 1
"""An error in the fifth forward pass, with a cause and a note; what is printed of it is all the user's."""

import sys

import digest
import torch
from torch import nn

digest.seed()


class Net(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, x):
        self.calls += 1
        if self.calls == 5:
            raise ValueError("the fifth batch is bad")
        return self.body(x)


def hook(kind, error, trace):
    frames = []
    while trace:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    print(kind.__name__, error, frames[0], frames[-1], file=sys.stderr)
    digest.model(net, optimizer)
    digest.end()


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
sys.excepthook = hook
while True:
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
