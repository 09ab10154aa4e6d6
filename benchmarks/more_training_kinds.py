"""More kinds of training step, unlike those of `benchmarks.training_kinds` and in the same form."""

from __future__ import annotations

import copy
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import llmtop
from benchmarks.training_kinds import Kind

VOCABULARY, CONTEXT, ITEMS = 128, 24, 2000
WINDOW, MOVES, VALIDATION_BATCHES = 10, 16, 6


def _batches(size: int, *tensors: Tensor, collate: Callable[[Any], Any] | None = None) -> Iterator[Any]:
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(*tensors), size, shuffle=True, collate_fn=collate)
    while True:
        yield from loader


def _update(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


class CausalLayer(nn.TransformerEncoderLayer):  # type: ignore[misc]
    """A transformer layer whose attention sees the past only."""

    def forward(self, states: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(states.shape[1])
        return super().forward(states, src_mask=mask, is_causal=True)


def _transformer(width: int, layers: int) -> nn.Sequential:
    inner = [CausalLayer(width, 4, 4 * width, batch_first=True, norm_first=True) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(VOCABULARY, width), *inner, nn.Linear(width, VOCABULARY))


def language() -> Kind:
    """A transformer learns the next token; the batch is loaded before the step and the loss is logged after it."""
    model, batches = _transformer(64, 2), _batches(8, torch.randint(VOCABULARY, (1024, CONTEXT + 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    lines: deque[str] = deque(maxlen=100)

    def by_hand() -> None:
        with llmtop.phase("dataload"):
            (tokens,) = next(batches)
        with llmtop.step(tokens=8 * CONTEXT):
            with llmtop.phase("forward"):
                loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                _update(optimizer)
        lines.append(f"loss {loss.item():.4f}, perplexity {loss.exp().item():.1f}")

    def plain() -> None:
        (tokens,) = next(batches)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        _update(optimizer)
        lines.append(f"loss {loss.item():.4f}, perplexity {loss.exp().item():.1f}")

    return Kind(plain, by_hand, model)


def convolution() -> Kind:
    """A convolutional network on images that the data loader flips and shifts one by one in Python."""
    inner = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU()]
    model = nn.Sequential(*inner, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)

    def augment(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        images = [random.choice((image, image.flip(-1))).roll(random.randint(-2, 2), -1) for image, _ in rows]
        return torch.stack(images).float() / 255, torch.stack([label for _, label in rows])

    pixels = torch.randint(256, (512, 3, 16, 16), dtype=torch.uint8)
    batches = _batches(16, pixels, torch.randint(10, (512,)), collate=augment)

    def by_hand() -> None:
        with llmtop.step(samples=16):
            with llmtop.phase("dataload"):
                images, labels = next(batches)
            with llmtop.phase("forward"):
                loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                _update(optimizer)

    def plain() -> None:
        images, labels = next(batches)
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        _update(optimizer)

    return Kind(plain, by_hand, model)


class Forecaster(nn.LSTM):  # type: ignore[misc]
    """An LSTM whose outputs are the next values."""


def recurrent() -> Kind:
    """An LSTM forecasts series in windows; phases for forward and backward lie within the phase of a window."""
    model, batches = Forecaster(24, 24, batch_first=True), _batches(16, torch.rand(512, 31, 24))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)

    def by_hand() -> None:
        with llmtop.step():
            with llmtop.phase("dataload"):
                (values,) = next(batches)
            state = None
            for begin in range(0, 30, WINDOW):
                with llmtop.phase("window"):
                    with llmtop.phase("forward"):
                        ahead, state = model(values[:, begin : begin + WINDOW], state)
                        loss = F.huber_loss(ahead, values[:, begin + 1 : begin + WINDOW + 1])
                    with llmtop.phase("backward"):
                        loss.backward()
                    state = [part.detach() for part in state]
            with llmtop.phase("optimizer"):
                _update(optimizer)

    def plain() -> None:
        (values,) = next(batches)
        state = None
        for begin in range(0, 30, WINDOW):
            ahead, state = model(values[:, begin : begin + WINDOW], state)
            loss = F.huber_loss(ahead, values[:, begin + 1 : begin + WINDOW + 1])
            loss.backward()
            state = [part.detach() for part in state]
        _update(optimizer)

    return Kind(plain, by_hand, model)


def recommendation() -> Kind:
    """Clicks are learned from bags of items with sparse gradients, two optimizers and a metric in Python."""
    table, mlp = nn.EmbeddingBag(ITEMS, 16, sparse=True), [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)]
    model = nn.Sequential(table, *mlp, nn.Flatten(0))
    sparse, dense = torch.optim.SparseAdam(table.parameters()), torch.optim.Adagrad(model[1:].parameters())
    batches = _batches(64, torch.randint(ITEMS, (2048, 8)), torch.randint(2, (2048,)).float())
    hits: deque[float] = deque(maxlen=100)

    def precision(logits: Tensor, clicks: Tensor) -> float:
        ranked = sorted(zip(logits.tolist(), clicks.tolist(), strict=True), reverse=True)
        return float(sum(click for _, click in ranked[:10])) / 10

    def by_hand() -> None:
        with llmtop.step(samples=64):
            with llmtop.phase("dataload"):
                items, clicks = next(batches)
            with llmtop.phase("forward"):
                logits = model(items)
                loss = F.binary_cross_entropy_with_logits(logits, clicks)
            hits.append(precision(logits, clicks))
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                _update(sparse)
                _update(dense)

    def plain() -> None:
        items, clicks = next(batches)
        logits = model(items)
        loss = F.binary_cross_entropy_with_logits(logits, clicks)
        hits.append(precision(logits, clicks))
        loss.backward()
        _update(sparse)
        _update(dense)

    return Kind(plain, by_hand, model)


def reinforcement() -> Kind:
    """A policy balances a pole that Python simulates, two phases a move, and then learns from the rewards."""
    torch.set_num_threads(1)
    policy = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4)
    pole = [0.0, 0.0]  # angle in rad, its speed in rad/s

    def move(action: int) -> float:
        for _ in range(10):
            pole[1] += 0.004 * (9.8 * math.sin(pole[0]) + random.gauss(2 * action - 1, 0.1) * math.cos(pole[0]))
            pole[0] += 0.002 * pole[1]
        if fallen := abs(pole[0]) > 0.2:
            pole[:] = [random.uniform(-0.05, 0.05), 0.0]
        return 0.0 if fallen else 1.0

    def loss_of(moves: list[tuple[Tensor, int, float]]) -> Tensor:
        states, actions, rewards = zip(*moves, strict=True)
        logs = policy(torch.stack(states)).log_softmax(-1)
        gains = torch.tensor([sum(rewards[place:]) for place in range(MOVES)])
        chosen = logs[range(MOVES), actions] * (gains - gains.mean()) / (gains.std() + 1e-5)
        return (0.01 * (logs.exp() * logs).sum(-1) - chosen).mean()

    def by_hand() -> None:
        with llmtop.step():
            moves = []
            for _ in range(MOVES):
                state = torch.tensor(pole)
                with llmtop.phase("act"):
                    action = int(policy(state).softmax(-1).multinomial(1))
                with llmtop.phase("environment"):
                    moves.append((state, action, move(action)))
            with llmtop.phase("learn"):
                loss_of(moves).backward()
                _update(optimizer)

    def plain() -> None:
        moves = []
        for _ in range(MOVES):
            state = torch.tensor(pole)
            action = int(policy(state).softmax(-1).multinomial(1))
            moves.append((state, action, move(action)))
        loss_of(moves).backward()
        _update(optimizer)

    return Kind(plain, by_hand, policy)


def preference() -> Kind:
    """DPO: a policy and a frozen reference rate the same pairs of texts; the phases decorate functions."""
    policy, pairs = _transformer(32, 1), torch.randint(VOCABULARY, (2, 512, CONTEXT + 1))
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer, batches = torch.optim.AdamW(policy.parameters(), lr=1e-5), _batches(4, *pairs)

    def rate(model: nn.Module, tokens: Tensor) -> Tensor:
        logs = model(tokens[:, :-1]).log_softmax(-1)
        return logs.gather(-1, tokens[:, 1:, None]).sum((1, 2))

    def compare(rated: Tensor, referred: Tensor) -> Tensor:
        chosen, rejected = (0.1 * (rated - referred)).chunk(2)
        return -(0.9 * F.logsigmoid(chosen - rejected) + 0.1 * F.logsigmoid(rejected - chosen)).mean()

    refer, forward = llmtop.phase("reference")(rate), llmtop.phase("forward")(rate)
    rank, update = llmtop.phase("loss")(compare), llmtop.phase("optimizer")(_update)

    def by_hand() -> None:
        with llmtop.step():
            with llmtop.phase("dataload"):
                tokens = torch.cat(next(batches))
            loss = rank(forward(policy, tokens), refer(reference, tokens))
            with llmtop.phase("backward"):
                loss.backward()
            update(optimizer)

    def plain() -> None:
        tokens = torch.cat(next(batches))
        loss = compare(rate(policy, tokens), rate(reference, tokens))
        loss.backward()
        _update(optimizer)

    return Kind(plain, by_hand, policy)


def validation() -> Kind:
    """One training batch in one phase, then a longer validation without gradients with phases inside its phase."""
    model = nn.Sequential(nn.Linear(48, 96), nn.LayerNorm(96), nn.SiLU(), nn.Dropout(0.1), nn.Linear(96, 8))
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-4)
    batches, held_out = (_batches(32, torch.randn(1024, 48), torch.randint(8, (1024,))) for _ in range(2))
    hits: deque[bool] = deque(maxlen=1024)

    def train() -> None:
        inputs, labels = next(batches)
        F.cross_entropy(model.train()(inputs), labels).backward()
        _update(optimizer)
        model.eval()

    def by_hand() -> None:
        with llmtop.step():
            with llmtop.phase("train"):
                train()
            with llmtop.phase("validate"), torch.inference_mode():
                for _ in range(VALIDATION_BATCHES):
                    with llmtop.phase("dataload"):
                        inputs, labels = next(held_out)
                    hits.extend((model(inputs).argmax(1) == labels).tolist())

    def plain() -> None:
        train()
        with torch.inference_mode():
            for _ in range(VALIDATION_BATCHES):
                inputs, labels = next(held_out)
                hits.extend((model(inputs).argmax(1) == labels).tolist())

    return Kind(plain, by_hand, model)


def physics() -> Kind:
    """A network learns a heat equation by its own derivatives; the optimizer calls forward and backward itself."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def loss_of(points: Tensor) -> Tensor:
        heat = model(points.requires_grad_())
        (slope,) = torch.autograd.grad(heat.sum(), points, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 0].sum(), points, create_graph=True)
        start = torch.sin(math.pi * points[:, :1].detach())
        return (slope[:, 1] - 0.1 * bend[:, 0]).square().mean() + (heat - start).square().mean()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(torch.rand(64, 2))
        loss.backward()
        return loss

    def by_hand() -> None:
        with llmtop.step(), llmtop.phase("optimizer"):
            optimizer.step(llmtop.phase("closure")(closure))

    return Kind(lambda: optimizer.step(closure), by_hand, model)


MAKERS = (language, convolution, recurrent, recommendation, reinforcement, preference, validation, physics)
MORE_KINDS: dict[str, Callable[[], Kind]] = {make.__name__: make for make in MAKERS}
