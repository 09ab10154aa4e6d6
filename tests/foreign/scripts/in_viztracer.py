#: steps = 5
#: needs = viztracer
#: slow = one of many, and none of them is fast
"""VizTracer around the loop: it has a profile function of C, and names the functions of the script."""

import json
import os

import digest
import torch
from torch import nn
from viztracer import VizTracer


def train():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return net, optimizer


digest.seed()
tracer = VizTracer(verbose=0)
tracer.start()
net, optimizer = train()
tracer.stop()
tracer.save("trace.json")
with open("trace.json") as file:
    events = json.load(file)["traceEvents"]
name = f"train ({__file__}"
digest.add("calls of train", sum(one["name"].startswith(name) for one in events))
os.unlink("trace.json")
digest.model(net, optimizer)
digest.end()
