#: steps = 6
"""Modules that never ran Module.__init__, made by hand; one has no attributes at all."""

import digest
import torch
from torch import nn

digest.seed()


class Unfinished(nn.Module):
    def __init__(self):
        self.__dict__["name"] = "no super().__init__()"

    def __call__(self, x):
        return x + 1


class Empty(nn.Module):
    def __init__(self):
        pass

    def __getattribute__(self, name):
        raise RuntimeError(f"nobody is to ask for {name}")


net, plus, empty, bare = nn.Linear(4, 1), Unfinished(), Empty(), nn.Module.__new__(nn.Linear)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses = []
for _ in range(6):
    loss = plus(net(torch.randn(8, 4))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.add("what they have", [plus.__dict__, bare.__dict__])
digest.model(net, optimizer)
digest.end()
