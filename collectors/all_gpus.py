"""The GPUs of this machine, whoever made them: NVIDIA's first, then AMD's, each driver in a process of its own."""

from __future__ import annotations

from msgspec.structs import replace

from collectors.amd import presence
from collectors.base import GpuReading
from collectors.nvml.driver_source import DriverSource
from llmtop import procfs

NO_BINDING = (
    "there are GPUs of AMD's here, and the package amdsmi is not installed: pip install 'llmtop-monitor[amd]'"
)


class AllGpus:
    """A GpuSource over both drivers. Where both have GPUs, AMD's are numbered after NVIDIA's."""

    def __init__(self, interval: float = 1.0) -> None:
        """Prepare to sample every `interval` seconds; starts nothing yet."""
        self._nvidia = DriverSource(interval)
        self._amd: DriverSource | None = None
        self._amd_note: str | None = None
        self._first = 0
        if presence.worth_asking():
            if presence.has_binding():
                self._amd = DriverSource(interval, "AMD")
            elif presence.gpu_count():
                self._amd_note = NO_BINDING

    def start(self) -> None:
        """Begin to ask."""
        self._nvidia.start()
        if self._amd is not None:
            self._amd.start()

    def set_interval(self, seconds: float) -> None:
        """Change the pace of the cheap values; dear ones keep theirs."""
        self._nvidia.set_interval(seconds)
        if self._amd is not None:
            self._amd.set_interval(seconds)

    def latest(self) -> GpuReading:
        """What both say now. Nothing before NVIDIA's driver has spoken: AMD's would get other numbers then."""
        nvidia = self._nvidia.latest()
        if self._amd is None:
            if self._amd_note is None or nvidia.gpus or not nvidia.notes:
                return nvidia
            return replace(nvidia, notes=(self._amd_note,))
        amd = self._amd.latest()
        if not (nvidia.gpus or nvidia.notes):
            return replace(nvidia, settled=False)
        return self._together(nvidia, amd)

    def close(self) -> None:
        """Stop both, and end their processes."""
        self._nvidia.close()
        if self._amd is not None:
            self._amd.close()

    def _together(self, nvidia: GpuReading, amd: GpuReading) -> GpuReading:
        # A GPU keeps its number while NVIDIA's come and go.
        self._first = max([self._first, *(gpu.index + 1 for gpu in nvidia.gpus)])
        notes = nvidia.notes
        if amd.gpus and not nvidia.gpus and procfs.driver_version() is None:
            notes = ()  # that there is no driver of NVIDIA's is no news where there are GPUs of another make
        if not (nvidia.gpus and not amd.gpus and not presence.gpu_count()):
            notes += tuple(f"AMD: {note}" for note in amd.notes)
        if amd.gpus and self._first:
            notes += (f"GPU {self._first} and up are AMD's, which amd-smi numbers from 0",)
        return replace(
            nvidia,
            gpus=(*nvidia.gpus, *(replace(gpu, index=gpu.index + self._first) for gpu in amd.gpus)),
            uses=(*nvidia.uses, *amd.uses),
            driver_version=nvidia.driver_version or amd.driver_version,
            notes=notes,
            settled=nvidia.settled and amd.settled and bool(amd.gpus or amd.notes),
        )
