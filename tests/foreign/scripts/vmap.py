#: steps = 6
#: slow = one of many, and none of them is fast
"""Gradients of each sample by vmap and grad, clipped and with noise (DP-SGD); a Jacobian and a Hessian product."""

import digest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

digest.seed()
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def error(weights, x, y):
    return (functional_call(net, weights, (x.unsqueeze(0),)).squeeze() - y) ** 2


norms = []
for _ in range(6):
    x, y = torch.randn(8, 4), torch.randn(8)
    weights = {name: p.detach() for name, p in net.named_parameters()}
    each = vmap(grad(error), in_dims=(None, 0, 0))(weights, x, y)
    norm = torch.stack([slopes.flatten(1).norm(dim=1) for slopes in each.values()]).norm(dim=0)
    norms.append(norm)
    for name, p in net.named_parameters():
        clipped = torch.einsum("n,n...->...", (1 / norm).clamp(max=1), each[name])
        p.grad = (clipped + 0.1 * torch.randn_like(clipped)) / 8
    optimizer.step()
digest.add("norms", norms)
digest.add("Jacobian", jacrev(lambda x: net(x))(torch.ones(4)))
digest.add("Hessian", hessian(lambda x: net(x).sum())(torch.ones(4)))
digest.add("product", jvp(lambda x: net(x), (torch.ones(4),), (torch.ones(4),)))
digest.model(net, optimizer)
digest.end()
