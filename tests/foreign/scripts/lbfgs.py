#: steps = 6
#: phases = forward backward optimizer
#: slow = one of many, and none of them is fast
"""LBFGS: the optimizer calls forward and backward itself, as often as it likes."""

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
inputs, wanted = torch.randn(32, 3), torch.randn(32, 1)
calls = []


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(inputs), wanted)
    loss.backward()
    calls.append(loss.item())
    return loss


returned = [optimizer.step(closure).item() for _ in range(6)]
digest.add("losses", returned)
digest.add("calls of the closure", calls)
digest.model(net, optimizer)
digest.end()
