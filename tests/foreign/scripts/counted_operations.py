#: steps = 5
"""Modes of the user's see every operation that torch carries out: none is added, none is missing."""

import digest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

digest.seed()
functions, operations, saved = [], [], []


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        functions.append(getattr(function, "__name__", repr(function)))
        return function(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        operations.append(str(function))
        return function(*args, **(kwargs or {}))


net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.05)


def pack(tensor):
    saved.append(tuple(tensor.shape))
    return tensor


with Functions(), Operations(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
    for (x,) in DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
digest.add("functions", functions)
digest.add("operations", operations)
digest.add("saved", saved)
digest.model(net, optimizer)
digest.end()
