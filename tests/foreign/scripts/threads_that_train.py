#: steps = 50..52
#: samples = none
#: note = thread
"""Two threads, each with a model, a generator and an optimizer of its own; one of them can be followed.

One or two steps more may be counted at the start, for weights that the other thread has changed.
"""

import threading

import digest
import torch
from torch import nn

digest.seed()
torch.set_num_threads(1)
results = {}
turn = threading.Barrier(2)


def train(number):
    drawn = torch.Generator().manual_seed(number)
    net = nn.Linear(4, 1)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.rand(p.shape, generator=drawn))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for _ in range(50):
        turn.wait()
        loss = net(torch.randn(8, 4, generator=drawn)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    results[number] = (losses, net.state_dict())


threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
torch.manual_seed(5)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
digest.add("results", [results[number] for number in range(2)])
digest.end(children=False)
