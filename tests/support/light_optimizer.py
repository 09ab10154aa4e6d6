"""An optimizer for test programs that are about something else.

Those of torch.optim load PyTorch's compiler when they first step, which takes as long as loading torch itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

for _method in vars(torch.optim.Optimizer).values():
    if (_own := getattr(_method, "__wrapped__", None)) is not None:
        _own.__dynamo_disable = _own  # what a first call looks for, and else has the compiler make


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
