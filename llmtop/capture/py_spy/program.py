"""py-spy as a program: its path, and its rate where it pauses the process."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from llmtop.errors import NotPossibleHere

NATIVE_RATE_HZ = 5
"""Samples per second. At each of them the process is stopped, for tens of milliseconds on a busy machine
(docs/measurements.md)."""


def find_py_spy() -> Path:
    """py-spy's program: beside this Python, else on PATH.

    Raises:
        NotPossibleHere: it is not there.
    """
    beside = Path(sys.executable).with_name("py-spy")
    if beside.is_file():
        return beside
    on_path = shutil.which("py-spy")
    if on_path is None:
        raise NotPossibleHere("py-spy is not installed: pip install py-spy")
    return Path(on_path)
