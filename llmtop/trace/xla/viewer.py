"""The package xprof, which reads XLA's own files of traces: whether it is here. Loads nothing heavy."""

from __future__ import annotations

import importlib.util

from llmtop.naming import file_names

ENDING = file_names.XSPACE
INSTALL = "pip install xprof"


def is_xprof_installed() -> bool:
    """Return whether xprof is installed, without importing it."""
    return importlib.util.find_spec("xprof") is not None
