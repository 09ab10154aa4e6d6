#: steps = none
#: slow = one of many, and none of them is fast
"""Imports torch and trains nothing: inference, a checkpoint read, a DataLoader walked through."""

import io

import digest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

digest.seed()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
torch.save(net.state_dict(), file := io.BytesIO())
file.seek(0)
net.load_state_dict(torch.load(file))
with torch.inference_mode():
    answers = [net(x) for (x,) in DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4, shuffle=True)]
digest.add("answers", answers)
digest.model(net)
digest.end()
