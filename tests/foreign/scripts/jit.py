#: steps = 10
#: compiler = loaded
"""Models that are traced and scripted before, in the middle of, and after their training."""

import warnings

import digest
import torch
from torch import fx, nn

warnings.simplefilter("ignore")
digest.seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.second(self.first(x).relu())


def train(net, steps):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        loss = net(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


net = Net()
digest.add("losses of the eager one", train(net, 2))
scripted, traced = torch.jit.script(net), torch.jit.trace(net, torch.ones(2, 4))
digest.add("losses of the scripted one", train(scripted, 4))
digest.add("losses of the traced one", train(traced, 4))
digest.add("code", [scripted.code, traced.code, str(fx.symbolic_trace(net).graph)])
digest.model(scripted)
digest.model(traced, name="traced")
digest.end()
