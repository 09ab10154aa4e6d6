#: steps = 6
#: slow = one of many, and none of them is fast
"""Frozen dataclasses, enums, slots and abstract classes as a program's configuration; a model with __slots__."""

import dataclasses
import enum
from abc import ABC, abstractmethod

import digest
import torch
from torch import nn

digest.seed()


class Kind(enum.Enum):
    SMALL = 4
    LARGE = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    kind: Kind = Kind.LARGE
    lr: float = 0.05
    layers: tuple[int, ...] = (4, 8, 1)

    def __getattr__(self, name):
        raise AttributeError(f"a configuration has no {name}")


class Model(ABC, nn.Module):
    __slots__ = ("config",)

    def __init__(self, config):
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(self, x): ...


class Net(Model):
    def __init__(self, config):
        super().__init__(config)
        self.body = nn.Sequential(nn.Linear(4, config.kind.value), nn.ReLU(), nn.Linear(config.kind.value, 1))

    def forward(self, x):
        return self.body(x)


config = Config()
net = Net(config)
optimizer = torch.optim.SGD(net.parameters(), lr=config.lr)
for _ in range(6):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(config, dataclasses.asdict(config), hash(config) == hash(Config()))
digest.model(net, optimizer)
digest.end()
