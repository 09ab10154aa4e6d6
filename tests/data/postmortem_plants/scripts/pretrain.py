"""Pretraining of a small language model with tensor-parallel and data-parallel pairs.

`# slot: NAME` is where tests/support/postmortem_faults.py puts a fault.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from flight import FlightThread
from torch.distributed.elastic.multiprocessing.errors import record

# slot: imports

RANK = int(os.environ["RANK"])
DATA = os.environ["DATA"]
TIMEOUT = timedelta(seconds=int(os.environ["COLLECTIVE_TIMEOUT"]))
SEQ = 32
BATCH = 4
HIDDEN = 48
VOCAB = 256


class ShardReader:
    """Reads batches of bytes from this rank's shard."""

    def __init__(self, path):
        self.path = path
        self.offset = 0

    def read(self, count):
        with open(self.path, "rb", buffering=0) as shard:
            shard.seek(self.offset)
            data = shard.read(count)
        self.offset += count
        return data

    def batch(self):
        data = self.read(BATCH * (SEQ + 1))
        # slot: decode
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).long().view(BATCH, SEQ + 1)


class ColumnParallelMlp(torch.nn.Module):
    """Half of an MLP; the other half is on the other rank of the tensor-parallel group."""

    def __init__(self, group):
        super().__init__()
        self.group = group
        self.up = torch.nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.down = torch.nn.Linear(2 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        y = self.down(F.gelu(self.up(x)))
        partial = y.detach().clone()
        dist.all_reduce(partial, group=self.group)
        return x + y + (partial - y.detach())


def build_groups():
    mine = {}
    for name, members in (("tensor_parallel", ((0, 1), (2, 3))), ("data_parallel", ((0, 2), (1, 3)))):
        for ranks in members:
            group = dist.new_group(list(ranks), timeout=TIMEOUT, group_desc=name)
            if RANK in ranks:
                mine[name] = group
    return mine


def reduce_gradients(model, group):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)


def log_metrics(step, loss, grad_norm):
    dist.all_reduce(loss)
    dist.reduce(grad_norm, 0)
    if RANK == 0:
        print(f"step {step:5d} | loss {loss.item() / 4:.4f} | grad norm {grad_norm.item() / 4:.3f}", flush=True)


def train(flight):
    groups = build_groups()
    torch.manual_seed(1234)
    embedding = torch.nn.Embedding(VOCAB, HIDDEN)
    model = torch.nn.Sequential(
        embedding,
        ColumnParallelMlp(groups["tensor_parallel"]),
        ColumnParallelMlp(groups["tensor_parallel"]),
        torch.nn.Linear(HIDDEN, VOCAB),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    reader = ShardReader(os.path.join(DATA, f"shard-{RANK:02d}.bin"))
    for step in range(int(os.environ.get("STEPS", "1000"))):
        flight.step()
        # slot: begin
        tokens = reader.batch()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        reduce_gradients(model, groups["data_parallel"])
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        # slot: metrics
        log_metrics(step, loss.detach(), grad_norm)
    print(f"rank {RANK}: finished", flush=True)


@record
def main():
    dist.init_process_group("gloo", timeout=TIMEOUT)
    flight = FlightThread()
    try:
        train(flight)
    except RuntimeError:
        flight.write_now()
        raise


if __name__ == "__main__":
    sys.exit(main())
