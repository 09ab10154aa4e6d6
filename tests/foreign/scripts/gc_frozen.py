#: steps = 6
#: phases = forward backward optimizer
"""gc.freeze() after the model is made, as one does before forking workers: the collector shows it no more."""

import gc

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
gc.collect()
gc.freeze()
for _ in range(6):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
digest.add("frozen", gc.get_freeze_count() > 1000)
gc.unfreeze()
digest.model(net, optimizer)
digest.end()
