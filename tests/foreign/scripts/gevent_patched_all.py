#: steps = none
#: says = gevent
#: needs = gevent
#: slow = one of many, and none of them is fast
"""gevent's green threads in place of Python's."""

from gevent import monkey

monkey.patch_all()

import digest  # noqa: E402
import gevent  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

digest.seed()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses, beats = [], []


def beat():
    while len(losses) < 8:
        beats.append(len(losses))
        gevent.sleep(0)


def train():
    for _ in range(8):
        loss = net(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        gevent.sleep(0)


gevent.joinall([gevent.spawn(beat), gevent.spawn(train)])
digest.add("losses", losses)
digest.add("beats", beats)
digest.model(net, optimizer)
digest.end(children=False)
