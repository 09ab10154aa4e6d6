"""How many samples and tokens a model is called with, told by shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmtop.publish.recorder import Step

_TOKEN_TYPES = frozenset({torch.int64, torch.int32})


def guess(step: Step, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Add one batch to the step's samples and tokens, as far as they can be told."""
    batch = args[0] if args else kwargs.get("input_ids", kwargs.get("inputs_embeds"))
    if not isinstance(batch, torch.Tensor):
        batch = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if not isinstance(batch, torch.Tensor) or not batch.ndim:
        return
    shape = batch.shape
    step.samples = (step.samples or 0) + shape[0]
    if len(shape) == 2 and batch.dtype in _TOKEN_TYPES:
        step.tokens = (step.tokens or 0) + shape[0] * shape[1]
