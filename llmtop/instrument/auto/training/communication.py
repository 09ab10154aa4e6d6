"""Waiting for other ranks, as far as the host does the waiting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from llmtop.instrument.auto.training.loop import Loop

COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "recv",
    "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
)  # fmt: skip

WAITS = "the waits for other ranks"

_is_compiling = torch.compiler.is_compiling
_listening = False


class Ranks:
    """Check for other ranks of this process. torch answers by four functions of Python's, so it is not asked at
    each backward pass."""

    __slots__ = ("several",)

    def __init__(self) -> None:
        self.several = False

    def refresh(self) -> None:
        """Update: before the first backward pass, and some times a second after a step."""
        self.several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def mark_end_of(tensors: Any, loop: Loop) -> Any:
    """Notify the loop when the gradients of this backward pass are computed; returns the handle to remove.

    The autograd engine runs callbacks at the end of a pass in the order in which they were queued. DDP and FSDP
    queue theirs, in which they wait, during the pass; one queued at its very beginning runs just before. A hook on
    the loss is that beginning. Only where there are several `Ranks`.
    """
    if not dist.is_initialized():  # not any more since the last check
        return None
    if not _listening:
        _listen(loop)
    if not isinstance(tensors, torch.Tensor):
        return None
    engine: Any = torch.autograd.Variable._execution_engine  # the one that FSDP queues its callback with

    def queue(_gradient: Any) -> None:
        if _is_compiling():
            return
        try:
            engine.queue_callback(computed)
        except BaseException as error:  # noqa: BLE001
            loop.lost(WAITS, error)

    def computed() -> None:
        try:
            loop.gradients_are_computed()
        except BaseException as error:  # noqa: BLE001
            loop.lost(WAITS, error)

    with torch._C.DisableTorchFunction():  # neither a mode nor a class of the script sees it
        return tensors.register_hook(queue) if tensors.requires_grad else None


def _listen(loop: Loop) -> None:
    """Time collectives that block, and waits for those that do not."""
    global _listening
    _listening = True
    c10d = dist.distributed_c10d
    for name in COLLECTIVES:
        collective = getattr(c10d, name, None)
        if collective is not None:
            timed = _time_collective(collective, loop)
            setattr(c10d, name, timed)
            setattr(dist, name, timed)
    dist.Work.wait = _time_collective(dist.Work.wait, loop)


def _time_collective(collective: Callable[..., Any], loop: Loop) -> Callable[..., Any]:
    @functools.wraps(collective)
    def timed(*args: Any, **kwargs: Any) -> Any:
        phase = None
        try:
            if (
                not _is_compiling()
                and not kwargs.get("async_op")
                and loop.in_training_thread
                and not loop.stands_down()
            ):
                phase = loop.waits()
        except BaseException as error:  # noqa: BLE001
            loop.lost(WAITS, error)
        if phase is None:
            return collective(*args, **kwargs)
        with phase:
            return collective(*args, **kwargs)

    return timed
