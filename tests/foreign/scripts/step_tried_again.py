#: steps = 10
#: phases = forward backward optimizer
"""An optimizer whose step fails now and then, as by a lost connection, and is tried again."""

import digest
import torch
from torch import nn

digest.seed()


class Remote(torch.optim.SGD):
    calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        if self.calls % 4 == 0:
            raise ConnectionError(f"call {self.calls}")
        return super().step(closure)


net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = Remote(net.parameters(), lr=0.05)
errors = []
for _ in range(10):
    loss = (net(torch.randn(8, 4)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    try:
        optimizer.step()
    except ConnectionError as error:
        errors.append(str(error))
        optimizer.step()
print(errors)
digest.model(net, optimizer)
digest.end()
