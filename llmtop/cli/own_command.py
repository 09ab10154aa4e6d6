"""A command of llmtop in a process of its own, for commands that collect what others print."""

from __future__ import annotations

import subprocess
import sys

from llmtop.errors import NotPossibleHere


def run_own_command(*words: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run `llmtop WORDS` to its end, without input; returns what it printed.

    Args:
        words: command, options and arguments.
        seconds: after which it is ended.

    Raises:
        NotPossibleHere: it did not end in time.
    """
    try:
        return subprocess.run(
            [sys.executable, "-m", "llmtop", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise NotPossibleHere(f"llmtop {' '.join(words[:1])} did not end within {seconds:.0f} s") from None
