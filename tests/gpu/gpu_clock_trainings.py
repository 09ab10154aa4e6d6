"""Two trainings for tests.gpu.check_gpu_clock, healthy and launch-bound, and what was recorded of them."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import llmtop
from llmtop.instrument.gpu.times import gpu_time
from llmtop.instrument.record.recorder import get
from llmtop.protocol import wire
from tests.support.processes import REPOSITORY
from tests.support.recorded import steps_of

sys.path.insert(0, str(REPOSITORY / "examples"))
from train_gpt import GPT, options

CPU = bool(os.environ.get("CHECK_GPU_CLOCK_CPU"))
"""Set by ``--cpu``: there is no GPU, and nothing is measured."""
DEVICE = torch.device("cpu" if CPU else "cuda")
Verdict = dict[str, Any]
"""The figures of a case, and `ok`."""


def synchronise() -> None:
    """Wait for the GPU."""
    if not CPU:
        torch.cuda.synchronize()


class Gpt:
    """The example's GPT in bf16; a healthy step of about 110 ms on an H200."""

    def __init__(self) -> None:
        self.size = options().parse_args([])
        self.model = GPT(self.size).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=not CPU)
        shape = (self.size.batch, self.size.sequence + 1)
        self.pageable = [torch.randint(self.size.vocabulary, shape) for _ in range(8)]

    def loss(self, ids: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            logits = self.model(ids[:, :-1])
            return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def bare(self, number: int) -> Tensor:
        """A step as a script without llmtop takes it."""
        ids = self.pageable[number % 8].to(DEVICE)
        loss = self.loss(ids)
        loss.backward()
        self.update()
        return loss

    def recorded(self, number: int) -> Tensor:
        """The same step, attached."""
        with llmtop.phase("dataload"):
            ids = self.pageable[number % 8].to(DEVICE)
        with llmtop.step(tokens=ids.numel()):
            with llmtop.phase("forward"):
                loss = self.loss(ids)
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                self.update()
        return loss


class Tiny:
    """Launch-bound: many small kernels, an unfused optimizer."""

    def __init__(self, layers: int = 4) -> None:
        self.model = nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(64, 64), nn.GELU())))
        self.model.to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
        self.x = torch.randn(16, 64, device=DEVICE)

    def bare(self, number: int) -> Tensor:
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def recorded(self, number: int) -> Tensor:
        with llmtop.step(tokens=16):
            with llmtop.phase("dataload"):
                pass
            with llmtop.phase("forward"):
                loss = self.model(self.x).square().mean()
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
        return loss


# --- what was recorded -------------------------------------------------------------------------------------------


def gpu_times(since: int = 0) -> list[wire.GpuTime]:
    """The timed steps from index `since` on."""
    recorder = get()
    if recorder.clock is None:
        return []
    _, timed = recorder.clock.timed.read(0)
    return [gpu_time(step, recorder.paths.names) for step in timed if step.step_index >= since]


def host_steps(since: int = 0) -> list[wire.StepDone]:
    """The recorded steps from index `since` on."""
    return [step for step in steps_of(get()) if step.index >= since]


def share(times: list[wire.GpuTime], phase: str) -> float:
    """GPU time of a phase by GPU time of the steps."""
    return sum(dict(time.phases).get(phase, 0) for time in times) / max(1, sum(time.gpu_ns for time in times))


def idle_share(times: list[wire.GpuTime]) -> float | None:
    """Idle time by GPU time; None when it is told for less than half of the steps."""
    told = [time for time in times if time.idle_ns is not None]
    if 2 * len(told) < len(times) or not told:
        return None
    return sum(time.idle_ns or 0 for time in told) / sum(time.gpu_ns for time in told)
