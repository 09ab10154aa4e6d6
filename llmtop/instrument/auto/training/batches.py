"""The waits for a torch DataLoader: for each batch, and for its workers to start before the first."""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from time import perf_counter_ns
from types import FrameType
from typing import Any
from weakref import ref

from torch.utils.data import dataloader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from llmtop.instrument.auto.training.loader_batches import LoaderBatches
from llmtop.instrument.auto.training.loop import Loop, is_compiling
from llmtop.naming.own_phases import DATALOAD


class _Started:
    """The iterator that was made last, and when; it begins an epoch, and may have started its workers for it."""

    __slots__ = ("begun", "ended", "iterator")

    def __init__(self) -> None:
        self.iterator: ref[Any] | None = None
        self.begun = self.ended = 0

    def take(self, waits: Any) -> int:
        """Return when the wait for the first batch began (perf_counter ns); 0 where its iterator was made long
        before.

        Starting the workers is part of that wait, if it follows at once.
        """
        iterator, self.iterator = self.iterator, None
        if iterator is None or iterator() is not waits:
            return 0
        return self.begun if perf_counter_ns() - self.ended < self.ended - self.begun else 0


_MOST_ITERATORS = 4
"""Iterators that are counted in turns: of the training, of evaluations."""


def _begin_to_count(loop: Loop, waits: Any, caller: FrameType) -> None:
    """Count the samples of another iterator's batches from now on; one that was counted before goes on."""
    known = [one for one in loop.counted if one.iterator() is not None][-_MOST_ITERATORS:]
    found = next((one for one in known if one.iterator() is waits), None)
    if found is None:
        found = LoaderBatches(waits, ahead=int(caller.f_globals.get("__name__") == "accelerate.data_loader"))
        known.append(found)
    loop.counted, loop.batches = known, found


def listen(loop: Loop) -> None:
    """Listen to every DataLoader of this process."""
    started = _Started()
    _listen_to_starts(loop, started)
    # Every iterator of a DataLoader inherits this one method, and none overrides it, since torch 1.2.
    fetch = _BaseDataLoaderIter.__next__
    recorder = loop.recorder

    @functools.wraps(fetch)
    def __next__(self: Any) -> Any:  # noqa: N807
        if is_compiling() or get_ident() != loop.thread:
            return fetch(self)
        phase = None
        try:
            if not (
                (loop.busy and not (loop.optimizing and loop.recovers()))
                or ((recorder.manual_used or recorder.off) and loop.stands_down())
            ):
                phase = loop.dataload
                if loop.unstepped or loop.evaluated or loop.feed() is not self:
                    phase = loop.batch_is_asked_for(self) or phase
                    if loop.batches is None or loop.batches.iterator() is not self:
                        _begin_to_count(loop, self, sys._getframe(1))
                        recorder.first_batch = recorder.first_batch or perf_counter_ns()
                phase.__enter__()
                if started.iterator is not None and (begun := started.take(self)):
                    recorder.began_earlier(DATALOAD, begun)
        except BaseException as error:  # noqa: BLE001
            phase = None
            loop.lost("the waits for batches", error)
        if phase is None:
            return fetch(self)
        try:
            batch = fetch(self)
        except BaseException:
            try:
                loop.dataload_ends(phase, exhausted=True)
                if loop.batches is not None:
                    loop.batches.end()
            except BaseException as error:  # noqa: BLE001
                loop.lost("the waits for batches", error)
            raise
        phase.__exit__(None, None, None)
        try:
            if loop.batches is not None:
                loop.batches.add(batch)
        except BaseException as error:  # noqa: BLE001
            loop.batches = None
            loop.lost("the sizes of batches", error)
        return batch

    _BaseDataLoaderIter.__next__ = __next__


def _listen_to_starts(loop: Loop, started: _Started) -> None:
    kind = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if kind is None:
        return
    start = kind.__init__

    @functools.wraps(start)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        begun = perf_counter_ns()
        start(self, *args, **kwargs)
        try:
            if get_ident() == loop.thread:
                started.begun, started.ended, started.iterator = begun, perf_counter_ns(), ref(self)
        except BaseException as error:  # noqa: BLE001
            loop.lost("the starts of loaders", error)

    kind.__init__ = __init__
