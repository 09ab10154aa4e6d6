"""Tokens without padding of some batches, from CPU tensors that a loader has returned.

The shape of a batch shows padded tokens. Where attention leaves the padding out, a rank with longer texts has more
to do in a batch of the same shape. Masks and lengths are read once a second, by their address: an operation of
torch would be seen by the script's modes and profilers, and `Tensor.numpy()` forbids to resize the tensor.
"""

from __future__ import annotations

import sys
from collections import UserDict, deque
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import torch

from llmtop.instrument.auto.model.batch_shape import has_modes
from llmtop.instrument.auto.training.loop import Loop
from llmtop.instrument.guest.guard import report_internal_error
from llmtop.instrument.guest.sanitize import MAX_METRICS
from llmtop.naming.metric_names import BATCH_TOKENS

WHAT = "the tokens of batches"
READ_EVERY_NS = 1_000_000_000
"""One reading of a mask of 262,144 numbers takes 0.2 to 0.4 ms: 0.04 %."""
_NOT_AGAIN = 1 << 62
MOST_NUMBERS = 1 << 18
_SAMPLES = 16
_LENGTHS = ("lengths", "length", "seq_lens", "seqlens", "seq_lengths", "input_lengths")
_ENDS = ("cu_seqlens", "cu_seq_lens", "cu_seqlens_q", "cu_seq_lens_q")
_MASK = "attention_mask"
_NAMES = (*_ENDS, *_LENGTHS, _MASK)
_TYPES = {torch.int64: "<i8", torch.int32: "<i4", torch.int16: "<i2", torch.uint8: "|u1", torch.bool: "|b1"}


class BatchLengths:
    """Publishes the mean tokens of the batches that were read last, as a metric."""

    __slots__ = ("_due", "_loop", "_samples", "_shown")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._due = 0
        self._samples: deque[int] = deque(maxlen=_SAMPLES)
        self._shown: float | None = None
        """Last published value: the script logs it itself where another number is there."""

    def take(self, batch: Any) -> None:
        """Read a batch if it is time to."""
        now = perf_counter_ns()
        if now < self._due:
            return
        self._due = now + READ_EVERY_NS
        try:
            self._read(batch)
        except BaseException as error:  # noqa: BLE001 - the door: in the script's own call
            self._due = _NOT_AGAIN
            report_internal_error(WHAT, error)

    def _read(self, batch: Any) -> None:
        """Take a batch of the training, unless the script logs a number under this name."""
        metrics = self._loop.recorder.metrics
        is_own = metrics.get(BATCH_TOKENS) is self._shown
        if self._loop.evaluated or not torch.is_grad_enabled() or not is_own:
            return
        tokens = batch_tokens(batch)
        if tokens is not None and (BATCH_TOKENS in metrics or len(metrics) < MAX_METRICS):
            self._samples.append(tokens)
            self._shown = metrics[BATCH_TOKENS] = sum(self._samples) / len(self._samples)


def batch_tokens(batch: Any) -> int | None:
    """Return the tokens of a batch without padding; None where no tensor on the CPU has them.

    Args:
        batch: value that a loader returned; only dictionaries name their tensors.
    """
    named = _named_values(batch)
    if not named or has_modes():
        return None
    for name in _ENDS:
        ends = _numbers(named.get(name), 1)
        if ends is not None:
            return int(ends[-1])
    for name in _LENGTHS:
        lengths = _numbers(named.get(name), 1)
        if lengths is not None:
            return int(lengths.sum())
    mask = _numbers(named.get(_MASK), 2)
    return None if mask is None else int((mask != 0).sum())


def _named_values(batch: Any) -> dict[Any, Any]:
    """Return the entries of a batch without calling a method of its class, which may be the script's own."""
    if isinstance(batch, UserDict):  # as BatchEncoding of transformers
        batch = vars(batch).get("data")
    if type(batch) is dict:
        return batch
    return {name: dict.get(batch, name) for name in _NAMES} if isinstance(batch, dict) else {}


def _numbers(tensor: Any, dimensions: int) -> Any:
    """Return the numbers of a tensor as an array of numpy that reads its memory; None for any other value."""
    numpy: Any = sys.modules.get("numpy")
    if type(tensor) is not torch.Tensor or getattr(numpy, "asarray", None) is None:
        return None
    kind = _TYPES.get(tensor.dtype)
    if kind is None or not tensor.is_cpu or len(tensor.shape) != dimensions or not tensor.is_contiguous():
        return None
    if not 0 < tensor.numel() <= MOST_NUMBERS:
        return None
    memory = {"data": (tensor.data_ptr(), True), "shape": tuple(tensor.shape), "typestr": kind, "version": 3}
    return numpy.asarray(SimpleNamespace(__array_interface__=memory))
