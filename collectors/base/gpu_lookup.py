"""The driver's answers about one GPU or one process, for a training that attaches."""

from __future__ import annotations

from collections.abc import Callable

from collectors.base.source import GpuReading


class GpuLookup:
    """Names of GPUs, and the GPU on which a process computes."""

    def __init__(self, reading: Callable[[], GpuReading] = GpuReading) -> None:
        """Look things up in the newest reading.

        Args:
            reading: the newest reading of the driver; by default one without GPUs.
        """
        self._reading = reading
        self._names: dict[str, str] = {}

    def name(self, uuid: str) -> str | None:
        """Return the name of a GPU; None: the driver does not list it."""
        if uuid not in self._names:
            self._names |= {gpu.uuid: gpu.name for gpu in self._reading().gpus}
        return self._names.get(uuid)

    def uuid_of(self, pid: int) -> str | None:
        """Return the UUID of the GPU on which a process has a compute context; None: on none, or on several."""
        found = {use.gpu_uuid for use in self._reading().uses if use.pid == pid and use.computes}
        return found.pop() if len(found) == 1 else None
