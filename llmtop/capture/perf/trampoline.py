"""Detects a Python that names its functions to perf: its perf trampoline, from 3.12 on.

It is only used where the training was started with it (PYTHONPERFSUPPORT=1 or -X perf).
`sys.activate_stack_trampoline` could switch it on for a window, but that takes the interpreter's one hook for
evaluating frames, which torch.compile needs for itself: a training that compiles would lose one or the other. So
llmtop never does.
"""

from __future__ import annotations

import re

from llmtop.errors import NotPossibleHere
from llmtop.system import procfs

_ASKED = re.compile(r"(?:^| )-X ?(?:perf|perf_jit)(?: |$)")


def is_active(pid: int) -> bool:
    """Return True if the process was started with it."""
    try:
        variables = procfs.environ(pid)
    except NotPossibleHere:
        variables = {}
    return variables.get("PYTHONPERFSUPPORT", "0") not in ("", "0") or bool(
        _ASKED.search(procfs.command(pid) or "")
    )
