#: steps = 12
#: phases = forward backward optimizer
#: slow = one of many, and none of them is fast
"""An optimizer class of the user's, by way of `p.data`, with a closure that it hardly ever gets."""

import digest
import torch
from torch import nn

digest.seed()


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, decay=0.01):
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.data.mul_(1 - group["lr"] * group["decay"])
                p.data.add_(torch.lerp(mean, p.grad, 0.1).sign(), alpha=-group["lr"])
                mean.lerp_(p.grad, 0.01)


net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = Lion(net.parameters())
losses = []
for _ in range(12):
    loss = (net(torch.randn(8, 4)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
