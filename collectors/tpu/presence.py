"""Detects TPUs without loading a library."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_GOOGLE = "0x1ae0"
_TPUS = frozenset({"0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"})
"""PCI device ids of v2 to v7x; Google's network cards and disks have others."""
DEVICES = Path("/sys/bus/pci/devices")


def chip_count() -> int:
    """Return how many PCI devices of this machine are TPUs."""
    return sum(
        _text(device / "vendor") == _GOOGLE and _text(device / "device") in _TPUS for device in DEVICES.glob("*")
    )


def has_binding() -> bool:
    """Return True if the package tpu-info is installed for this Python, with gRPC."""
    return find_spec("tpu_info") is not None and find_spec("grpc") is not None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
