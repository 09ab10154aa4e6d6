"""Optimizers for test programs that are about something else: importing this changes those of torch.optim.

At their first step they load the compiler of PyTorch, which takes as long as loading torch. Here they do not.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tests.foreign.digest import leave_compiler_unloaded

leave_compiler_unloaded(torch.optim)


class LightSGD(torch.optim.Optimizer):
    """`torch.optim.SGD` with a learning rate and nothing else."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Go down the gradients."""
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.add_(one.grad, alpha=-group["lr"])
