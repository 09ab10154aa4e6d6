"""Signals of GPUs by minutes, as they are written to runs."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from llmtop.model.signals import SIGNALS
from llmtop.model.snapshot import Gpu
from llmtop.runs.records import GpuMinute

_COUNTER = "energy_joules"
_FIELDS = tuple(signal.field for signal in SIGNALS if signal.bounds is not None and signal.field != _COUNTER)
_read_fields = attrgetter(*_FIELDS)
_DIGITS = 4
"""Significant ones that are kept: a minute of one GPU takes some 250 bytes packed."""


class _GpuSums:
    """One GPU in the present minute."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.samples = 0
        self.sampled_at: float | None = None
        self.signals: dict[str, list[float]] = {}
        """Number, sum, least and most by field."""
        self.energy_before = gpu.energy_joules

    def add(self, gpu: Gpu) -> None:
        if gpu.sampled_at is not None and gpu.sampled_at == self.sampled_at:
            return  # the same sample in a further snapshot
        self.gpu, self.sampled_at = gpu, gpu.sampled_at
        self.samples += 1
        for field, value in zip(_FIELDS, _read_fields(gpu), strict=True):
            if value is None:
                continue
            known = self.signals.get(field)
            if known is None:
                self.signals[field] = [1, value, value, value]
                continue
            known[0] += 1
            known[1] += value
            if value < known[2]:
                known[2] = value
            elif value > known[3]:
                known[3] = value

    def record(self, at: float, seconds: float, pids: list[int]) -> GpuMinute:
        gpu, before = self.gpu, self.energy_before
        used = None if gpu.energy_joules is None or before is None else gpu.energy_joules - before
        return GpuMinute(
            at=round(at, 3),
            seconds=round(seconds, 3),
            uuid=gpu.uuid,
            index=gpu.index,
            name=gpu.name,
            samples=self.samples,
            pids=pids,
            signals={
                field: (_round_digits(total / number), _round_digits(least), _round_digits(most))
                for field, (number, total, least, most) in self.signals.items()
            },
            energy_joules=None if used is None or used < 0 else round(used, 3),  # a driver that begins anew
        )

    def begin_minute(self) -> None:
        """Start a new minute; the counter goes on from its last value."""
        self.samples, self.signals, self.energy_before = 0, {}, self.gpu.energy_joules


class GpuMinutes:
    """All GPUs that trainings use. For one thread."""

    def __init__(self) -> None:
        self._gpus: dict[str, _GpuSums] = {}

    def add(self, gpus: Iterable[Gpu]) -> None:
        """Take what was sampled of GPUs since the last call."""
        for gpu in gpus:
            known = self._gpus.get(gpu.uuid)
            if known is None:
                known = self._gpus[gpu.uuid] = _GpuSums(gpu)
            known.add(gpu)

    def end_minute(self, at: float, seconds: float, pids: dict[str, list[int]]) -> list[GpuMinute]:
        """Return the minute of each GPU that was sampled, and begin the next one.

        Args:
            at: unix time of its end.
            seconds: its length.
            pids: trainings by UUID of their GPU.
        """
        found = [sums.record(at, seconds, pids.get(uuid, [])) for uuid, sums in self._gpus.items() if sums.samples]
        for sums in self._gpus.values():
            sums.begin_minute()
        return found


def _round_digits(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
