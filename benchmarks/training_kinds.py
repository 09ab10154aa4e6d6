"""Kinds of step on which the estimate of llmtop's cost was not set (`benchmarks.training_estimate`).

Each maker returns the step without llmtop, the step with phases by hand (None where only hooks time it) and the
module whose class the hooks time. A step takes a millisecond or a few on one CPU thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import llmtop
from benchmarks import training_step
from benchmarks.training_blocks import KINDS as BLOCK_KINDS
from benchmarks.training_blocks import SIZES, STEPS

WIDTH, BATCH = 64, 16
MICRO_BATCHES = 8
TINY_PHASES = 40
TOKENS = 12
StepFunction = Callable[[], None]


class Kind(NamedTuple):
    """One kind of step."""

    plain: StepFunction
    by_hand: StepFunction | None
    model: nn.Module


def _network(width: int = WIDTH, layers: int = 1, out: int = 1) -> nn.Sequential:
    inner = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*inner, nn.Linear(width, out))


def _endless(loader: DataLoader[Any]) -> Iterator[Tensor]:
    while True:
        for (batch,) in loader:
            yield batch


def _batches(workers: int = 0) -> Iterator[Tensor]:
    data = TensorDataset(torch.randn(BATCH * 256, WIDTH))
    slices = [slice(begin, begin + BATCH) for begin in range(0, len(data), BATCH)]
    loading: Any = DataLoader(
        data, batch_size=None, sampler=slices, num_workers=workers, persistent_workers=workers > 0
    )
    return _endless(loading)


def accumulation() -> Kind:
    """Eight micro-batches a step."""
    model, batches = _network(), _batches()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def by_hand() -> None:
        with llmtop.step():
            for _ in range(MICRO_BATCHES):
                with llmtop.phase("dataload"):
                    batch = next(batches)
                with llmtop.phase("forward"):
                    loss = model(batch).square().mean() / MICRO_BATCHES
                with llmtop.phase("backward"):
                    loss.backward()
            with llmtop.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()

    def plain() -> None:
        for _ in range(MICRO_BATCHES):
            batch = next(batches)
            loss = model(batch).square().mean() / MICRO_BATCHES
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Kind(plain, by_hand, model)


def adversarial() -> Kind:
    """A generator and a discriminator with an optimizer each."""
    generator, judge, batches = _network(out=WIDTH), _network(), _batches()
    optimizers = [torch.optim.Adam(one.parameters(), fused=True) for one in (judge, generator)]

    def by_hand() -> None:
        with llmtop.step():
            with llmtop.phase("dataload"):
                batch = next(batches)
            with llmtop.phase("judge forward"):
                made = generator(torch.randn_like(batch))
                loss = judge(made.detach()).square().mean() + (judge(batch) - 1).square().mean()
            with llmtop.phase("judge backward"):
                optimizers[0].zero_grad()
                loss.backward()
            with llmtop.phase("judge optimizer"):
                optimizers[0].step()
            with llmtop.phase("generator forward"):
                loss = (judge(generator(torch.randn_like(batch))) - 1).square().mean()
            with llmtop.phase("generator backward"):
                optimizers[1].zero_grad()
                loss.backward()
            with llmtop.phase("generator optimizer"):
                optimizers[1].step()

    def plain() -> None:
        batch = next(batches)
        made = generator(torch.randn_like(batch))
        loss = judge(made.detach()).square().mean() + (judge(batch) - 1).square().mean()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        loss = (judge(generator(torch.randn_like(batch))) - 1).square().mean()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()

    return Kind(plain, by_hand, generator)


def mixed_precision() -> Kind:
    """bf16 autocast, with the norm of the gradients clipped."""
    model, batches = _network(), _batches()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def by_hand() -> None:
        with llmtop.step():
            with llmtop.phase("dataload"):
                batch = next(batches)
            with llmtop.phase("forward"), torch.autocast("cpu", torch.bfloat16):
                loss = model(batch).float().square().mean()
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    def plain() -> None:
        batch = next(batches)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch).float().square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Kind(plain, by_hand, model)


def python_pieces() -> Kind:
    """Forty phases around some 20 µs of plain Python each: a step without torch."""
    names = [f"piece{place}" for place in range(TINY_PHASES)]
    words = {f"word{place}": place for place in range(256)}

    def piece() -> int:
        return sum(len(word) * number for word, number in words.items())

    def by_hand() -> None:
        with llmtop.step():
            for name in names:
                with llmtop.phase(name):
                    piece()

    def plain() -> None:
        for _ in names:
            piece()

    return Kind(plain, by_hand, nn.Identity())


def workers() -> Kind:
    """Two worker processes load, and the main thread prepares much in Python."""
    model, batches = _network(layers=1), _batches(workers=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def by_hand() -> None:
        with llmtop.step():
            with llmtop.phase("dataload"):
                batch = next(batches)
            sum(len(str(number)) for number in range(2000))
            with llmtop.phase("forward"):
                loss = model(batch).square().mean()
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()

    def plain() -> None:
        batch = next(batches)
        sum(len(str(number)) for number in range(2000))
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Kind(plain, by_hand, model)


def generation() -> Kind:
    """A model that is called token by token without gradients; a phase for each token."""
    model = _network(layers=2, out=WIDTH)
    start = torch.randn(4, WIDTH)

    def by_hand() -> None:
        with llmtop.step(), torch.no_grad():
            token = start
            for _ in range(TOKENS):
                with llmtop.phase("token"):
                    token = torch.tanh(model(token))

    def plain() -> None:
        with torch.no_grad():
            token = start
            for _ in range(TOKENS):
                token = torch.tanh(model(token))

    return Kind(plain, by_hand, model)


def compiled() -> Kind:
    """A compiled model: the step has little Python."""
    plain_model, batches = _network(), _batches()
    model: Any = torch.compile(plain_model)
    optimizer = torch.optim.AdamW(plain_model.parameters(), fused=True)

    def by_hand() -> None:
        with llmtop.step():
            with llmtop.phase("dataload"):
                batch = next(batches)
            with llmtop.phase("forward"):
                loss = model(batch).square().mean()
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()

    def plain() -> None:
        batch = next(batches)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Kind(plain, by_hand, model)


def _of_blocks(kind: str) -> Kind:
    """A kind of `training_blocks`, on some of which the estimate was set."""
    training_step.WIDTH, training_step.BATCH = SIZES.get(kind, SIZES["usual"])
    training = training_step.Training()

    def endless() -> Iterator[Any]:
        while True:
            yield from iter(training.loader)

    batches = endless()
    if kind in STEPS:
        plain, by_hand = STEPS[kind]()
        return Kind(lambda: plain(batches), lambda: by_hand(batches), training.model)
    made: list[Any] = []

    def watched() -> None:
        if not made:  # made at the first call: it attaches, which hooks take for a script that times itself
            made.append(training.manual())
        made[0](batches)

    return Kind(lambda: training.plain(batches), watched, training.model)


KINDS: dict[str, Callable[[], Kind]] = {
    **{kind: partial(_of_blocks, kind) for kind in BLOCK_KINDS},
    "accumulation": accumulation,
    "adversarial": adversarial,
    "mixed_precision": mixed_precision,
    "python_pieces": python_pieces,
    "workers": workers,
    "generation": generation,
    "compiled": compiled,
}
