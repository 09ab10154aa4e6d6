#: steps = 8
#: phases = dataload forward backward optimizer
#: hands = both
#: both.phases = dataload augment forward backward optimizer
"""A script with one llmtop.phase() in it and no step: below `llmtop run` its steps are still seen."""

import digest
import hands as llmtop
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for (x,) in DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4, shuffle=True):
    with llmtop.phase("augment"):
        x = x + 0.1 * torch.randn_like(x)
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
digest.model(net, optimizer)
digest.end()
