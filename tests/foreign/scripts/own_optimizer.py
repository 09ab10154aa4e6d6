#: steps = 11..12
#: phases = forward backward
"""An optimizer that is none of torch's: three lines in the loop.

Nothing says that it has stepped: the next pass finds the weights changed, and after the last there is none.
"""

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
losses = []
for _ in range(12):
    loss = (net(torch.randn(8, 4)) - 1).square().mean()
    net.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p.sub_(0.05 * p.grad.sign())
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(net)
digest.end()
