"""Copies of a batch from the host to a CUDA device.

`Tensor.to`, `cuda` and `copy_` have no hooks. They are wrapped only where torch was built for CUDA (or ROCm, which
goes by the same name), and only what happens between the loader and the forward pass is timed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from llmtop.instrument.auto.training.loop import Loop

_is_compiling = torch.compiler.is_compiling
NAMES = ("to", "cuda", "copy_")


def listen(loop: Loop) -> None:
    """Time copies from host memory to CUDA devices, where there can be any."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        time_copies_to("cuda", loop)


def time_copies_to(device_type: str, loop: Loop) -> None:
    """Time copies from host memory to devices of that type."""
    for name in NAMES:
        copy = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, _time_copy(copy, loop, device_type, into=name == "copy_"))


def _time_copy(copy: Callable[..., Any], loop: Loop, device_type: str, *, into: bool) -> Callable[..., Any]:
    is_target = functools.partial(_goes_to, device_type)
    name = copy.__name__

    @functools.wraps(copy)
    def timed_copy(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or (loop.busy and not loop.optimizing):
            return copy(self, *args, **kwargs)
        phase = None
        try:
            if into:
                source = args[0] if args else kwargs.get("src")
                crosses = _on_host(source) and _device_type(self) == device_type
            else:
                crosses = _on_host(self) and (name == "cuda" or is_target(args, kwargs))
            phase = loop.h2d() if crosses else None
        except BaseException as error:  # noqa: BLE001
            loop.lost("the copies to the GPU", error)
        if phase is None:
            return copy(self, *args, **kwargs)
        with phase:
            return copy(self, *args, **kwargs)

    return timed_copy


def _on_host(tensor: Any) -> bool:
    # A class that torch asks before it answers even this question is the script's own; it is not asked.
    if not issubclass(type(tensor), torch.Tensor):
        return False
    return _device_type(tensor) == "cpu"


def _device_type(tensor: torch.Tensor) -> str:
    with torch._C.DisableTorchFunction():
        return str(tensor.device.type)


def _goes_to(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if arguments of Tensor.to name a device of that type; a bare number means CUDA."""
    target = args[0] if args else kwargs.get("device", kwargs.get("other"))
    if isinstance(target, torch.Tensor):
        return _device_type(target) == device_type
    if isinstance(target, torch.device):
        return bool(target.type == device_type)
    if isinstance(target, str):
        return target.partition(":")[0] == device_type
    return isinstance(target, int) and not isinstance(target, bool) and device_type == "cuda"
