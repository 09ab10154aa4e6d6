#: steps = 24
#: phases = forward backward optimizer
"""A model for each of four folds, all kept to the end with their optimizers; three steps each, two epochs."""

import digest
import torch
from torch import nn

digest.seed()
inputs, wanted = torch.randn(48, 5), torch.randn(48, 1)
folds = torch.arange(48).chunk(4)
kept, held_out = [], []
for number in range(4):
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    rows = torch.cat([fold for other, fold in enumerate(folds) if other != number])
    for _ in range(2):
        for batch in rows[torch.randperm(36)].chunk(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(inputs[batch]), wanted[batch]).backward()
            optimizer.step()
        schedule.step()
    net.eval()
    with torch.no_grad():
        held_out.append(nn.functional.mse_loss(net(inputs[folds[number]]), wanted[folds[number]]).item())
    kept.append((net, optimizer, schedule))
digest.add("held out", held_out)
for number, (net, optimizer, _) in enumerate(kept):
    digest.model(net, optimizer, name=f"fold {number}")
digest.end()
