"""The real nsys, where the machine has one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.support.processes import REPOSITORY


def find_nsys() -> str | None:
    """The path of an nsys: `$LLMTOP_NSYS`, else on PATH, else what `make test` fetched to .cache/nsys."""
    given = os.environ.get("LLMTOP_NSYS")
    if given and Path(given).exists():
        return given
    fetched = REPOSITORY / ".cache" / "nsys" / "bin" / "nsys"
    return shutil.which("nsys") or (str(fetched) if fetched.exists() else None)


NO_NSYS = "no nsys: set LLMTOP_NSYS, put it on PATH, or fetch it to .cache/nsys"
"""Why a test that needs one was left out."""
