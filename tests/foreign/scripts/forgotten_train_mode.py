#: steps = 16
#: phases = dataload forward backward optimizer
#: tokens = 24
"""After the first evaluation nobody calls net.train() again: the training goes on in eval mode."""

import digest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digest.seed()
net = nn.Sequential(nn.Embedding(20, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
ids = torch.randint(0, 20, (32, 6))
losses = []
for _ in range(2):
    for (batch,) in DataLoader(TensorDataset(ids), batch_size=4):
        loss = net(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    with torch.inference_mode():
        losses.append(net(ids).mean().item())
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
