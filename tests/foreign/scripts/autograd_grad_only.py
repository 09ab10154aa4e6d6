#: steps = none
#: slow = one of many, and none of them is fast
"""Neither a backward pass nor an optimizer: gradients by hand, weights by hand."""

import digest
import torch

digest.seed()
weight = torch.randn(4, 1, requires_grad=True)
losses = []
for _ in range(30):
    x = torch.randn(8, 4)
    loss = (x @ weight - x.sum(1, keepdim=True)).square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    weight = (weight - 0.1 * gradient).detach().requires_grad_()
    losses.append(loss.item())
digest.add("losses", losses)
digest.add("weight", weight)
digest.end()
