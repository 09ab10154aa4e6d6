"""Where torch is listened to. Public hooks where it has them; else one function, replaced once by a wrapper.

Every wrapper asks first whether it is being compiled, which torch.compile takes for a constant: it adds no graph
break and no guard. Nothing here may raise on its own account.

Each call of a Python function costs a training some microsecond, because its code is in no cache by then. So what
happens at every step is written out here where it is short.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from llmtop.publish.auto import communication, dynamo, transfers
from llmtop.publish.auto.loop import Loop, is_data_worker, make
from llmtop.publish.auto.modules import STEPS_WITHOUT, Modules

_is_compiling = torch.compiler.is_dynamo_compiling  # half of what is_compiling() costs; none of these is exported


def install() -> Loop:
    """Listen to the DataLoader, transfers, autograd and optimizers; to modules from the first backward pass on."""
    loop = make()
    _listen_to_dataloader(loop)
    transfers.listen(loop)
    _listen_to_autograd(loop, Modules(loop))
    _listen_to_optimizers(loop)
    dynamo.keep_out()
    return loop


def _never() -> bool:
    return False


def _listen_to_dataloader(loop: Loop) -> None:
    # Every iterator of a DataLoader inherits this one method, and none overrides it, since torch 1.2.
    fetch = _BaseDataLoaderIter.__next__
    recorder = loop.recorder

    @functools.wraps(fetch)
    def __next__(self: Any) -> Any:  # noqa: N807
        if _is_compiling() or loop.busy or get_ident() != recorder.thread:
            return fetch(self)
        if (recorder.manual_used or recorder.off) and loop.stands_down():
            return fetch(self)
        phase = loop.dataload_begins()
        try:
            batch = fetch(self)
        except BaseException:
            loop.dataload_ends(exhausted=True)
            raise
        phase.__exit__(None, None, None)
        return batch

    _BaseDataLoaderIter.__next__ = __next__


def _listen_to_autograd(loop: Loop, modules: Modules) -> None:
    recorder = loop.recorder
    is_distributed = dist.is_initialized if dist.is_available() else _never
    run = torch.autograd.backward  # Tensor.backward calls it by this name

    @functools.wraps(run)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            _is_compiling()
            or loop.in_backward
            or ((recorder.manual_used or recorder.off) and loop.stands_down())
            or (not recorder.attached and is_data_worker())
        ):
            return run(tensors, *args, **kwargs)
        usual = recorder.attached and modules.called and loop.steps_without_forward < STEPS_WITHOUT
        if not usual and (not recorder.attached or modules.unknown):
            with dynamo.Paused():
                if modules.unknown:
                    modules.look()
                loop.attach()
                dynamo.keep_out()  # also of what has been loaded to publish
        loop.backward_begins()
        mark = communication.mark_end_of(tensors, loop) if is_distributed() else None
        try:
            return run(tensors, *args, **kwargs)
        finally:
            loop.backward_ends()
            if mark is not None:
                mark.remove()

    torch.autograd.backward = backward


def _listen_to_optimizers(loop: Loop) -> None:
    recorder = loop.recorder

    def before(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _is_compiling() and not ((recorder.manual_used or recorder.off) and loop.stands_down()):
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            loop.optimizer_begins(optimizer, closure is not None)

    def after(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _is_compiling():
            loop.optimizer_ends(optimizer)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
