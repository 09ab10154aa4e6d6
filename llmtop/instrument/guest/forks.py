"""Objects of the CUDA driver are never destroyed in a forked child.

CUDA does not work there. The destructor of an event, or of pinned memory that a copy used, calls the driver all
the same, which fails, and its error in a destructor ends the process: a DataLoader's worker that was forked after
the first steps was aborted, and the training with it. So the child gives what it inherits a reference more, which
nothing takes back, not even the interpreter's own end.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

_holders: list[weakref.ref[Any]] = []
_kept: list[Any] = []
"""Only where there is no ctypes, which torch needs itself: these live until the interpreter ends."""


def keep_in_children(holder: object) -> None:
    """Call it once with what holds events or pinned memory: whatever it leads to outlives every forked child.

    Args:
        holder: may be collected in this process as ever.
    """
    _holders.append(weakref.ref(holder, _holders.remove))


def _keep() -> None:
    for reference in _holders.copy():
        holder = reference()
        if holder is None:
            continue
        native = getattr(sys.modules.get("ctypes"), "pythonapi", None)
        if native is None:
            _kept.append(holder)
        else:
            # By index it is llmtop's own function object: a script may have set other argument types on the
            # attribute's.
            native["Py_IncRef"](sys.modules["ctypes"].py_object(holder))
    _holders.clear()


# Before what makes a child forget: children's callbacks are called in the order in which they were registered.
os.register_at_fork(after_in_child=_keep)
