#: steps = 8
#: phases = forward backward optimizer
#: slow = one of many, and none of them is fast
"""Weights that are computed from others: weight norm, spectral norm (which has a state), an orthogonal one."""

import digest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

digest.seed()


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T


net = nn.Sequential(
    parametrizations.weight_norm(nn.Linear(6, 6)),
    parametrizations.spectral_norm(nn.Linear(6, 6)),
    parametrizations.orthogonal(nn.Linear(6, 6)),
    nn.Linear(6, 6),
)
parametrize.register_parametrization(net[3], "weight", Symmetric())
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses = []
for _ in range(8):
    with parametrize.cached():
        loss = (net(torch.randn(8, 6)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
parametrize.remove_parametrizations(net[3], "weight")
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
