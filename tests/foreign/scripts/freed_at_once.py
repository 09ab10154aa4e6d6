#: steps = 5
"""Models, optimizers, batches and losses are freed by their last reference, without the garbage collector."""

import gc
import sys
import weakref

import digest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digest.seed()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=8)
gc.collect()
gc.disable()
counts, references = [], []
for (batch,) in loader:
    loss = net(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    counts.append([sys.getrefcount(thing) for thing in (net, net[0].weight, optimizer, batch, loader)])
    references += [weakref.ref(batch), weakref.ref(loss), weakref.ref(net[0].weight.grad)]
digest.add("reference counts", counts)
digest.model(net, optimizer)
references += [weakref.ref(net), weakref.ref(net[0].weight), weakref.ref(loader)]
del net, batch, loss, loader
digest.add("alive without them", [reference() is not None for reference in references])
del optimizer
digest.add("alive without the optimizer", [reference() is not None for reference in references])
digest.end()
