"""The real nsys, where the machine has one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.processes import REPOSITORY

_LAUNCHER = Path(__file__).resolve().parents[1] / "starved_nsys" / "launcher.c"


def find_nsys() -> str | None:
    """The path of an nsys: `$LLMTOP_NSYS`, else on PATH, else what `make test` fetched to .cache/nsys."""
    given = os.environ.get("LLMTOP_NSYS")
    if given and Path(given).exists():
        return given
    fetched = REPOSITORY / ".cache" / "nsys" / "bin" / "nsys"
    return shutil.which("nsys") or (str(fetched) if fetched.exists() else None)


NO_NSYS = "no nsys: set LLMTOP_NSYS, put it on PATH, or fetch it to .cache/nsys"
"""Why a test that needs one was left out."""


def starved_nsys(folder: Path, tool: Path, times: int) -> Path:
    """Make an nsys that gives up at its first launches because its launcher is late, as on a busy machine.

    Args:
        folder: where to make it; a file `launched-N` appears there with each launch.
        tool: the real nsys.
        times: how many launches it gives up.
    """
    path = folder / "nsys"
    late = f"LLMTOP_STARVED_MS=3000 LD_PRELOAD={_build(_LAUNCHER)} exec {tool}"
    path.write_text(
        f"""#!/bin/sh
[ $1 = launch ] || exec {tool} "$@"
n=1
while [ -e {folder}/launched-$n ]; do n=$((n + 1)); done
: > {folder}/launched-$n
[ $n -gt {times} ] && exec {tool} "$@"
{late} "$@"
"""
    )
    path.chmod(0o755)
    return path


def _build(source: Path) -> Path:
    key = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"llmtop-nsys-{os.getuid()}-{key}"
    library = folder / "launcher.so"
    if not library.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        fresh = library.with_name(f"{os.getpid()}.so")
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", str(fresh)]
        subprocess.run([*command, str(source), "-ldl"], check=True, timeout=240)
        fresh.replace(library)
    return library
