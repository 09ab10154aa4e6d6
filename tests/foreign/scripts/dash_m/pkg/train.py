"""The package's entry."""

import argparse

import digest
import torch

from .model import Net

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
args = parser.parse_args()
digest.seed()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
for _ in range(6):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(__name__, __package__, __spec__.name, parser.prog, Net.__module__)
digest.model(net, optimizer)
digest.end()
