"""Copies of a batch from the host to a CUDA device.

`Tensor.to`, `cuda` and `copy_` have no hooks. They are wrapped only where torch was built for CUDA (or ROCm, which
goes by the same name), and only what happens between the loader and the forward pass is timed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from llmtop.publish.auto.loop import Loop

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
        setattr(torch.Tensor, name, _timed(copy, loop, device_type, into=name == "copy_"))


def _timed(copy: Callable[..., Any], loop: Loop, device_type: str, *, into: bool) -> Callable[..., Any]:
    is_target = functools.partial(_goes_to, device_type)

    @functools.wraps(copy)
    def timed_copy(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or loop.busy:
            return copy(self, *args, **kwargs)
        if into:
            source = args[0] if args else kwargs.get("src")
            crosses = self.device.type == device_type and _on_host(source)
        else:
            crosses = _on_host(self) and (copy.__name__ == "cuda" or is_target(args, kwargs))
        phase = loop.h2d() if crosses else None
        if phase is None:
            return copy(self, *args, **kwargs)
        with phase:
            return copy(self, *args, **kwargs)

    return timed_copy


def _on_host(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu"


def _goes_to(device_type: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether arguments of Tensor.to name a device of that type; a bare number means CUDA."""
    target = args[0] if args else kwargs.get("device", kwargs.get("other"))
    if isinstance(target, torch.Tensor):
        target = target.device
    if isinstance(target, torch.device):
        return bool(target.type == device_type)
    if isinstance(target, str):
        return target.partition(":")[0] == device_type
    return isinstance(target, int) and not isinstance(target, bool) and device_type == "cuda"
