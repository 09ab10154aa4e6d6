#: steps = 8..9
#: slow = one of many, and none of them is fast
"""Complex weights, and an embedding with sparse gradients and an optimizer of its own; both step together."""

import digest
import torch
from torch import nn

digest.seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(50, 8, mode="sum", sparse=True)
        self.turn = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64) / 3)

    def forward(self, ids):
        return (self.embed(ids).to(torch.complex64) @ self.turn).abs().mean()


net = Net()
dense = torch.optim.Adam([net.turn], lr=1e-2)
sparse = torch.optim.SparseAdam(net.embed.parameters(), lr=1e-2)
losses = []
for _ in range(8):
    loss = net(torch.randint(0, 50, (4, 6)))
    for optimizer in (dense, sparse):
        optimizer.zero_grad()
    loss.backward()
    for optimizer in (dense, sparse):
        optimizer.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(net, dense, sparse)
digest.end()
