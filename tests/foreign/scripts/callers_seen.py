#: steps = 12
#: compiler = loaded
"""Forward passes that look at who has called them: warnings with a stacklevel, frames by number, a logger."""

import inspect
import logging
import os
import sys
import traceback
import warnings

import digest
import torch
from torch import nn

digest.seed()
warnings.simplefilter("always")
logging.basicConfig(stream=sys.stdout, format="%(filename)s:%(lineno)d %(funcName)s: %(message)s")
seen = []


class Inner(nn.Module):
    def forward(self, x):
        seen.append([frame.function for frame in inspect.stack()[:12]])
        return x.relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.second = nn.Linear(4, 8), Inner(), nn.Linear(8, 1)

    def forward(self, x, fail=False):
        for level in range(1, 8):
            warnings.warn(f"at level {level}", stacklevel=level)
            logging.warning("at level %d", level, stacklevel=level)
        seen.append([sys._getframe(n).f_code.co_name for n in range(5)])
        seen.append([sys._getframe(n).f_lineno for n in range(5)])
        seen.append([os.path.basename(sys._getframe(n).f_code.co_filename) for n in range(5)])
        seen.append([entry.replace(os.getcwd(), "") for entry in traceback.format_stack()])
        seen.append(len(inspect.stack()))
        if fail:
            raise ValueError("a bad batch")
        return self.second(self.inner(self.first(x)))


def train_step(x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses = []
for number in range(12):
    losses.append(train_step(torch.randn(8, 4)))
    if number % 4 == 3:
        try:
            net(torch.randn(8, 4), fail=True)
        except ValueError:
            traceback.print_exc()
            traceback.print_exc(file=sys.stdout)
        net.eval()
        with torch.no_grad():
            losses.append(net(torch.randn(8, 4)).sum().item())
        net.train()
digest.add("losses", losses)
digest.add("callers", seen)
digest.model(net, optimizer)
digest.end()
