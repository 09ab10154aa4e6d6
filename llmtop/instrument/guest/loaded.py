"""Modules of llmtop that a training imports late, seen from another thread than the one that imports them.

`sys.modules` has a module from the first line of its execution on. Until the last line, what it defines may be
missing; to import it would wait for the other thread, which at the end of a process may never go on.
"""

from __future__ import annotations

import sys
from typing import Any


def loaded(name: str) -> Any:
    """Return the module of that name if its import is complete, else None; imports nothing and never waits."""
    module = sys.modules.get(name)
    # Python sets this before it puts the module into sys.modules, and takes it back after the last line.
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module
