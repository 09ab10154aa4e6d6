"""gpu.csv: what the GPUs did, a row a GPU and second, under the names of `nvidia-smi --query-gpu`.

As `nvidia-smi --query-gpu=… --format=csv,nounits` prints them, so whatever reads that reads this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from llmtop.errors import NotPossibleHere
from llmtop.hardware.clock_events import BITS
from llmtop.model.snapshot import Gpu, Snapshot

_ABSENT: Final = "[N/A]"
_MIB: Final = 1 << 20

_BITS: Final = {name: bit for bit, name in BITS.items()}

_COLUMNS: Final[tuple[tuple[str, Callable[[Gpu], object]], ...]] = (
    ("index", lambda gpu: gpu.number),
    ("name", lambda gpu: gpu.name.replace(",", " ")),
    ("uuid", lambda gpu: gpu.uuid),
    ("utilization.gpu [%]", lambda gpu: _integer_text(gpu.util_pct)),
    ("utilization.memory [%]", lambda gpu: _integer_text(gpu.mem_util_pct)),
    ("memory.used [MiB]", lambda gpu: _integer_text(gpu.mem_used_bytes, _MIB)),
    ("memory.total [MiB]", lambda gpu: _integer_text(gpu.mem_total_bytes, _MIB)),
    ("power.draw [W]", lambda gpu: None if gpu.power_watts is None else f"{gpu.power_watts:.2f}"),
    ("power.limit [W]", lambda gpu: None if gpu.power_limit_watts is None else f"{gpu.power_limit_watts:.2f}"),
    ("temperature.gpu", lambda gpu: _integer_text(gpu.temperature_c)),
    ("temperature.memory", lambda gpu: _integer_text(gpu.mem_temperature_c)),
    ("clocks.current.sm [MHz]", lambda gpu: _integer_text(gpu.sm_clock_mhz)),
    ("clocks.max.sm [MHz]", lambda gpu: _integer_text(gpu.sm_clock_max_mhz)),
    ("pcie.link.gen.current", lambda gpu: gpu.pcie_gen),
    ("pcie.link.width.current", lambda gpu: gpu.pcie_width),
    ("clocks_event_reasons.active", lambda gpu: _throttle_mask(gpu.clock_event_reasons)),
)


class GpuCsv:
    """Writes the file, row by row, past every buffer: a bench that is killed leaves whole lines."""

    def __init__(self, path: Path) -> None:
        """Create it.

        Raises:
            NotPossibleHere: it cannot be written.
        """
        self._path = path
        try:
            self._file = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115  closed by close()
        except OSError as error:
            raise self._unwritable(error) from None
        self._write([["timestamp", *(name for name, _ in _COLUMNS)]])

    def add(self, snapshot: Snapshot) -> None:
        """Write a row for each GPU.

        Raises:
            NotPossibleHere: the disk is full.
        """
        now = _timestamp(snapshot.time)
        self._write([[now, *(_text(value(gpu)) for _, value in _COLUMNS)] for gpu in snapshot.gpus])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, rows: list[list[str]]) -> None:
        try:
            self._file.write("".join(", ".join(row) + "\n" for row in rows))
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> NotPossibleHere:
        return NotPossibleHere(
            f"{self._path} cannot be written: {error.strerror}; free some space, or choose another folder "
            "with --out"
        )


def _timestamp(unix: float) -> str:
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(unix)) + f".{int(unix % 1 * 1000):03d}"


def _integer_text(value: float | None, unit: int = 1) -> str | None:
    return None if value is None else str(round(value / unit))


def _throttle_mask(reasons: tuple[str, ...] | None) -> str | None:
    """The driver's bit mask again; a reason without a name here has its bit in its name ("reason_0x800")."""
    if reasons is None:
        return None
    bits = 0
    for name in reasons:
        bits |= _BITS.get(name) or int(name.partition("_0x")[2] or "0", 16)
    return f"0x{bits:016x}"


def _text(value: object) -> str:
    return _ABSENT if value is None else str(value)
