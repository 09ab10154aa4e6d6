#: steps = 4
"""sys.settrace, sys.setprofile: the lines of the user's file that a debugger or coverage would see."""

import sys
import threading

import digest
import torch
from torch import nn

digest.seed()
lines, calls = [], []


def trace(frame, event, argument):
    if frame.f_code.co_filename != __file__:
        return None
    lines.append((frame.f_code.co_name, event, frame.f_lineno))
    return trace


def profile(frame, event, argument):
    if frame.f_code.co_filename == __file__ and event in ("call", "return"):
        calls.append((frame.f_code.co_name, event))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, x):
        return self.body(x)


def train():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for number in range(4):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if number == 2:
            sys.settrace(None)
            sys.setprofile(profile)
    return net, optimizer


sys.settrace(trace)
threading.settrace(trace)
net, optimizer = train()
digest.add("profile function", sys.getprofile() is profile)
sys.setprofile(None)
digest.add("lines", lines)
digest.add("calls", calls)
digest.model(net, optimizer)
digest.end()
