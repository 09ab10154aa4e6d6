"""gpu.csv: what the GPUs did, a row a GPU and second, under the names of `nvidia-smi --query-gpu`.

As `nvidia-smi --query-gpu=… --format=csv,nounits` prints them, so whatever reads that reads this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmtop.errors import NotPossibleHere
from llmtop.hardware.clock_events import BITS
from llmtop.model.signals import MIB, SIGNALS
from llmtop.model.snapshot import Gpu, Snapshot

if TYPE_CHECKING:
    from llmtop.model.signals import Unit

_ABSENT: Final = "[N/A]"
_BITS: Final = {name: bit for bit, name in BITS.items()}


def _throttle_mask(reasons: tuple[str, ...]) -> str:
    """Return the driver's bit mask again; a reason without a name here has its bit in its name
    ("reason_0x800")."""
    bits = 0
    for name in reasons:
        bits |= _BITS.get(name) or int(name.partition("_0x")[2] or "0", 16)
    return f"0x{bits:016x}"


_TEXTS: Final[dict[Unit, Callable[[Any], str]]] = {
    "%": lambda value: str(round(value)),
    "W": lambda value: f"{value:.2f}",
    "J": lambda value: f"{value:.2f}",
    "°C": lambda value: str(round(value)),
    "MHz": lambda value: str(round(value)),
    "B": lambda value: str(round(value / MIB)),
    "B/s": lambda value: str(round(value / MIB)),
    "": str,
    "reasons": _throttle_mask,
}
"""Text of a value in each unit, as nvidia-smi writes it; its bytes are MiB."""


def _signal_text(field: str, unit: Unit) -> Callable[[Gpu], str | None]:
    def text(gpu: Gpu) -> str | None:
        value = getattr(gpu, field)
        return None if value is None else _TEXTS[unit](value)

    return text


_COLUMNS: Final[tuple[tuple[str, Callable[[Gpu], str | None]], ...]] = (
    ("index", lambda gpu: gpu.number),
    ("name", lambda gpu: gpu.name.replace(",", " ")),
    ("uuid", lambda gpu: gpu.uuid),
    *((signal.column, _signal_text(signal.field, signal.unit)) for signal in SIGNALS if signal.column),
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
        self._write([[now, *(_or_absent(text(gpu)) for _, text in _COLUMNS)] for gpu in snapshot.gpus])

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


def _or_absent(text: str | None) -> str:
    return _ABSENT if text is None else text
