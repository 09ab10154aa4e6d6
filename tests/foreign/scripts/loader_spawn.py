#: steps = 8
#: slow = starts two interpreters more
"""Workers that are spawned: they import the program and torch anew."""

import sys

import digest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Loaded(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((4,), float(index)), [name for name in sys.modules if name.startswith("llmtop.")] == []


if __name__ == "__main__":
    digest.seed()
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    losses = []
    for x, _ in DataLoader(Loaded(), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context="spawn"):
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    digest.add("losses", losses)
    digest.model(net, optimizer)
    digest.end()
