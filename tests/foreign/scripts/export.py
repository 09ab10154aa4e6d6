#: steps = 4
#: compiler = loaded
#: slow = torch.export loads the compiler
"""torch.export of a model before and after its training: the same graph, and one that runs."""

import digest
import torch
from torch import nn

digest.seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.second(self.first(x).relu())


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
before = torch.export.export(net, (torch.ones(2, 4),))
for _ in range(4):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
after = torch.export.export(net, (torch.ones(2, 4),), strict=True)
digest.add("graphs", [str(before.graph), str(after.graph)])
digest.add("signature", str(after.graph_signature))
digest.add("answer", after.module()(torch.ones(2, 4)))
digest.model(net, optimizer)
digest.end()
