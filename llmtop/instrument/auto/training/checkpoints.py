"""Times checkpoints and the evaluations of frameworks, each by one public function.

`torch.save` is replaced from the start. Functions of other libraries are replaced when their modules are imported,
which also the first save may do: nothing is loaded for it. Modules that another finder loads are searched at the
first backward pass and then some times a second between steps. A name that a script has imported from there before
is not seen; a function that it calls may be.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from llmtop.instrument.auto.patches.replacements import AfterImport
from llmtop.instrument.auto.training.checkpoint_calls import CheckpointCalls
from llmtop.instrument.auto.training.loop import Loop
from llmtop.instrument.guest.guard import report_internal_error

CHECKPOINTS = "the checkpoints"
_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
_LATER: Mapping[str, Mapping[str, str]] = {
    # The inner ones are for those who have imported the outer by name.
    "torch.distributed.checkpoint": {"save": "checkpoint", "async_save": "checkpoint"},
    "torch.distributed.checkpoint.state_dict_saver": {
        "save": "checkpoint",
        "async_save": "checkpoint",
        "_save_state_dict": "checkpoint",
    },
    "safetensors.torch": {"save_file": "checkpoint", "serialize_file": "checkpoint"},
    "accelerate.accelerator": {"Accelerator.save_state": "checkpoint", "Accelerator.save_model": "checkpoint"},
    "transformers.trainer": {
        "Trainer._save_checkpoint": "checkpoint",
        "Trainer.evaluate": "evaluation",
        "Trainer.predict": "evaluation",
    },
    **{f"{name}.trainer.trainer": {"Trainer.save_checkpoint": "checkpoint"} for name in _LIGHTNING},
    **{f"{name}.loops.evaluation_loop": {"_EvaluationLoop.run": "evaluation"} for name in _LIGHTNING},
}
"""Phase of each function, by module."""

_is_compiling = torch.compiler.is_compiling
_left = dict(_LATER)
_timed: set[Callable[..., Any]] = set()
"""Functions that are timed: a module may have imported one from another, and is asked to be timed again."""
_shared_calls: CheckpointCalls | None = None


def listen(loop: Loop) -> None:
    """Time `torch.save`, and functions of other modules as soon as they have been imported."""
    save = torch.serialization.save
    timed = _time_function(save, loop, "checkpoint", "torch.save")
    torch.serialization.save = timed
    if torch.save is save:
        torch.save = timed
    time_loaded_modules(loop)
    AfterImport(tuple(_left), functools.partial(_time_module, loop))
    loop.recorder.hooks.periodic.append(lambda: time_loaded_modules(loop))


def time_loaded_modules(loop: Loop) -> None:
    """Time those functions whose modules have been loaded by now."""
    for module_name in [name for name in _left if name in sys.modules]:
        module = sys.modules[module_name]
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            continue  # another thread is in the middle of it
        _time_module(loop, module_name)


def _time_module(loop: Loop, module_name: str) -> None:
    """Time the functions of a module that has been executed."""
    module = sys.modules.get(module_name)
    for path, phase in _left.pop(module_name, {}).items():
        kind, _, name = path.rpartition(".")
        owner: Any = getattr(module, kind, None) if kind else module
        try:
            function = vars(owner).get(name) if owner is not None else None
            if callable(function) and function not in _timed:
                setattr(owner, name, _time_function(function, loop, phase, name))
        except (AttributeError, TypeError) as error:  # one that cannot be changed is left alone
            report_internal_error(CHECKPOINTS, error)


def _time_function(function: Callable[..., Any], loop: Loop, phase_name: str, name: str) -> Callable[..., Any]:
    calls = _calls(loop) if phase_name == "checkpoint" else None

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        phase, began = None, None
        try:
            if not _is_compiling():
                phase = loop.side_phase(phase_name)
                began = None if calls is None else calls.enter(name)
        except BaseException as error:  # noqa: BLE001
            loop.lost(CHECKPOINTS, error)
        try:
            if phase is None:
                result = function(*args, **kwargs)
            else:
                with phase:
                    result = function(*args, **kwargs)
        except BaseException:
            if calls is not None and began is not None:
                calls.give_up(began)
            raise
        if calls is not None and began is not None:
            try:
                calls.leave(name, began, result, args, kwargs)
            except BaseException as error:  # noqa: BLE001
                loop.lost(CHECKPOINTS, error)
        return result

    _timed.add(timed)
    return timed


def _calls(loop: Loop) -> CheckpointCalls:
    """Return what all wrappers of this process share."""
    global _shared_calls
    if _shared_calls is None:
        _shared_calls = CheckpointCalls(loop)
    return _shared_calls
