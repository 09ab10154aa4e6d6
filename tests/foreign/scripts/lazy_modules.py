#: steps = 6
#: phases = forward backward optimizer
#: slow = one of many, and none of them is fast
"""Modules whose weights come about in the first forward pass."""

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
other = nn.LazyLinear(3)  # one that is never called: it has no weights to the end
net(torch.randn(2, 3, 9))
optimizer = torch.optim.NAdam(net.parameters(), lr=1e-2)
losses = []
for _ in range(6):
    loss = net(torch.randn(8, 3, 9)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.add("the one that is never called", [repr(p) for p in other.parameters()])
digest.model(net, optimizer)
digest.end()
