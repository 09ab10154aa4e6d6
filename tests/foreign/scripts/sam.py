#: steps = 24..25
#: phases = forward backward optimizer
"""Sharpness-aware minimisation: two passes a step, the weights moved in place between them.

One step more may be counted at the start: no optimizer has stepped yet, and weights have changed.
"""

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
inputs, wanted = torch.randn(64, 5), torch.randn(64, 1)
losses = []
for _ in range(24):
    rows = torch.randint(0, 64, (16,))
    loss = nn.functional.mse_loss(net(inputs[rows]), wanted[rows])
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
    moves = [p.grad * (0.05 / norm) for p in net.parameters()]
    with torch.no_grad():
        for p, move in zip(net.parameters(), moves, strict=True):
            p.add_(move)
    optimizer.zero_grad()
    nn.functional.mse_loss(net(inputs[rows]), wanted[rows]).backward()
    with torch.no_grad():
        for p, move in zip(net.parameters(), moves, strict=True):
            p.sub_(move)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
