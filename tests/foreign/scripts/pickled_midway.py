#: steps = 9
#: phases = forward backward optimizer
"""The model and its optimizer copied, pickled and loaded again in the middle, and trained on."""

import copy
import io
import pickle

import digest
import torch
from torch import nn

digest.seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.body(x)

    def __call__(self, x):
        return super().__call__(x) * 2


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
losses = []


def train(steps):
    for _ in range(steps):
        loss = (net(torch.randn(8, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


train(3)
net, optimizer = copy.deepcopy((net, optimizer))
train(3)
digest.pickled("model and optimizer", net, optimizer, Net, Net.__call__)
net, optimizer = pickle.loads(pickle.dumps((net, optimizer)))
torch.save(net, file := io.BytesIO())
digest.add("file", file.getvalue())
train(3)
digest.add("losses", losses)
digest.add("attributes of the model", sorted(net.__dict__))
digest.model(net, optimizer)
digest.end()
