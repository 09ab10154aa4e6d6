#: steps = 2..250
#: phases = dataload forward
#: samples = 4
#: slow = it takes more than a second to be one for inference
"""A model is evaluated, batch by batch, and never trained."""

import inspect
import time

import digest
import torch
from torch.utils.data import DataLoader, TensorDataset

digest.seed()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2))

    def forward(self, batch):
        callers.append([frame.function for frame in inspect.stack()[:4]])
        return self.body(batch)


callers = []
net = Net().eval()
found = []
with torch.inference_mode():
    for (batch,) in DataLoader(TensorDataset(torch.randn(1000, 8)), batch_size=4, shuffle=True):
        found.append(net(batch))
        time.sleep(0.01)
digest.add("found", found)
digest.add("callers", callers)
digest.model(net)
digest.pickled("net", net)
digest.end()
