"""A Trainer class with a checkpoint thread; sharded and replicated groups.

`# slot: NAME` is where tests/support/postmortem_faults.py puts a fault.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from flight import FlightThread
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

# slot: imports

log = logging.getLogger("trainer")


class Config:
    layers = 3
    width = 96
    batch = 8
    checkpoint_every = 10
    timeout = timedelta(seconds=int(os.environ["COLLECTIVE_TIMEOUT"]))


class Checkpointer(threading.Thread):
    """Copies the weights to disk beside the training."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        super().__init__(name="checkpointer", daemon=True)
        self.model, self.folder = model, folder
        self.weights_lock = threading.Lock()
        self.files_lock = threading.Lock()
        self.wanted = threading.Event()

    def run(self) -> None:
        while True:
            self.wanted.wait(60)
            self.wanted.clear()
            # slot: checkpoint
            with self.weights_lock:
                state = {name: value.clone() for name, value in self.model.state_dict().items()}
            torch.save(state, self.folder / f"rank{dist.get_rank()}.pt")


class Trainer:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.rank = dist.get_rank()
        self.shard = self._groups("shard", ((0, 1), (2, 3)))
        self.replica = self._groups("replica", ((0, 2), (1, 3)))
        torch.manual_seed(7)
        self.model = nn.Sequential(*(nn.Linear(config.width, config.width) for _ in range(config.layers)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.checkpointer = Checkpointer(self.model, Path(os.environ["DATA"]))
        self.checkpointer.start()
        self.history: list = []
        self.flight = FlightThread()

    def _groups(self, kind: str, members):
        limit = self.config.timeout
        made = [(ranks, dist.new_group(list(ranks), timeout=limit, group_desc=kind)) for ranks in members]
        return next(group for ranks, group in made if self.rank in ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.model:
            weights = [torch.empty_like(layer.bias) for _ in range(2)]
            dist.all_gather(weights, layer.bias.detach(), group=self.shard)
            x = torch.tanh(layer(x)) + sum(weights) * 0.01
        return x.square().mean()

    def sync_gradients(self) -> None:
        for index, parameter in enumerate(self.model.parameters()):  # noqa: B007
            # slot: sync
            dist.all_reduce(parameter.grad, group=self.replica)

    def evaluate(self, step: int) -> None:
        # slot: evaluate
        pass

    def train_step(self, step: int) -> float:
        batch = torch.randn(self.config.batch, self.config.width)
        loss = self.forward(batch)
        loss.backward()
        self.sync_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        # slot: after
        total = loss.detach().reshape(1)
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    def fit(self, steps: int) -> None:
        for step in range(steps):
            self.flight.step()
            began = time.perf_counter()
            loss = self.train_step(step)
            if step % 5 == 0:
                log.info("step=%d loss=%.5f ms=%.1f", step, loss, 1e3 * (time.perf_counter() - began))
            if step and step % self.config.checkpoint_every == 0:
                self.save(step)
            self.evaluate(step)

    def save(self, step: int) -> None:
        # slot: save
        self.checkpointer.wanted.set()


@record
def main() -> None:
    dist.init_process_group("gloo", timeout=Config.timeout)
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s rank={rank} %(name)s: %(message)s")
    log.info("pid %d, world size %d", os.getpid(), dist.get_world_size())
    trainer = Trainer(Config())
    try:
        trainer.fit(1000)
    except RuntimeError:
        log.error("step failed")
        trainer.flight.write_now()
        raise


if __name__ == "__main__":
    main()
