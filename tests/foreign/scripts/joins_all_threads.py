#: steps = 5
"""A program that joins every thread there is before it ends."""

import threading

import digest
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
enough = threading.Event()
threading.Thread(target=enough.wait, name="of the program's own").start()
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
names = []
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        names.append(thread.name)
        assert not thread.daemon, "nobody else's thread is to be waited for"
        enough.set()
        thread.join()
digest.add("threads", names)
digest.model(net, optimizer)
digest.end()
