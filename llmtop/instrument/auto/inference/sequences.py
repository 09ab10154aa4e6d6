"""Detects a decoding loop of the script: a forward pass that continues the sequences of the one before.

Only the shape of a module's token ids is used. One token for each sequence after a prompt is a loop with a cache,
whatever form that has; one token more than before, or as many once they have grown to the most that the model
takes, is a loop without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

LEAST = 8, 3
"""Number of forwards that continue sequences, and their factor over those that begin some, before a script
counts as one that decodes: lengths of a data set may follow each other by chance."""
_GROWN = 2


class Sequences:
    """Remembers the forward pass before, of one thread."""

    __slots__ = ("_batch", "_began", "_grown", "_length", "_module", "_on", "_went_on", "shape")

    def __init__(self) -> None:
        self.shape: tuple[int, int] | None = None
        """Sequences and tokens each of the last forward pass; None where it was not called with tokens."""
        self._module = self._batch = self._length = self._grown = 0
        self._on = False
        self._began = self._went_on = 0

    @property
    def decode(self) -> bool:
        """Return True if most of the forward passes so far went on with sequences."""
        least, times = LEAST
        return self._went_on >= max(least, times * self._began)

    def go_on(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Take a forward pass in; returns whether it goes on with the sequences of the one before."""
        self.shape = token_shape(args, kwargs)
        batch, length = self.shape or (0, 0)
        on = bool(batch) and id(module) == self._module and self._follows(batch, length)
        grew = on and length == self._length + 1
        self._grown = self._grown + grew if on and length >= self._length else 0
        self._module, self._batch, self._length, self._on = id(module), batch, length, on
        self._went_on += on
        self._began += not on and length != 1  # one token may be of sequences whose prompt was not seen
        return on

    def _follows(self, batch: int, length: int) -> bool:
        if length == 1 and self._length > 1:
            return (
                self._batch > 0 and batch % self._batch == 0
            )  # a search goes on with several sequences for each prompt
        if batch != self._batch:
            return False
        if length == 1:
            return self._on
        return length == self._length + 1 or (length == self._length and self._grown >= _GROWN)


def token_shape(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the number of sequences and of tokens each in a module's call; None where unknown."""
    ids = args[0] if args else kwargs.get("input_ids", kwargs.get("idx"))
    return shape_of(ids.get("input_ids") if isinstance(ids, Mapping) else ids)


def shape_of(ids: Any) -> tuple[int, int] | None:
    """Sequences and tokens each of a tensor of token ids; None of anything else."""
    if not isinstance(ids, torch.Tensor):
        return None
    with torch._C.DisableTorchFunction():  # neither a mode nor a class of the script sees it
        shape, whole = ids.shape, ids.dtype in (torch.int64, torch.int32)
    return (int(shape[0]), int(shape[1])) if whole and len(shape) == 2 else None
