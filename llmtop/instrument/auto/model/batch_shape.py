"""Samples and tokens of a model's call, from shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmtop.instrument.record.recorder_parts import OpenStep

_Tensor = torch.Tensor
_TOKEN_TYPES = frozenset({torch.int64, torch.int32})


def _unknown() -> int:
    return 1


_modes = getattr(torch._C, "_len_torch_function_stack", _unknown)
"""Number of active modes of the script, which see every call."""


def guess(step: OpenStep, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, first: bool) -> None:
    """Add the samples and tokens of one batch to the step, as far as its shape shows them.

    A module that is called again before the backward pass (chosen and rejected answers, two views) has tokens of
    another batch; with anything but tokens it may as well be a recurrent cell with the same samples again, so only
    the `first` call counts. Integers in one dimension are tokens of packed sequences where they are called
    `input_ids`; else they may be that, or one number per sample, and nothing is counted.

    Args:
        step: open; its `samples` and `tokens` grow, and stay None where nothing is known.
        args: positional arguments of the module's call; the batch is the first of them.
        kwargs: its named arguments; without positional ones the batch is `input_ids` or `inputs_embeds`.
        first: True for the first call since the last backward pass.
    """
    batch = args[0] if args else kwargs.get("input_ids", kwargs.get("inputs_embeds"))
    named = not args
    if type(batch) is _Tensor and not _modes():
        shape, integers = batch.shape, batch.dtype in _TOKEN_TYPES
    else:
        if not isinstance(batch, _Tensor):
            batch = batch.get("input_ids") if isinstance(batch, Mapping) else None
            named = True
        if not isinstance(batch, _Tensor):
            return
        with torch._C.DisableTorchFunction():  # neither a mode nor a class of the script sees it
            shape, integers = batch.shape, batch.dtype in _TOKEN_TYPES
    if not shape:
        return
    if integers and len(shape) < 3:
        if len(shape) == 1:
            if named:
                step.tokens = (step.tokens or 0) + shape[0]
            return
        step.tokens = (step.tokens or 0) + shape[0] * shape[1]
    elif not first:
        return
    step.samples = (step.samples or 0) + shape[0]
