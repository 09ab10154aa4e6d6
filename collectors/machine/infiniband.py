"""Ports of InfiniBand and RoCE adapters: what the kernel tells of them below /sys/class/infiniband.

RDMA bypasses the kernel's network interfaces, so the bytes of NCCL are in these counters alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from llmtop.model.links import HW_COUNTERS, PORT_COUNTERS, Link

ROOT: Final = Path("/sys/class/infiniband")
MAX_PORTS: Final = 64
"""A node with eight GPUs has 8 to 18 ports."""
_LANE_BYTES: Final = 4
"""port_rcv_data and port_xmit_data count units of four bytes (the kernel's sysfs-class-infiniband)."""
_LONGEST: Final = 256
_RATE: Final = re.compile(r"([\d.]+) Gb/sec")
_STATE: Final = re.compile(r"\d+: (\w+)")


class Links:
    """The ports, read after each other, with their rates since the read before."""

    def __init__(self, root: Path = ROOT) -> None:
        """Prepare.

        Args:
            root: folder that has a folder for each adapter.
        """
        self._root = root
        self._before: dict[tuple[str, int], Link] = {}
        self._read_at: float | None = None

    def read(self) -> tuple[Link, ...]:
        """Return the ports; () on a machine without an adapter. What a driver does not give is None."""
        now = time.monotonic()
        seconds = None if self._read_at is None else now - self._read_at
        found = []
        for link in _ports(self._root):
            before = self._before.get((link.device, link.port))
            rates = {
                f"{way}_bytes_per_s": _rate(getattr(before, field, None), getattr(link, field), seconds)
                for way, field in (("rx", "received_bytes"), ("tx", "sent_bytes"))
            }
            found.append(replace(link, **rates))
        self._before = {(link.device, link.port): link for link in found}
        self._read_at = now
        return tuple(found)


def _ports(root: Path) -> Iterator[Link]:
    try:
        folders = sorted(
            port for adapter in root.iterdir() for port in (adapter / "ports").iterdir() if port.name.isdecimal()
        )
    except OSError:
        return
    for folder in folders[:MAX_PORTS]:
        rate = _RATE.match(_text(folder / "rate"))
        state = _STATE.match(_text(folder / "state"))
        yield Link(
            device=folder.parent.parent.name,
            port=int(folder.name),
            layer=_text(folder / "link_layer") or None,
            state=None if state is None else state[1],
            rate_bytes_per_s=None if rate is None else float(rate[1]) * 1e9 / 8,
            received_bytes=_bytes(folder / "counters" / "port_rcv_data"),
            sent_bytes=_bytes(folder / "counters" / "port_xmit_data"),
            errors=dict(_errors(folder)),
        )


def _errors(folder: Path) -> Iterator[tuple[str, int]]:
    for kind, names in (("counters", PORT_COUNTERS), ("hw_counters", HW_COUNTERS)):
        for name in names:
            count = _count(folder / kind / name)
            if count is not None:
                yield name, count


def _bytes(file: Path) -> int | None:
    count = _count(file)
    return None if count is None else count * _LANE_BYTES


def _count(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isascii() and text.isdecimal() else None


def _text(file: Path) -> str:
    """Its content; "" where the driver does not give it (mlx4 answers "N/A", others EINVAL)."""
    try:
        with file.open("rb") as opened:
            return opened.read(_LONGEST).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _rate(before: int | None, now: int | None, seconds: float | None) -> float | None:
    if before is None or now is None or seconds is None or seconds <= 0 or now < before:
        return None
    return (now - before) / seconds
