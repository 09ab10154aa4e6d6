#: steps = 6
#: run = {python} -c "import sys; sys.argv.append('-c'); source = open('dash_c.py').read(); exec(source)" 7
#: slow = one of many, and none of them is fast
"""`python -c`: a program without a file, whose classes are of a __main__ without a file."""

import sys

import digest
import torch
from torch import nn

digest.seed(int(sys.argv[1]))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, x):
        return self.body(x)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(6):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print("__file__" in globals(), sys.argv)
digest.model(net, optimizer)
digest.end()
