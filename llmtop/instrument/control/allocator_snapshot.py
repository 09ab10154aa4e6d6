"""Facts of the training for a snapshot of torch's allocator: its steps, phases and owners of tensors.

torch can note its own annotations in the history, but leaves a callback on every one of them behind for good. Our
phases are known here, so they are written into the snapshot afterwards, in torch's form; by the same clock.
"""

from __future__ import annotations

import gc
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

KEY = "llmtop"
"""Key in the snapshot; llmtop.memory.snapshot reads it."""
MOST_MARKS = 200_000
"""Beginnings and ends of phases: a loop that opens thousands a step shall not fill the host's memory."""


def _now_us() -> int:
    return time.time_ns() // 1000


class Marks:
    """When steps and phases began and ended, in Unix time."""

    def __init__(self) -> None:
        self.steps_us: list[int] = []
        self.phases: list[dict[str, Any]] = []
        """Phases in the form of torch's annotations in a snapshot."""

    def step(self) -> None:
        """A step ends, and the next begins."""
        self.steps_us.append(_now_us())

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Marks what runs within it."""
        return _Marked(self, name)

    def note(self, name: str, stage: str) -> None:
        """One end of a phase."""
        if len(self.phases) < MOST_MARKS:
            self.phases.append({"device": 0, "name": name, "stage": stage, "time_us": _now_us()})


class _Marked(AbstractContextManager[None]):
    def __init__(self, marks: Marks, name: str) -> None:
        self._marks = marks
        self._name = name

    def __enter__(self) -> None:
        self._marks.note(self._name, "START")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._marks.note(self._name, "END")


def add_marks(snapshot: dict[str, Any], marks: Marks, owners: dict[str, list[int]]) -> None:
    """Write them into what `torch.cuda.memory._snapshot` gave.

    Args:
        snapshot: changed in place.
        marks: of the stretch that it is of.
        owners: addresses of tensors by whose they are.
    """
    snapshot["external_annotations"] = [*(snapshot.get("external_annotations") or []), *marks.phases]
    snapshot[KEY] = {"steps_us": marks.steps_us, "owners": owners}


def owners(device_type: str = "cuda") -> dict[str, list[int]]:
    """Return where the parameters of all optimizers lie, and what the optimizers keep for them.

    Both stay where they are from step to step; the capture's own records give the rest. Scans all objects of the
    process, so it is called in a thread of the capture's own.

    Args:
        device_type: of the devices that are meant.
    """
    import torch

    found: dict[str, list[int]] = {"parameters": [], "optimizer": []}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.optim.Optimizer):
            found["parameters"] += _addresses(_parameters(thing), device_type)
            found["optimizer"] += _addresses(_state(thing), device_type)
    return {kind: sorted(set(addresses)) for kind, addresses in found.items()}


def _parameters(optimizer: Any) -> list[Any]:
    groups = optimizer.__dict__.get("param_groups") or ()
    return [parameter for group in tuple(groups) for parameter in tuple(group.get("params", ()))]


def _state(optimizer: Any) -> list[Any]:
    # A copy is made in one go; the training may add to the original meanwhile.
    states = tuple(dict(optimizer.__dict__.get("state") or {}).values())
    return [value for values in states if isinstance(values, dict) for value in tuple(values.values())]


def _addresses(things: list[Any], device_type: str) -> list[int]:
    """Return the addresses of the storages of those that are tensors; a sharded one (DTensor) has its own part
    within."""
    import torch

    found = []
    for thing in things:
        local = getattr(thing, "_local_tensor", thing)
        if not isinstance(local, torch.Tensor) or local.device.type != device_type:
            continue
        try:
            found.append(int(local.untyped_storage().data_ptr()))
        except RuntimeError:  # a fake or wrapping tensor without memory of its own
            continue
    return found
