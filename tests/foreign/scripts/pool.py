#: steps = 6
"""multiprocessing.Pool and concurrent.futures beside the loop, forked before and after the first step."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import digest
import torch
from torch import nn

digest.seed()
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses = []


def tokenize(text):
    return [ord(letter) % 7 for letter in text]


def train(rows):
    loss = net(torch.tensor(rows, dtype=torch.float32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    with fork.Pool(2) as before:
        train(before.map(tokenize, ["abcd", "efgh"]))
        with fork.Pool(2) as after:
            for rows in after.imap(tokenize, ["ijkl", "mnop", "qrst"]):
                train([rows])
        with ProcessPoolExecutor(1, mp_context=fork) as processes, ThreadPoolExecutor(1) as threads:
            train([processes.submit(tokenize, "uvwx").result()])
            train([threads.submit(tokenize, "yzab").result()])
    digest.add("losses", losses)
    digest.model(net, optimizer)
    digest.end()
