#: steps = 10
#: phases = dataload forward backward optimizer
#: samples = 4
"""A training within a running event loop, as in a notebook, with another task that goes on beside it."""

import asyncio

import digest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digest.seed()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses, beats = [], []


async def beat():
    while len(losses) < 10:
        beats.append(len(losses))
        await asyncio.sleep(0)


async def train():
    for (x,) in DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=4):
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        await asyncio.sleep(0)


async def main():
    await asyncio.gather(beat(), train())
    return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]


digest.add("tasks left", asyncio.run(main()))
digest.add("losses", losses)
digest.add("beats", beats)
digest.model(net, optimizer)
digest.end()
