#: steps = 5
"""The user's modules have the names of llmtop's own, at the top of the path."""

import client
import digest
import errors
import format
import peaks
import publish
import recording
import snapshot
import torch
import wire
from torch import nn

import collectors
import tui

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(*[module.WHOSE for module in (client, errors, format, peaks, recording, snapshot, wire)], sep="\n")
print(collectors.WORDS, tui.__doc__, publish.__doc__)
digest.model(net, optimizer)
digest.end()
