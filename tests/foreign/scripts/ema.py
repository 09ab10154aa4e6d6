#: steps = 12
#: phases = dataload forward backward optimizer
#: samples = 8
"""A moving average of the weights beside the model, used for the evaluations."""

import digest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

digest.seed()
net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))
average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
inputs, labels = torch.randn(32, 6), torch.randint(0, 2, (32,))
accuracies = []
for _ in range(3):
    for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        average.update_parameters(net)
    average.eval()
    with torch.no_grad():
        accuracies.append((average(inputs).argmax(1) == labels).sum())
    average.train()
digest.add("accuracies", accuracies)
digest.model(net, optimizer)
digest.model(average, name="average")
digest.end()
