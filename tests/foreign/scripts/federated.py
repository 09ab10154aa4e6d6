#: steps = 36
#: phases = forward backward optimizer
"""Federated averaging in one process: three clients with an optimizer each, three steps each in a round."""

import digest
import torch
from torch import nn

digest.seed()
clients = []
for _ in range(3):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    clients.append((net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), torch.randn(24, 4)))
losses = []
for _ in range(4):
    for net, optimizer, data in clients:
        for batch in data.chunk(3):
            loss = (net(batch) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    states = [net.state_dict() for net, *_ in clients]
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    for net, *_ in clients:
        net.load_state_dict(mean)
digest.add("losses", losses)
for number, (net, optimizer, _) in enumerate(clients):
    digest.model(net, optimizer, name=f"client {number}")
digest.end()
