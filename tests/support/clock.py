"""A wall clock that a test sets, for child processes (tests/clock_stub), built with gcc.

clock = Clock(tmp_path / "clock")
subprocess.Popen([...], env={**environment(), **clock.environment()})
clock.step(3600.0)      # NTP sets the clock of all of them an hour forward
clock.suspend(3600.0)   # the machine sleeps for an hour
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).resolve().parents[1] / "clock_stub" / "clock.c"
_OFFSETS = struct.Struct("=qq")


class Clock:
    """The wall clock of the processes that were started with `environment()`."""

    def __init__(self, path: Path) -> None:
        """Make the file at `path` that they read; the clock is right to begin with."""
        self._path = path
        self._wall = self._boot = 0.0
        self._write()

    def environment(self, *, old_waits: bool = False) -> dict[str, str]:
        """What a child process needs in its environment.

        Args:
            old_waits: its Python waits by the wall clock, as those built for a glibc before 2.30 do.
        """
        old = {"LLMTOP_CLOCK_OLD_WAITS": "1"} if old_waits else {}
        return {"LD_PRELOAD": str(build()), "LLMTOP_CLOCK": str(self._path), **old}

    def step(self, seconds: float) -> None:
        """Set the wall clock forward, or back, from its present time."""
        self._wall += seconds
        self._write()

    def suspend(self, seconds: float) -> None:
        """Have the machine sleep: the wall clock and the boot clock go on, the monotonic clock has stood."""
        self._boot += seconds
        self.step(seconds)

    def _write(self) -> None:
        data = _OFFSETS.pack(round(self._wall * 1e9), round(self._boot * 1e9))
        if not self._path.exists():
            self._path.write_bytes(data)
            return
        with self._path.open("r+b") as file:  # in place: it is mapped
            file.write(data)


def build(source: Path = _SOURCE) -> Path:
    """Compile a library for LD_PRELOAD, once for each source, and return it."""
    key = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"llmtop-{source.stem}-{os.getuid()}-{key}"
    library = folder / f"{source.stem}.so"
    if not library.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        fresh = library.with_name(f"{os.getpid()}.so")
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", str(fresh)]
        subprocess.run([*command, str(source)], check=True, timeout=240)
        fresh.replace(library)
    return library
