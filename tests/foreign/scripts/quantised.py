#: steps = 8
#: phases = forward backward optimizer
#: slow = one of many, and none of them is fast
"""Training with fake quantisation (its observers have buffers), then a model whose weights are of eight bits."""

import warnings

import digest
import torch
from torch import nn

digest.seed()
warnings.simplefilter("ignore")
from torch.ao import quantization  # noqa: E402


class Faked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.of_weights = quantization.default_weight_fake_quant()
        self.of_outputs = quantization.default_fake_quant()

    def forward(self, x):
        return self.of_outputs(nn.functional.linear(x, self.of_weights(self.linear.weight), self.linear.bias))


net = Faked()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses = []
for _ in range(8):
    loss = (net(torch.randn(8, 6)) - 0.5).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.add("eight bits", torch.quantize_per_tensor(net.linear.weight.detach(), 0.05, 0, torch.qint8))
digest.model(net, optimizer)
digest.end()
