#: steps = 6..8
#: compiler = loaded
#: slow = compiles C++
#: passing_threads = ThreadPoolExecutor-*
"""A compiled model (backend "inductor"), then a compiled step: not one graph or break more.

No hook is called by an optimizer's step in compiled code. One step may be lost until that shows, and the last.
"""

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
compiled = torch.compile(net, backend="inductor")
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses = []


@torch.compile(backend="inductor")
def step(x):
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


for number in range(8):
    x = torch.randn(8, 4)
    if number < 5:
        optimizer.zero_grad()
        loss = compiled(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    else:
        loss = step(x)
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
