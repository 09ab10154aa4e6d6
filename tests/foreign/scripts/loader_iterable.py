#: steps = 10
#: phases = dataload forward backward optimizer
#: tokens = 24
#: hands = yes
#: hands.phases = dataload
#: hands.tokens = 24
"""An endless stream, shards for each worker, a collate function of the user's, batches as dictionaries."""

import itertools

import digest
import hands as llmtop
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

digest.seed()
torch.set_num_threads(1)


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for number in itertools.count(info.id, info.num_workers):
            yield {"input_ids": [number % 20, 1, 2, 3, 4, 5], "weight": number}


def collate(rows):
    return {
        "input_ids": torch.tensor([row["input_ids"] for row in rows]),
        "weights": [row["weight"] for row in rows],
    }


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 4)

    def forward(self, input_ids, weights):
        return self.embed(input_ids).mean((1, 2)) @ torch.tensor(weights, dtype=torch.float32)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
loader = DataLoader(Stream(), batch_size=4, num_workers=2, collate_fn=collate, multiprocessing_context="fork")
seen = []
for batch in itertools.islice(llmtop.loader(loader), 10):
    with llmtop.step(tokens=batch["input_ids"].numel()):
        loss = net(**batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seen.append((loss.item(), batch["weights"]))
digest.add("seen", seen)
digest.model(net, optimizer)
digest.end(children=False)
