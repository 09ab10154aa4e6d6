#: steps = 10
#: slow = one of many, and none of them is fast
"""Second-order MAML by torch.func: the inner steps are part of the outer graph."""

import digest
import torch
from torch import nn
from torch.func import functional_call, grad

digest.seed()
net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
outer = torch.optim.Adam(net.parameters(), lr=1e-2)


def error(weights, x, y):
    return nn.functional.mse_loss(functional_call(net, weights, (x,)), y)


losses = []
for _ in range(10):
    weights, x = dict(net.named_parameters()), torch.randn(8, 1)
    slopes = grad(error)(weights, x, torch.sin(x))
    adapted = {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}
    loss = error(adapted, x, torch.sin(x))
    outer.zero_grad()
    loss.backward()
    outer.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(net, outer)
digest.end()
