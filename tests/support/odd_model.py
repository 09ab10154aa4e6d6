"""The beginning of scripts that are told by hooks: a model, its optimizer and data."""

from __future__ import annotations

MODEL = """
import copy, functools, gc, threading, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    def forward(self, ids):
        return self.body(self.embed(ids)).mean()

torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
ids = torch.randint(0, 50, (40, 12))
def train(steps, stepped=None):
    for _ in range(steps):
        net(ids[:4]).backward()
        (stepped or optimizer).step()
"""
PARTS = {"forward", "backward", "optimizer"}
