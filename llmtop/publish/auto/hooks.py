"""Where torch is listened to. Public hooks where it has them; else one function, replaced once by a wrapper.

Every wrapper asks first whether it is being compiled, which torch.compile takes for a constant: it adds no graph
break and no guard. Nothing here may raise on its own account.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from llmtop.publish.auto import communication, dynamo, transfers
from llmtop.publish.auto.loop import Loop, is_data_worker, make
from llmtop.publish.auto.modules import Modules

_is_compiling = torch.compiler.is_compiling


def install() -> Loop:
    """Listen to the DataLoader, transfers, autograd and optimizers; to modules from the first backward pass on."""
    loop = make()
    _listen_to_dataloader(loop)
    transfers.listen(loop)
    _listen_to_autograd(loop, Modules(loop))
    _listen_to_optimizers(loop)
    dynamo.keep_out()
    return loop


def _listen_to_dataloader(loop: Loop) -> None:
    # Every iterator of a DataLoader inherits this one method, and none overrides it, since torch 1.2.
    fetch = _BaseDataLoaderIter.__next__
    recorder = loop.recorder

    @functools.wraps(fetch)
    def __next__(self: Any) -> Any:  # noqa: N807
        if _is_compiling() or loop.busy or get_ident() != recorder.thread or loop.stands_down():
            return fetch(self)
        loop.dataload_begins()
        exhausted = True
        try:
            batch = fetch(self)
            exhausted = False
        finally:
            loop.dataload_ends(exhausted=exhausted)
        return batch

    _BaseDataLoaderIter.__next__ = __next__


def _listen_to_autograd(loop: Loop, modules: Modules) -> None:
    recorder = loop.recorder
    run = torch.autograd.backward  # Tensor.backward calls it by this name

    @functools.wraps(run)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            _is_compiling()
            or loop.in_backward
            or loop.stands_down()
            or (not recorder.attached and is_data_worker())
        ):
            return run(tensors, *args, **kwargs)
        if not recorder.attached or modules.unknown:
            with dynamo.Paused():
                if modules.unknown:
                    modules.look()
                loop.attach()
                dynamo.keep_out()  # also of what has been loaded to publish
        loop.backward_begins()
        mark = communication.mark_end_of(tensors, loop)
        try:
            return run(tensors, *args, **kwargs)
        finally:
            loop.backward_ends()
            if mark is not None:
                mark.remove()

    torch.autograd.backward = backward


def _listen_to_optimizers(loop: Loop) -> None:
    def before(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _is_compiling() and not loop.stands_down():
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            loop.optimizer_begins(optimizer, closure is not None)

    def after(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _is_compiling():
            loop.optimizer_ends(optimizer)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
