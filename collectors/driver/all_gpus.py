"""The GPUs of all vendors: NVIDIA, AMD, then TPUs; each driver in a process of its own."""

from __future__ import annotations

from msgspec.structs import replace

from collectors.amd import presence
from collectors.base.source import GpuReading
from collectors.driver.source import DriverSource
from collectors.tpu import presence as tpu_presence
from llmtop.extras import how_to_install
from llmtop.system import procfs

NO_BINDING = f"there are GPUs of AMD's here, and the package amdsmi is not installed; {how_to_install('amd')}"


NO_TPU_BINDING = f"there are TPUs here, and the package tpu-info is not installed; {how_to_install('tpu')}"


class AllGpus:
    """A GpuSource over all drivers. Where several have GPUs, they are numbered in that order."""

    def __init__(self, interval: float = 1.0) -> None:
        """Prepare to sample every `interval` seconds; starts nothing yet."""
        self._nvidia = DriverSource(interval)
        self._amd: DriverSource | None = None
        self._amd_note: str | None = None
        self._first = self._first_tpu = 0
        self._tpus: DriverSource | None = None
        self._tpu_note: str | None = None
        if tpu_presence.chip_count():
            if tpu_presence.has_binding():
                self._tpus = DriverSource(interval, "Google")
            else:
                self._tpu_note = NO_TPU_BINDING
        if presence.may_have_gpus():
            if presence.has_binding():
                self._amd = DriverSource(interval, "AMD")
            elif presence.gpu_count():
                self._amd_note = NO_BINDING

    def start(self) -> None:
        """Begin to ask."""
        for source in self._sources():
            source.start()

    def set_interval(self, seconds: float) -> None:
        """Change the poll interval of every vendor's source.

        Args:
            seconds: between rounds of cheap values; slow polls keep their own shortest interval.
        """
        for source in self._sources():
            source.set_interval(seconds)

    def latest(self) -> GpuReading:
        """Return the readings of all vendors. Empty until NVIDIA's driver has answered, since its GPUs are
        numbered first."""
        gpus = self._nvidia_and_amd()
        if self._tpus is None:
            return replace(gpus, notes=(*gpus.notes, self._tpu_note)) if self._tpu_note else gpus
        return self._with_tpus(gpus, self._tpus.latest())

    def _with_tpus(self, gpus: GpuReading, tpus: GpuReading) -> GpuReading:
        if not (gpus.gpus or gpus.notes):
            return replace(gpus, settled=False)
        self._first_tpu = max([self._first_tpu, *(gpu.index + 1 for gpu in gpus.gpus)])
        notes = gpus.notes
        if tpus.gpus and not gpus.gpus and procfs.driver_version() is None:
            notes = ()
        return replace(
            gpus,
            gpus=(*gpus.gpus, *(replace(gpu, index=gpu.index + self._first_tpu) for gpu in tpus.gpus)),
            uses=(*gpus.uses, *tpus.uses),
            notes=(*notes, *(f"TPU: {note}" for note in tpus.notes)),
            settled=gpus.settled and tpus.settled and bool(tpus.gpus or tpus.notes),
        )

    def _sources(self) -> list[DriverSource]:
        return [source for source in (self._nvidia, self._amd, self._tpus) if source is not None]

    def _nvidia_and_amd(self) -> GpuReading:
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
        """Stop all, and end their processes."""
        for source in self._sources():
            source.close()

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
