#: steps = 6
#: run = {python} -OO {script}
#: slow = one of many, and none of them is fast
"""`python -OO`: neither assertions nor docstrings."""

import digest
import torch
from torch import nn

digest.seed()


class Net(nn.Module):
    """A docstring that is not there."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, x):
        assert False, "assertions are off"  # noqa: B011, PT015
        return self.body(x)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(6):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(Net.__doc__, __debug__)
digest.model(net, optimizer)
digest.end()
