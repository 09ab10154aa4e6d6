#: steps = 6
#: phases = dataload forward backward optimizer
#: samples = 12
#: hands = yes
#: hands.steps = 6
#: hands.phases = dataload
"""Three batches a step, with a schedule and a clipped norm."""

import digest
import hands as llmtop
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digest.seed()
net = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.2), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=7)
losses, rates = [], []
batches = iter(llmtop.loader(DataLoader(TensorDataset(torch.randn(72, 6)), batch_size=4, shuffle=True)))
for _ in range(6):
    with llmtop.step(samples=12):
        for _ in range(3):
            (x,) = next(batches)
            loss = net(x).square().mean() / 3
            loss.backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    rates += schedule.get_last_lr()
digest.add("losses", losses)
digest.add("rates", rates)
digest.model(net, optimizer)
digest.end()
