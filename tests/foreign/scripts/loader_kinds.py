#: steps = 16
#: hands = hands both
#: hands.steps = none
"""What a program asks of its loader: samplers, generators, lengths, attributes, state, two iterators at once.

By hand `llmtop.loader` is all that is called, and no step: it must still be the loader that it was.
"""

import copy
import pickle

import digest
import hands as llmtop
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
data = TensorDataset(torch.randn(16, 4))
drawn = torch.Generator().manual_seed(3)
weighted = WeightedRandomSampler([1.0 + i for i in range(16)], 16, generator=drawn)
batches = BatchSampler(RandomSampler(data, generator=torch.Generator().manual_seed(4)), 4, drop_last=True)
losses, facts = [], []
for loader in (
    llmtop.loader(DataLoader(data, batch_size=4, shuffle=True)),
    llmtop.loader(DataLoader(data, batch_size=4, sampler=weighted)),
    llmtop.loader(DataLoader(data, batch_sampler=batches)),
    llmtop.loader(DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))),
):
    facts += [len(loader), isinstance(loader, DataLoader), bool(loader), loader.batch_size, loader.dataset is data]
    loader.epoch = 7
    facts += [copy.copy(loader).epoch, len(pickle.loads(pickle.dumps(loader)).dataset)]
    another = iter(loader)
    for (x,) in loader:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((loss.item(), next(another)[0].sum().item()))
facts += [bool(llmtop.loader(x for x in "ab")), list(llmtop.loader(x for x in "ab")), list(llmtop.loader([1, 2]))]
digest.add("losses", losses)
digest.add("facts", facts)
digest.add("generator", drawn.get_state())
digest.model(net, optimizer)
digest.end()
