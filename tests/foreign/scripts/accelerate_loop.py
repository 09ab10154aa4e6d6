#: steps = 6
#: compiler = loaded
#: phases = dataload forward backward optimizer
#: needs = accelerate
#: slow = loads Accelerate
#: hands = hands both
#: hands.steps = none
"""Accelerate with accumulation; by hand its loader is wrapped by llmtop before it is prepared."""

import digest
import hands as llmtop
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digest.seed()
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
loader = llmtop.loader(DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=4, shuffle=True))
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
losses = []
for (x,) in loader:
    with accelerator.accumulate(net):
        loss = net(x).square().mean()
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
digest.add("losses", losses)
digest.add("loader", type(loader).__name__)
digest.model(accelerator.unwrap_model(net), optimizer.optimizer)
digest.end()
