#: steps = 12
#: compiler = loaded
#: phases = dataload forward backward optimizer
#: tokens = 48
#: samples = 4
#: hands = yes
#: hands.phases = dataload forward backward optimizer
#: hands.samples = none
"""The loop of every tutorial."""

import digest
import hands as llmtop
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digest.seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 50))

    def forward(self, ids):
        return self.body(self.embed(ids))


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
ids = torch.randint(0, 50, (48, 12))
losses = []
for (batch,) in llmtop.loader(DataLoader(TensorDataset(ids), batch_size=4, shuffle=True)):
    with llmtop.step(tokens=batch.numel()):
        with llmtop.phase("forward"):
            loss = nn.functional.cross_entropy(net(batch).flatten(0, 1), batch.flatten())
        optimizer.zero_grad()
        with llmtop.phase("backward"):
            loss.backward()
        with llmtop.phase("optimizer"):
            optimizer.step()
    llmtop.log(loss=loss.detach())
    losses.append(loss.item())
print(f"{len(losses)} steps, loss {losses[-1]:.4f}")
digest.add("losses", losses)
digest.model(net, optimizer)
digest.pickled("model and optimizer", net, optimizer)
digest.end()
