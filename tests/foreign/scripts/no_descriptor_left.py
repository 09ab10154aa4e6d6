#: steps = none
"""Not one descriptor is left when the first backward pass comes: there is none for llmtop, and all goes on."""

import os
import resource

import digest
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses = []
with torch.autograd.profiler.record_function("what this imports, it imports at its first use"):
    pass
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
opened = []
try:
    while True:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(error)
for _ in range(4):
    optimizer.zero_grad()
    loss = net(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
for number in opened:
    os.close(number)
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
