"""A small training whose steps are measured: python -m benchmarks.training_step WAY SECONDS

WAY is how it is watched: "base" (not at all), "manual" (llmtop, four phases), "auto" (to be started by `llmtop
run`), "floor" (a stamp a boundary and one write into a memory map a step) or "traceml". With "manual", "auto" and
"floor", blocks of steps with and without it alternate in one process: two processes of the same training differ by
more than any of these costs. For "auto" what `llmtop run` has put into torch is taken out for every other block;
its server thread sleeps through both.

Prints one JSON object: the median microseconds of a plain step and of a watched one (null where there are none).
"""

from __future__ import annotations

import json
import mmap
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers
from torch.utils.data.dataloader import _BaseDataLoaderIter

BLOCK = 50
WARMUP = 300
WIDTH = 192
BATCH = 64

StepFunction = Callable[[Iterator[Tensor]], None]


class Training:
    """An MLP on one CPU thread; a step takes somewhat under a millisecond."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
        self.model = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        data = torch.utils.data.TensorDataset(torch.randn(BATCH * BLOCK, WIDTH))
        self.loader = torch.utils.data.DataLoader(data, batch_size=None, sampler=_slices(len(data)))

    def plain(self, batches: Iterator[Any]) -> None:
        """One step as the user wrote it."""
        (batch,) = next(batches)
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def manual(self) -> StepFunction:
        """The same with llmtop, four phases."""
        import llmtop

        llmtop.attach()

        def step(batches: Iterator[Any]) -> None:
            with llmtop.step(tokens=BATCH):
                with llmtop.phase("dataload"):
                    (batch,) = next(batches)
                with llmtop.phase("forward"):
                    loss = self.model(batch).square().mean()
                with llmtop.phase("backward"):
                    loss.backward()
                with llmtop.phase("optimizer"):
                    self.optimizer.step()
                    self.optimizer.zero_grad(set_to_none=True)

        return step

    def floor(self) -> StepFunction:
        """The same with the least that any publisher must do."""
        ring = mmap.mmap(-1, 4096 * 48)
        pack = struct.Struct("<6q").pack_into
        now = time.perf_counter_ns
        count = 0

        def step(batches: Iterator[Any]) -> None:
            nonlocal count
            begun = now()
            (batch,) = next(batches)
            loaded = now()
            loss = self.model(batch).square().mean()
            forward = now()
            loss.backward()
            backward = now()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            pack(ring, 48 * (count & 4095), count, begun, loaded, forward, backward, now())
            count += 1

        return step

    def traceml(self) -> StepFunction:
        """The same with TraceML, as its documentation says for a loop of one's own."""
        import traceml_ai

        traceml_ai.init(mode="auto")

        def step(batches: Iterator[Any]) -> None:
            (batch,) = next(batches)
            traced: AbstractContextManager[None] = traceml_ai.trace_step(self.model)
            with traced:
                loss = self.model(batch).square().mean()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)

        return step


class Hooks:
    """What `llmtop run` has put into torch once this process trains."""

    def __init__(self, model: nn.Module) -> None:
        """Find it.

        Raises:
            SystemExit: there is none.
        """
        owners: list[tuple[Any, str]] = [(torch.autograd, "backward"), (_BaseDataLoaderIter, "__next__")]
        self._wrapped = [(owner, name, vars(owner)[name]) for owner, name in owners]
        self._model: Any = type(model)
        self._call = vars(self._model).get("__call__")
        registered = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
        self._hooks = [(where, dict(where)) for where in registered]
        if self._call is None or not all(hooks for _, hooks in self._hooks):
            raise SystemExit("not started by llmtop run: nothing of it is here")

    @contextmanager
    def without_hooks(self) -> Iterator[None]:
        """Train without it."""
        for owner, name, wrapper in self._wrapped:
            setattr(owner, name, wrapper.__wrapped__)
        del self._model.__call__
        for where, _ in self._hooks:
            where.clear()
        yield
        for owner, name, wrapper in self._wrapped:
            setattr(owner, name, wrapper)
        self._model.__call__ = self._call
        for where, hooks in self._hooks:
            where.update(hooks)


def _slices(length: int) -> list[slice]:
    return [slice(begin, begin + BATCH) for begin in range(0, length, BATCH)]


def microseconds(training: Training, step: StepFunction, into: list[float]) -> None:
    """Run one block over the whole loader and add the time of each step."""
    batches = iter(training.loader)
    for _ in range(BLOCK):
        begun = time.perf_counter_ns()
        step(batches)
        into.append((time.perf_counter_ns() - begun) / 1e3)


def main() -> None:
    """Measure and print."""
    way, seconds = sys.argv[1], float(sys.argv[2])
    training = Training()
    plain: list[float] = []
    watched: list[float] = []
    ways: dict[str, Callable[[], StepFunction]] = {
        "manual": training.manual,
        "floor": training.floor,
        "traceml": training.traceml,
    }
    step = ways[way]() if way in ways else training.plain
    print("ready", flush=True)
    warm: list[float] = []
    while len(warm) < WARMUP:
        microseconds(training, step, warm)
    hooks = Hooks(training.model) if way == "auto" else None
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        microseconds(training, step, watched)
        if way in ("manual", "floor"):
            microseconds(training, training.plain, plain)
        elif hooks is not None:
            with hooks.without_hooks():
                microseconds(training, training.plain, plain)
    medians = {"plain": statistics.median(plain) if plain else None, "watched": statistics.median(watched)}
    print(json.dumps(medians), flush=True)


if __name__ == "__main__":
    main()
