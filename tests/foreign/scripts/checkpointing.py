#: steps = 16
#: phases = forward backward optimizer
#: tokens = 32
"""Activations computed again in the backward pass, by both of torch's ways, with dropout in them."""

import digest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

digest.seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.blocks = nn.Sequential(
            *[nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.GELU()) for _ in range(4)]
        )
        self.reentrant = False

    def forward(self, ids):
        x = self.embed(ids)
        x = checkpoint(self.blocks[0], x, use_reentrant=self.reentrant)
        return checkpoint_sequential(self.blocks, 2, x, use_reentrant=self.reentrant).sum()


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
losses = []
for number in range(16):
    net.reentrant = number >= 8
    loss = net(torch.randint(0, 30, (4, 8)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
