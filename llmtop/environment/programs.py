"""Running the small programs that know what is to be known: nvidia-smi, git, a Python."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_for_text(
    command: Sequence[str],
    *,
    seconds: float = 10.0,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    most: int = 8 << 20,
) -> str | None:
    """Return what a program prints.

    Args:
        command: program and arguments; no shell.
        seconds: time limit, after which it is killed.
        folder: where it runs; None: here.
        variables: its whole environment; None: this process's.
        most: characters after which the text is cut.

    Returns:
        stdout with invalid UTF-8 replaced; None when the program is missing, fails, or exceeds its time.
    """
    raw = run_for_bytes(command, seconds=seconds, folder=folder, variables=variables)
    return None if raw is None else raw.decode(errors="replace").replace("\r\n", "\n")[:most]


def run_for_bytes(
    command: Sequence[str],
    *,
    seconds: float = 10.0,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> bytes | None:
    """Return the whole standard output of a program; None if the program is missing, fails or takes too long.

    Args:
        command: the program and its arguments.
        seconds: time after which the program is killed.
        folder: working directory; None: the current one.
        variables: environment; None: that of this process.
    """
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
            cwd=folder,
            env=None if variables is None else dict(variables),
        )
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return done.stdout if done.returncode == 0 else None
