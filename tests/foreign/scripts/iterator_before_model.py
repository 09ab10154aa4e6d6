#: steps = 4
#: hands = yes
#: hands.steps = none
"""The iterator is made before the model: what iter() draws from the generator comes first."""

import digest
import hands as llmtop
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digest.seed()
batches = iter(llmtop.loader(DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4, shuffle=True)))
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for (x,) in batches:
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
digest.model(net, optimizer)
digest.end()
