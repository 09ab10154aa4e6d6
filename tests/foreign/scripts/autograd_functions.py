#: steps = 6
"""Functions of autograd's of the user's, with backward passes within backward passes."""

import digest
import torch
from torch import nn

digest.seed()


class Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, net):
        ctx.net = net
        ctx.save_for_backward(x)
        with torch.no_grad():
            return x + net(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.net(x)
        torch.autograd.backward(y, gradient)
        return gradient + x.grad, None


net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
losses = []
for _ in range(6):
    x = torch.randn(8, 4, requires_grad=True)
    loss = Reversible.apply(x, net).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append((loss.item(), x.grad.sum().item()))
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
