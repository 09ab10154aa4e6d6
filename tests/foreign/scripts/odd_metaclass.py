#: steps = 6
#: note = cannot see the modules
"""A metaclass that forbids to set anything on its classes, as frameworks with a registry have."""

import digest
import torch
from torch import nn

digest.seed()


class Sealed(type(nn.Module)):
    def __setattr__(cls, name, value):
        raise TypeError(f"{cls.__name__} is sealed: {name}")

    def __delattr__(cls, name):
        raise TypeError(f"{cls.__name__} is sealed: {name}")


class Net(nn.Module, metaclass=Sealed):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, x):
        return self.body(x)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses = []
for _ in range(6):
    loss = net(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
