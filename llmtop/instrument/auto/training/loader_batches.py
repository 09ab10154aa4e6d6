"""Samples of the batches of one DataLoader iterator, by the batch size of its loader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import default_collate

from llmtop.instrument.auto.model.batch_shape import first_dimension

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder_parts import OpenStep

_MOST_FETCHED = 256
"""Batches that wait to be used at most: a trainer that accumulates asks for all batches of a step first."""


class LoaderBatches:
    """Batches that one iterator has returned and that no forward pass of the training has used yet."""

    __slots__ = ("_ahead", "_ended", "_fetched", "_may_be_smaller", "_size", "_takes", "iterator")

    def __init__(self, waits: Any, *, ahead: int) -> None:
        """Read the sizes of the batches off an iterator of a DataLoader.

        Args:
            waits: the iterator; it is not kept alive.
            ahead: how many batches are asked for before they are used: 1 where a loader looks for its end.
        """
        self.iterator: Callable[[], object] = ref(waits)
        self._fetched: deque[int] = deque(maxlen=_MOST_FETCHED)
        self._ended = False
        self._takes = False
        """True if a batch came, or the last one has, since a forward pass took one."""
        self._ahead = ahead
        sampler = waits._index_sampler
        size = sampler.batch_size if type(sampler) is BatchSampler else None
        self._size = size if type(size) is int else 0
        """0: it does not group samples, or a sampler of the script does."""
        self._may_be_smaller = self._size > 0 and not sampler.drop_last and waits._collate_fn is default_collate

    def add(self, batch: Any) -> None:
        """Count a batch that has come. The last one of an epoch may be smaller, as torch's own collation shows.

        Args:
            batch: what the loader returned; only shapes are read.
        """
        size = self._size
        if self._may_be_smaller:
            size = min(size, first_dimension(batch) or size)
        self._fetched.append(size)
        self._takes, self._ended = True, False

    def end(self) -> None:
        """There are no more: those that were asked for ahead are used now."""
        self._takes, self._ended = bool(self._fetched), True

    def take(self, step: OpenStep, *, first: bool) -> None:
        """Add the samples of a forward pass to its step; none where its batch was counted, or has no known size.

        A pass works on the next batch where one has come since a pass took one, or where several came at once and
        it is the first pass since a backward pass. Passes of a second model, or another view, work on the same
        batch.

        Args:
            step: what the pass belongs to.
            first: whether it is the first pass since a backward pass.
        """
        if not self._takes and not (first and len(self._fetched) > (0 if self._ended else self._ahead)):
            return
        self._takes = False
        samples = self._fetched.popleft()
        if samples:
            step.samples = (step.samples or 0) + samples
