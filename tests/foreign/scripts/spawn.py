#: steps = none
#: steps[child] = 5
#: samples[child] = none
#: slow = starts an interpreter more
"""A training in a process that is started by multiprocessing's "spawn", its model sent there and back."""

import digest
import torch
from torch import multiprocessing, nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, x):
        return self.body(x)


def train(net, results):
    digest.seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        loss = net(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    results.put((losses, {name: p.tolist() for name, p in net.state_dict().items()}))
    digest.add("losses", losses)
    digest.model(net, optimizer)
    digest.end("child")


if __name__ == "__main__":
    digest.seed()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=train, args=(Net(), results))
    process.start()
    digest.add("results", results.get())
    process.join()
    digest.add("exit code", process.exitcode)
    digest.end()
