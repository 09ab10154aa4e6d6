#: steps = 6
"""A module whose parameters() returns groups for an optimizer, and one that has a list under that name."""

import digest
import torch
from torch import nn

digest.seed()


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def parameters(self, lr=0.05):
        return [{"params": self.body.parameters(), "lr": lr}, {"params": self.head.parameters(), "lr": lr / 2}]

    def forward(self, x):
        return self.head(self.body(x).relu())


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.parameters = [self.linear.weight]

    def forward(self, x):
        return self.linear(x)


class Demanding(nn.Module):
    def parameters(self, kind):
        raise NotImplementedError(kind)

    def children(self):
        raise RuntimeError("nobody is to ask")

    modules = named_parameters = children


net, last, never_called = Grouped(), Listed(), Demanding()
optimizer = torch.optim.SGD([*net.parameters(), {"params": last.parameters, "lr": 0.01}])
losses = []
for _ in range(6):
    loss = last(net(torch.randn(8, 4))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.add("weights", [net.state_dict(), last.state_dict()])
digest.end()
