#: steps = 8
"""Classes whose __call__ is no plain function: partialmethod, staticmethod, classmethod, another object."""

import functools

import digest
import torch
from torch import nn

digest.seed()
weight = nn.Parameter(torch.randn(4, 4) / 2)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def run(self, scale, x):
        return self.forward(x) * scale

    def forward(self, x):
        return self.body(x)


class Partial(Base):
    __call__ = functools.partialmethod(Base.run, 0.5)


class Static(Base):
    @staticmethod
    def __call__(x):
        return x @ weight


class OfClass(Base):
    shift = 0.1

    @classmethod
    def __call__(cls, x):
        return x + cls.shift


class Callable:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class OfObject(Base):
    __call__ = Callable(3.0)


nets = nn.ModuleList([Partial(), Static(), OfClass(), OfObject()])
optimizer = torch.optim.SGD([*nets.parameters(), weight], lr=0.01)
del nets[:0]
roots = list(nets)
del nets
losses = []
for _ in range(8):
    x = torch.randn(8, 4)
    for net in roots:
        x = net(x)
    loss = x.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.add("weight", weight)
for net in roots:
    digest.model(net, name=type(net).__name__)
digest.end()
