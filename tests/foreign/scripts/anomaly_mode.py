#: steps = 4
#: slow = one of many, and none of them is fast
"""Anomaly detection, deterministic algorithms, a default type of the user's; a NaN is found and raises."""

import digest
import torch
from torch import nn

digest.seed()
torch.use_deterministic_algorithms(True)
torch.set_default_dtype(torch.float64)
torch.set_default_device("cpu")
torch.autograd.set_detect_anomaly(True)
net = nn.Linear(4, 1)
optimizer = torch.optim.Rprop(net.parameters(), lr=0.05)
for _ in range(4):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
try:
    (net(torch.zeros(1, 4)) * 0).sqrt().sum().backward()
except RuntimeError as error:
    print(error)
digest.model(net, optimizer)
digest.end()
