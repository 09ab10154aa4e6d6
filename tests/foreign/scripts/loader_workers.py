#: steps = 12
#: phases = dataload forward backward optimizer
#: samples = 4
"""DataLoaders with forked workers: shuffled, with a worker_init_fn, persistent, prefetching, left early."""

import threading

import digest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

digest.seed()
torch.set_num_threads(1)


class Drawn(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        info = get_worker_info()
        return torch.rand(4) + index, (info.id, info.seed % 1000)


def say_hello(number):
    torch.manual_seed(number)


net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
losses, seen = [], []
fresh = DataLoader(Drawn(), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context="fork")
kept = DataLoader(
    Drawn(),
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    prefetch_factor=3,
    worker_init_fn=say_hello,
    multiprocessing_context="fork",
)
for loader in (fresh, kept, kept):
    for x, who in loader:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seen.append([part.tolist() for part in who])
next(iter(kept))
del kept, loader
for thread in threading.enumerate():  # what feeds workers ends a moment after them
    if thread is not threading.main_thread():
        thread.join(20)
digest.add("losses", losses)
digest.add("seen", seen)
digest.model(net, optimizer)
digest.end()
