"""Tokens of a model's call, from shapes alone."""

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


_LEVELS = 4
_BATCH_NAMES = ("inputs_embeds", "pixel_values", "input_values", "input_features")
"""Names that models of transformers give to a batch, in place of `input_ids`."""


def first_dimension(batch: Any) -> int:
    """Return the first dimension of the first tensor in tuples, lists and dictionaries; 0 without one."""
    for _ in range(_LEVELS):
        if type(batch) in (tuple, list) and batch:
            batch = batch[0]
        elif type(batch) is dict and batch:
            batch = next(iter(batch.values()))
        else:
            break
    if type(batch) is not _Tensor:
        return 0
    if not _modes():
        return int(batch.shape[0]) if batch.shape else 0
    with torch._C.DisableTorchFunction():  # no mode of the script sees it
        return int(batch.shape[0]) if batch.shape else 0


def count_tokens(
    step: OpenStep, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, wants_size: bool = True
) -> int:
    """Add the tokens of one call of a model to the step, as far as its batch's shape shows them.

    Integers in two dimensions are tokens, whichever dimension is the batch. In one dimension they are tokens of
    packed sequences where they are called `input_ids`; else they may be one number per sample: not counted.

    Args:
        step: open; its `tokens` grow, and stay None where nothing is known.
        args: positional arguments of the module's call; the batch is the first of them.
        kwargs: its named arguments; without positional ones the batch is `input_ids`, or one of `_BATCH_NAMES`.
        wants_size: whether the result is used; to ask a tensor for its shape takes half a microsecond.

    Returns:
        Size of the batch's first dimension; 0 without one, and where it is not wanted. It is the number of samples
        only where the model takes the batch first.
    """
    named = not args
    batch: Any = args[0] if args else kwargs.get("input_ids")
    if batch is None and named:
        batch = next((one for name in _BATCH_NAMES if (one := kwargs.get(name)) is not None), None)
    if type(batch) is _Tensor and not _modes():
        integers = batch.dtype in _TOKEN_TYPES
        if not integers and not wants_size:
            return 0
        shape = batch.shape
    else:
        if not isinstance(batch, _Tensor):
            batch = batch.get("input_ids") if isinstance(batch, Mapping) else None
            named = True
        if not isinstance(batch, _Tensor):
            return 0
        with torch._C.DisableTorchFunction():  # neither a mode nor a class of the script sees it
            shape, integers = batch.shape, batch.dtype in _TOKEN_TYPES
    if not shape:
        return 0
    if integers and len(shape) < 3:
        if len(shape) == 1:
            if named:
                step.tokens = (step.tokens or 0) + shape[0]
            return 0
        step.tokens = (step.tokens or 0) + shape[0] * shape[1]
    return int(shape[0])
