#: steps = 5
"""Trains, then executes itself anew in the same process with what it has learnt, as elastic launchers do."""

import os
import sys

import digest
import torch
from torch import nn

digest.seed(len(sys.argv))
net = nn.Linear(4, 1)
if sys.argv[1:]:
    net.load_state_dict(torch.load("weights.pt"))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
if not sys.argv[1:]:
    torch.save(net.state_dict(), "weights.pt")
    os.execv(sys.executable, [sys.executable, __file__, "again"])
digest.model(net, optimizer)
digest.end()
