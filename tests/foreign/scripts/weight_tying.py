#: steps = 8
#: tokens = 40
#: slow = one of many, and none of them is fast
"""One tensor as embedding and as head, saved and loaded in the middle of it."""

import io

import digest
import torch
from torch import nn

digest.seed()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids).cumsum(1))


net = Tied()
optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
losses = []
for number in range(8):
    ids = torch.randint(0, 20, (4, 10))
    loss = nn.functional.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if number == 3:
        torch.save((net.state_dict(), optimizer.state_dict()), file := io.BytesIO())
        file.seek(0)
        weights, state = torch.load(file)
        net.load_state_dict(weights)
        optimizer.load_state_dict(state)
        digest.add("checkpoint", file.getvalue())
assert net.head.weight is net.embed.weight
digest.add("losses", losses)
digest.add("storages", len({p.data_ptr() for p in net.state_dict().values()}))
digest.model(net, optimizer)
digest.end()
