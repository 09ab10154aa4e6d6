"""Detects AMD GPUs without loading AMD's library."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

_AMD = "0x1002"


def gpu_count() -> int:
    """Return how many GPUs AMD's kernel driver has here; those built into a CPU count too."""
    if not os.path.isdir("/sys/module/amdgpu"):
        return 0
    vendors = (
        _text(file) for file in Path("/sys/class/drm").glob("card[0-9]*/device/vendor") if "-" not in file.parts[4]
    )
    return sum(vendor == _AMD for vendor in vendors)


def library() -> str | None:
    """Return the path of libamd_smi.so, searched in the binding's own places; None if not found."""
    home = os.environ.get("ROCM_HOME", os.environ.get("ROCM_PATH"))
    folders = [os.path.join(home, "lib")] if home else []
    folders += [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    paths = (os.path.join(folder, "libamd_smi.so") for folder in (*folders, "/opt/rocm/lib"))
    return next((path for path in paths if os.path.exists(path)), None)


def has_binding() -> bool:
    """Return True if the package amdsmi is installed for this Python."""
    return find_spec("amdsmi") is not None


def may_have_gpus() -> bool:
    """Return True if there is a GPU of AMD's, or the library that would know."""
    return gpu_count() > 0 or library() is not None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
