"""CUDA events and streams, as far as the GPU clock needs them. Never initialises CUDA, never synchronises."""

from __future__ import annotations

import os
import sys
from typing import Any, Protocol

from llmtop.naming import variable_names


class Events(Protocol):
    """Timing events on one stream of one device; every call is made in the training thread."""

    def take_stream(self) -> None:
        """Use the calling thread's current stream from now on."""

    def is_capturing(self) -> bool:
        """Return True if the current stream is being captured into a graph, when nothing may be recorded or
        asked."""

    def is_drained(self) -> bool:
        """Return True if all work given to the stream so far is done."""

    def new(self) -> Any:
        """Make an event that takes the time; nothing is recorded yet."""

    def record(self, event: Any) -> None:
        """Record the event behind the work given to the stream so far."""

    def is_done(self, event: Any) -> bool:
        """Return True if the stream has passed the event."""

    def elapsed_ns(self, first: Any, second: Any) -> int:
        """GPU time between two events that the stream has passed."""


class CudaEvents:
    """Events of the calling thread's current stream, by torch.cuda."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._stream: Any = None
        self._aside: Any = None
        self.is_capturing = cuda.is_current_stream_capturing

    def take_stream(self) -> None:
        self._stream = self._cuda.current_stream()

    def is_drained(self) -> bool:
        return bool(self._stream.query())

    def new(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def record(self, event: Any) -> None:
        event.record(self._stream)

    def record_aside(self, event: Any) -> bool:
        """Record the event on a stream without work; False where something is on it after all."""
        if self._aside is None:
            self._aside = self._cuda.Stream()
        if not self._aside.query():  # torch has 32 streams, and may have given the script the same
            return False
        event.record(self._aside)
        return True

    def is_done(self, event: Any) -> bool:
        return bool(event.query())

    def elapsed_ns(self, first: Any, second: Any) -> int:
        return int(first.elapsed_time(second) * 1e6)  # torch gives milliseconds


def initialised_cuda() -> Any:
    """torch.cuda once the training itself has initialised it in this process; None before and without torch."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def uuid(cuda: Any) -> str | None:
    """Return the UUID of the calling thread's device in NVML's form; None when torch is too old to say."""
    device = cuda.current_device()
    visible = os.environ.get(variable_names.CUDA_DEVICES, "").split(",")
    if device < len(visible) and visible[device].strip().startswith("MIG-"):
        return str(visible[device]).strip()  # of a MIG instance, CUDA gives the UUID of the whole GPU
    plain: object = getattr(cuda.get_device_properties(device), "uuid", None)
    return None if plain is None else f"GPU-{plain}"


def model(cuda: Any) -> str | None:
    """Return the name of the calling thread's device, as its driver calls it."""
    name: object = getattr(cuda.get_device_properties(cuda.current_device()), "name", None)
    return name if isinstance(name, str) and name else None
