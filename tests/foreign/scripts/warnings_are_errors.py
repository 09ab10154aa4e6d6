#: steps = 6
#: compiler = loaded
#: run = {python} -W error -X dev -bb {script}
#: hands = yes
#: hands.steps = 6
"""`python -W error -X dev`: every warning raises, an unclosed file too."""

import digest
import hands as llmtop
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for (x,) in DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4):
    with llmtop.step(samples=4):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        llmtop.log(loss=loss)
digest.model(net, optimizer)
digest.end()
