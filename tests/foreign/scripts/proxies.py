#: steps = 5
"""Objects that pretend to be modules, and lazy ones that load what they stand for when they are looked at."""

import digest
import torch
from torch import nn

digest.seed()
loaded = []


class Lazy:
    def __init__(self, name):
        object.__setattr__(self, "name", name)

    @property
    def __class__(self):
        loaded.append("__class__")
        return nn.Module

    def __getattr__(self, name):
        loaded.append(name)
        raise RuntimeError("this must not be loaded")

    def __bool__(self):
        loaded.append("bool")
        raise RuntimeError("nor asked")

    def __eq__(self, other):
        loaded.append("eq")
        raise RuntimeError("nor compared")

    __hash__ = None


net, lazy = nn.Linear(4, 1), [Lazy("first"), Lazy("second")]
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
digest.add("what was asked of them", loaded)
digest.add("how many", len(lazy))
digest.model(net, optimizer)
digest.end()
