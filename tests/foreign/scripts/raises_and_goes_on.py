#: steps = 9
#: phases = forward backward optimizer
"""Errors in forward, backward and the optimizer are caught, and the training goes on with the next batch."""

import digest
import torch
from torch import nn

digest.seed()


class Weak(torch.optim.SGD):
    calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        if self.calls == 3:
            raise ValueError("the third time")
        return super().step(closure)


net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = Weak(net.parameters(), lr=0.05)
errors = []
for number in range(12):
    try:
        loss = net(torch.randn(8, 3 if number == 4 else 4)).square().mean()
        optimizer.zero_grad()
        (loss.detach() if number == 6 else loss).backward()
        optimizer.step()
    except (ValueError, RuntimeError) as error:  # noqa: PERF203
        errors.append((number, str(error).split("\n")[0]))
print(errors)
digest.model(net, optimizer)
digest.end()
