#: steps = 14
#: phases = forward backward optimizer
"""Mixed precision with a GradScaler; the one batch of infinities is skipped, and is no step."""

import digest
import torch
from torch import nn

digest.seed()
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
losses, scales = [], []
for number in range(15):
    x = torch.randn(8, 6)
    if number == 7:
        x[0, 0] = torch.inf
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = net(x).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
    scales.append(scaler.get_scale())
digest.add("losses", [repr(loss) for loss in losses])
digest.add("scales", scales)
digest.add("scaler", scaler.state_dict())
digest.model(net, optimizer)
digest.end()
