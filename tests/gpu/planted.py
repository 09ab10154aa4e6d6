"""Training loops with one planted bottleneck each: what make_labelled.py captures.

Every loop trains the same small GPT in plain torch. A plant adds one thing (a slow loader, host reads of the loss,
a big copy, an all-reduce that overlaps with nothing, a slower rank); the same loop without the plant is timed in
the same process, so the label says what was planted and also what it really cost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Size:
    """Shape of the model and of one batch."""

    layers: int
    width: int
    heads: int
    tokens: int
    batch: int
    vocabulary: int


SIZES = {
    "tiny": Size(3, 64, 2, 64, 4, 512),
    "small": Size(6, 128, 4, 128, 8, 1024),
    "medium": Size(8, 768, 12, 1024, 8, 8192),
    "large": Size(10, 1280, 20, 1024, 16, 16384),
    "wide": Size(4, 2048, 16, 1024, 8, 32000),
    "deep": Size(20, 96, 4, 64, 4, 512),
    "cpu": Size(2, 32, 2, 16, 2, 64),  # the dry run
}


@dataclass(frozen=True)
class Case:
    """One capture: the plant, the size of the model, how strong the plant is, how much of it is annotated."""

    name: str
    plant: str
    size: str
    strength: float = 1.0
    """Of the plant: a multiple of the plain step's time (input), calls (sync), MiB (h2d), rounds (comm)."""
    optimizer: str = "fused"
    annotated: bool = True
    """Ranges for dataload, forward, backward, optimizer; without them only what torch itself marks."""
    step_range: bool = False
    """A range called step around the rest."""
    options: dict[str, Any] = field(default_factory=dict)


SINGLE = (
    Case("healthy_medium", "healthy", "medium"),
    Case("healthy_large", "healthy", "large", step_range=True),
    Case("healthy_bare", "healthy", "medium", annotated=False),
    Case("launch_tiny", "launch", "tiny", optimizer="loop"),
    Case("launch_small", "launch", "small", optimizer="loop", step_range=True),
    Case("launch_foreach", "launch", "small", optimizer="foreach"),
    Case("launch_bare", "launch", "small", optimizer="foreach", annotated=False),
    Case("input_sleep", "input", "medium", 1.5),
    Case("input_sleep_mild", "input", "large", 1.1, step_range=True),
    Case("input_cpu_work", "input", "medium", 2.0, options={"work": True}),
    Case("input_workers", "input", "medium", 2.0, options={"workers": 1}, step_range=True),
    Case("input_small", "input", "small", 4.0),
    Case("input_bare", "input", "medium", 1.6, annotated=False),
    Case("sync_layers", "sync", "medium", options={"where": "layers"}),
    Case("sync_gradients", "sync", "medium", options={"where": "gradients"}, step_range=True),
    Case("sync_large", "sync", "large", options={"where": "gradients"}),
    Case("sync_small", "sync", "small", options={"where": "layers"}),
    Case("sync_bare", "sync", "medium", options={"where": "gradients"}, annotated=False),
    Case("h2d_pageable", "h2d", "medium", 256),
    Case("h2d_pageable_large", "h2d", "large", 512, step_range=True),
    Case("h2d_pinned", "h2d", "medium", 1024, options={"pinned": True}),
    Case("h2d_bare", "h2d", "medium", 256, annotated=False),
    Case("healthy_graph", "healthy", "medium", options={"graph": True}, step_range=True),
)

TWO = (
    Case("ddp_healthy", "healthy", "large"),
    Case("ddp_healthy_medium", "healthy", "medium", step_range=True),
    Case("ddp_comm", "comm", "medium", 4),
    Case("ddp_comm_strong", "comm", "large", 12, step_range=True),
    Case("ddp_straggler", "straggler", "medium", 0.4),
    Case("ddp_straggler_bare", "straggler", "large", 0.3, annotated=False),
    Case("ddp_input", "input", "medium", 1.8),
    Case("ddp_input_one_rank", "input", "medium", 1.8, options={"only_rank": 1}, step_range=True),
    Case("ddp_launch", "launch", "tiny", optimizer="loop"),
)

HELD_OUT_SINGLE = (
    Case("held_healthy_wide", "healthy", "wide"),
    Case("held_healthy_wide_bare", "healthy", "wide", annotated=False),
    Case("held_launch_deep", "launch", "deep", optimizer="foreach", step_range=True),
    Case("held_launch_deep_loop", "launch", "deep", optimizer="loop"),
    Case("held_input_wide", "input", "wide", 1.4),
    Case("held_input_work_bare", "input", "large", 1.6, annotated=False, options={"work": True}),
    Case("held_input_workers_bare", "input", "medium", 2.5, annotated=False, options={"workers": 1}),
    Case("held_sync_medium", "sync", "medium", options={"where": "gradients", "reads": 4}),
    Case("held_sync_wide", "sync", "wide", options={"where": "gradients", "reads": 12}, step_range=True),
    Case("held_sync_layers", "sync", "medium", options={"where": "layers", "reads": 60}),
    Case("held_sync_tiny", "sync", "tiny", optimizer="fused", options={"where": "gradients", "reads": 12}),
    Case("held_h2d_wide", "h2d", "wide", 384, step_range=True),
    Case("held_d2h", "h2d", "medium", 256, options={"back": True}),
    Case("held_d2h_pinned", "h2d", "large", 2048, options={"back": True, "pinned": True}),
)

HELD_OUT_TWO = (
    Case("held_ddp_healthy_wide", "healthy", "wide"),
    Case("held_ddp_comm", "comm", "medium", 40),
    Case("held_ddp_comm_wide", "comm", "wide", 60, annotated=False),
    Case("held_ddp_straggler", "straggler", "medium", 0.5),
    Case("held_ddp_straggler_wide", "straggler", "wide", 0.3, step_range=True),
    Case("held_ddp_input_one_rank", "input", "medium", 1.8, options={"only_rank": 1}),
    Case("held_ddp_sync", "sync", "medium", options={"where": "gradients", "reads": 4}),
    Case("held_ddp_launch", "launch", "deep", optimizer="foreach"),
)

CPU = (
    Case("cpu_healthy", "healthy", "cpu", optimizer="foreach"),
    Case("cpu_input", "input", "cpu", 2.0, optimizer="foreach", step_range=True),
    Case("cpu_sync", "sync", "cpu", optimizer="loop", options={"where": "gradients"}),
)


class Block(nn.Module):
    """Attention and MLP, each behind a norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv, self.proj = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """A GPT; `between` is called with the activations after every block."""

    def __init__(self, size: Size, between: Callable[[torch.Tensor], None] | None = None) -> None:
        super().__init__()
        self.token = nn.Embedding(size.vocabulary, size.width)
        self.place = nn.Embedding(size.tokens, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary, bias=False)
        self.between = between

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids[:, :-1]) + self.place.weight
        for block in self.blocks:
            x = block(x)
            if self.between is not None:
                self.between(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


class _Slow(torch.utils.data.IterableDataset[torch.Tensor]):
    def __init__(self, size: Size, seconds: float) -> None:
        self.size, self.seconds = size, seconds

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(self.seconds)
            yield torch.randint(self.size.vocabulary, (self.size.batch, self.size.tokens + 1))


def _reader(reads: int) -> Callable[[torch.Tensor], None]:
    """Reads a value of the activations back that many times."""

    def read(activations: torch.Tensor) -> None:
        for _ in range(reads):
            activations[0, 0].float().sum().item()

    return read


def _burn(seconds: float) -> None:
    end = time.perf_counter() + seconds
    table = list(range(2000))
    while time.perf_counter() < end:
        table.sort(key=lambda value: -value)


Mark = Callable[[str], contextlib.AbstractContextManager[Any]]


class Loop:
    """One training loop. `step()` runs one step; `close()` frees what it holds."""

    def __init__(self, case: Case, rank: int, world: int, device: str, plain_seconds: float, mark: Mark) -> None:
        """`plain_seconds`: what a step takes without the plant; 0 builds the loop without the plant."""
        self.case, self.rank, self.world, self.mark = case, rank, world, mark
        self.planted = plain_seconds > 0
        self.plain_seconds = plain_seconds
        self.size = SIZES[case.size]
        self.device = device
        torch.manual_seed(0)
        here = self._plant("sync") and case.options["where"] == "layers"
        self.reads = int(case.options.get("reads", 1))
        self.model: nn.Module = Gpt(self.size, _reader(self.reads) if here else None).to(device)
        if world > 1:
            ids = [rank] if device == "cuda" else None
            self.model = nn.parallel.DistributedDataParallel(self.model, device_ids=ids)
        kind = case.optimizer if device == "cuda" or case.optimizer != "fused" else "foreach"
        chosen = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}[kind]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **chosen)
        self.batch = torch.randint(self.size.vocabulary, (self.size.batch, self.size.tokens + 1))
        if device == "cuda":
            self.batch = self.batch.pin_memory()
        self.extra = self._extra_buffer()
        back = self.extra is not None and case.options.get("back")
        self.back = torch.zeros_like(self.extra, device=device) if back else None
        self.workers = self._loader()
        self.ballast = torch.randn(4096, 4096, device=device) if self._plant("straggler") and rank == 1 else None
        self.flat = torch.zeros(64 << 18, device=device) if self._plant("comm") else None
        self.graph = self._capture() if case.options.get("graph") and device == "cuda" else None

    def _plant(self, name: str) -> bool:
        return self.planted and self.case.plant == name

    def _extra_buffer(self) -> torch.Tensor | None:
        if not self._plant("h2d"):
            return None
        buffer = torch.empty(int(self.case.strength * (1 << 20)), dtype=torch.uint8)
        return buffer.pin_memory() if self.case.options.get("pinned") else buffer

    def _loader(self) -> Any:
        if not (self._plant("input") and self.case.options.get("workers")):
            return None
        data = _Slow(self.size, self.plain_seconds * self.case.strength)
        loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=1, prefetch_factor=2)
        return iter(loader)

    def _wait_for_input(self) -> torch.Tensor:
        if self.workers is not None:
            return next(self.workers)
        only = self.case.options.get("only_rank")
        if self._plant("input") and (only is None or only == self.rank):
            seconds = self.plain_seconds * self.case.strength
            (_burn if self.case.options.get("work") else time.sleep)(seconds)
        return self.batch

    def _forward_backward(self, ids: torch.Tensor) -> None:
        with self.mark("forward"), torch.autocast(self.device, torch.bfloat16):
            loss = self.model(ids)
            if self.ballast is not None:
                self._slow_down()
        with self.mark("backward"):
            loss.backward()

    def _slow_down(self) -> None:
        # ~0.25 ms each for 4096^3 in bf16 on an H200: as many as make the wanted share of a plain step.
        assert self.ballast is not None
        for _ in range(max(1, round(self.plain_seconds * self.case.strength / 0.25e-3))):
            torch.mm(self.ballast, self.ballast)

    def _capture(self) -> torch.cuda.CUDAGraph:
        self.static = self.batch.to(self.device)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self.optimizer.zero_grad(set_to_none=True)
                with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                    loss = self.model(self.static)
                loss.backward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            self.model(self.static).backward()
        return graph

    def step(self) -> None:
        """One step, with the plant if there is one."""
        with self.mark("step") if self.case.step_range else contextlib.nullcontext():
            with self.mark("dataload"):
                batch = self._wait_for_input()
            with self.mark("h2d"):
                if self.extra is not None and self.back is not None:
                    self.extra.copy_(self.back)
                elif self.extra is not None:
                    self.extra.to(self.device, non_blocking=True)
                ids = batch.to(self.device, non_blocking=True)
            if self.graph is not None:
                with self.mark("forward_backward"):
                    self.static.copy_(ids)
                    self.graph.replay()
            else:
                self._forward_backward(ids)
            if self.flat is not None:
                with self.mark("all_reduce"):
                    for _ in range(int(self.case.strength)):
                        torch.distributed.all_reduce(self.flat)
            with self.mark("optimizer"):
                if self._plant("sync") and self.case.options["where"] == "gradients":
                    # What a loop that logs gradient norms by hand does.
                    for parameter in self.model.parameters():
                        for _ in range(self.reads if parameter.grad is not None else 0):
                            parameter.grad.norm().item()
                self.optimizer.step()
                if self.graph is None:
                    self.optimizer.zero_grad(set_to_none=True)

    def seconds_a_step(self, steps: int = 8) -> float:
        """Mean of some steps, the device waited for before and after."""
        for _ in range(3):
            self.step()
        self._synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._synchronize()
        return (time.perf_counter() - began) / steps

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        if self.world > 1:
            torch.distributed.barrier()

    def close(self) -> None:
        """Free the device memory and the workers."""
        self.workers = None
        self.__dict__.pop("model", None)
        self.__dict__.pop("optimizer", None)
        self.graph = self.extra = self.back = self.flat = self.ballast = None
        if self.device == "cuda":
            torch.cuda.empty_cache()
