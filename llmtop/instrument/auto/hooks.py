"""Where torch is listened to. Public hooks where it has them; else one function, replaced once by a wrapper.

Every wrapper asks first whether it is being compiled, which torch.compile takes for a constant: it adds no graph
break and no guard. Nothing here may raise on its own account: whatever comes out of our own work goes to
`Loop.lost`, outside of which the script's own call is made as without us.

Each call of a Python function costs a training some microsecond, because its code is in no cache by then. So what
happens at every step is written out here where it is short.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from llmtop.instrument.auto.inference.forward_passes import Inference
from llmtop.instrument.auto.training import batches, checkpoints, communication, learning_signs, transfers
from llmtop.instrument.auto.training.loop import Loop, is_compiling, is_data_worker, make
from llmtop.instrument.auto.training.pipeline_stages import PipelineStages
from llmtop.instrument.auto.training.timed_modules import STEPS_WITHOUT, Modules
from llmtop.instrument.pytorch import dynamo


def install(again: Callable[[], Loop]) -> Loop:
    """Listen to the DataLoader, transfers, autograd and optimizers; to modules from the first backward pass on.

    Args:
        again: what gives the loop of whatever process it is called in, as unpickling does.
    """
    loop = make(again)
    batches.listen(loop)
    transfers.listen(loop)
    checkpoints.listen(loop)
    learning_signs.listen(loop)
    loop.recorder.hooks.periodic.append(PipelineStages().await_stage)
    modules = Modules(loop)
    loop.recorder.hooks.roots = modules.roots
    inference = Inference(loop)
    loop.forget_too = inference.forget
    ranks = communication.Ranks()

    def publish_trained() -> None:
        """Search for the trained modules of this process, and publish it."""
        with dynamo.Paused():
            ranks.refresh()
            if ranks.refresh not in loop.recorder.hooks.periodic:
                loop.recorder.hooks.periodic.append(ranks.refresh)
            inferred = inference.trains(modules)
            if modules.unknown:
                modules.search_if_unknown()
            loop.attach(anew=inferred)
            loop.known.discover()
            checkpoints.time_loaded_modules(loop)
            dynamo.keep_out()  # also of what has been loaded to publish

    loop.publish_trained = publish_trained
    _listen_to_autograd(loop, modules, ranks)
    register_optimizer_step_pre_hook(loop.optimizer_begins)
    register_optimizer_step_post_hook(loop.optimizer_ends)
    dynamo.keep_out()
    return loop


def _listen_to_autograd(loop: Loop, modules: Modules, ranks: communication.Ranks) -> None:
    recorder = loop.recorder
    run = torch.autograd.backward  # Tensor.backward calls it by this name

    @functools.wraps(run)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or loop.in_backward:
            return run(tensors, *args, **kwargs)
        begun, mark = False, None
        try:
            if not (
                ((recorder.manual_used or recorder.off) and loop.stands_down())
                or (not recorder.attached and is_data_worker())
                or (get_ident() != loop.thread and loop.is_foreign())
            ):
                usual = modules.called and loop.steps_without_forward < STEPS_WITHOUT and recorder.attached
                if not usual and (not recorder.attached or modules.unknown):
                    loop.publish_trained()
                if loop.known.model.curious:
                    loop.known.model.sees_loss(tensors)
                loop.backward_begins()
                if ranks.several:
                    mark = communication.mark_end_of(tensors, loop)
                begun = True
        except BaseException as error:  # noqa: BLE001
            loop.lost("the backward passes", error)
        if not begun:
            return run(tensors, *args, **kwargs)
        try:
            return run(tensors, *args, **kwargs)
        finally:
            try:
                loop.backward_ends()
                if mark is not None:
                    mark.remove()
            except BaseException as error:  # noqa: BLE001
                loop.lost("the backward passes", error)

    torch.autograd.backward = backward
