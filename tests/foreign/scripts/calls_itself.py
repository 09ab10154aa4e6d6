#: steps = 8
"""A module that calls itself along a tree, as a tree-LSTM does, to the depth that Python allows and beyond."""

import contextlib
import sys

import digest
import torch
from torch import nn

digest.seed()
sys.setrecursionlimit(400)


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x, depth):
        if depth == 0:
            return self.cell(x)
        return self(x, depth - 1) + x


losses, deepest = [], []
tree = Tree()
optimizer = torch.optim.SGD(tree.parameters(), lr=0.001)
for number in range(8):
    optimizer.zero_grad()
    loss = tree(torch.randn(2, 4), 40 + number).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if number % 2:
        depth = 60
        with contextlib.suppress(RecursionError):
            while True:
                tree(torch.randn(2, 4), depth)
                depth += 1
        deepest.append(depth)
digest.add("losses", losses)
digest.add("deepest", deepest)
print("deepest", deepest)
digest.model(tree, optimizer)
digest.end()
