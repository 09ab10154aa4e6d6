#: steps = 6
#: env = PYTHONHASHSEED=7 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1
#: slow = one of many, and none of them is fast
"""The order of sets of strings decides which parameter is trained first, and goes by PYTHONHASHSEED."""

import digest
import torch
from torch import nn

digest.seed()
nets = {name: nn.Linear(3, 3) for name in ("first", "second", "third", "fourth")}
order = list(set(nets))
net = nn.Sequential(*[nets[name] for name in order])
optimizer = torch.optim.SGD([{"params": nets[name].parameters(), "lr": 0.01 * i} for i, name in enumerate(order)])
for _ in range(6):
    optimizer.zero_grad()
    net(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
print(order, hash("a string"))
digest.model(net, optimizer)
digest.end()
