"""The gradient norm and the loss scale of a training that logs neither: what two functions of torch compute
anyway.

`clip_grad_norm_` returns the norm before clipping, and a GradScaler has its scale after `update`. A tensor on
the CPU is read; one on a GPU is copied as those given to log() are, and nothing waits for it. `get_scale()`
would wait. A distributed tensor is left out: reading it is a collective.
"""

from __future__ import annotations

import functools
from _thread import get_ident
from collections.abc import Callable
from typing import Any

import torch

from llmtop.instrument.auto.training.loop import Loop
from llmtop.naming.metric_names import metric_kind

SIGNS = "the gradient norm and the loss scale"
GRAD_NORM = "grad_norm"
LOSS_SCALE = "loss_scale"
_is_compiling = torch.compiler.is_compiling


class LearningSigns:
    """Takes what the two functions leave, unless the script logs a value of that kind."""

    __slots__ = ("_given_up", "_last", "_loop", "_names_seen", "_own")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._own: set[str] = set()
        self._last: dict[str, float] = {}
        """Last value stored by name. Another number under that name means that the script logs it itself."""
        self._given_up: set[str] = set()
        self._names_seen: dict[str, int] = {}
        """How many names were logged when the kinds of all were looked at: they only become more."""

    def take(self, name: str, value: Any) -> None:
        """Take a tensor of one element."""
        recorder = self._loop.recorder
        if name in self._given_up or recorder.off or not recorder.attached or get_ident() != recorder.thread:
            return
        kind = type(value)
        if (kind is not torch.Tensor and kind is not float) or self._is_logged(name):
            return
        if name not in self._own:
            self._own.add(name)
            recorder.logged.names.add(name)
        if kind is not float and value.is_cuda:
            if recorder.gpu_metrics is not None:
                recorder.gpu_metrics.take(name, value, recorder.current_index())
            return
        if kind is not float:
            if not value.is_cpu or value.numel() != 1:
                return
            value = value.item()  # float() of a detached tensor takes four times as long
        self._last[name] = recorder.metrics[name] = value
        recorder.logged.add(name, value, recorder.current_index())

    def _is_logged(self, name: str) -> bool:
        """Return whether the script or its library logs a value of the same kind: from then on ours is left
        out."""
        recorder = self._loop.recorder
        if name in self._last and recorder.metrics.get(name) is not self._last[name]:
            self._given_up.add(name)  # the script has put its own under the same name
            return True
        count = len(recorder.logged.names)
        if self._names_seen.get(name) == count:
            return False
        self._names_seen[name] = count
        if any(known not in self._own and metric_kind(known) == name for known in recorder.logged.names.copy()):
            self._given_up.add(name)
            if name in self._own:
                recorder.metrics.pop(name, None)
            return True
        return False


def listen(loop: Loop) -> None:
    """Read the two values from now on."""
    signs = LearningSigns(loop)
    clip = torch.nn.utils.clip_grad.clip_grad_norm_
    listened = _reporting(clip, loop, lambda result, _args: signs.take(GRAD_NORM, result))
    torch.nn.utils.clip_grad.clip_grad_norm_ = listened
    if torch.nn.utils.clip_grad_norm_ is clip:
        torch.nn.utils.clip_grad_norm_ = listened
    scaler: Any = getattr(getattr(torch.amp, "grad_scaler", None), "GradScaler", torch.cuda.amp.GradScaler)
    scaler.update = _reporting(
        scaler.update, loop, lambda _result, args: signs.take(LOSS_SCALE, getattr(args[0], "_scale", None))
    )


def _reporting(
    function: Callable[..., Any], loop: Loop, report: Callable[[Any, tuple[Any, ...]], None]
) -> Callable[..., Any]:
    """Return the function that calls `report` with its result and arguments after each call."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        try:
            report(result, args)
        except BaseException as error:  # noqa: BLE001
            loop.lost(SIGNS, error)
        return result

    return called
