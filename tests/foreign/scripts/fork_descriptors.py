#: steps = 3
#: steps[child] = none
"""A forked child that does not train has no descriptor and no thread but those that it would have."""

import os

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()


pid = os.fork()
if pid == 0:
    digest.seed(1)  # Python's own generator is seeded anew by a fork
    digest.add("open", [(os.path.basename(kind), closes) for kind, closes in digest.opened()])
    digest.add("threads", len(os.listdir("/proc/self/task")))
    digest.end("child")
    os._exit(0)
os.waitpid(pid, 0)
digest.model(net, optimizer)
digest.end()
