"""A bench as people start it: by the command line, over real trainings, on the CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.processes import environment

PLAIN = """
import signal, sys, time
import llmtop
steps, ends = int(sys.argv[1]), sys.argv[2]
if ends == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
for index in range(steps):
    with llmtop.step(tokens=100):
        time.sleep(0.005)
    if ends == "crash" and index == 400:
        sys.exit(7)
"""
"""A loop that knows llmtop and needs no torch: so many steps of 5 ms."""

Bench = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Start `llmtop bench` with these options over PLAIN: ``bench(["--runs", "1"], steps=100, ends="well")``."""
    (tmp_path / "train.py").write_text(PLAIN)

    def start(
        options: list[str],
        steps: int = 1_000_000,
        ends: str = "well",
        *,
        command: Sequence[str] | None = None,
        wrapped: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        words = command or [sys.executable, "train.py", str(steps), ends]
        own = [sys.executable, "-m", "llmtop", "bench", "--warmup", "5", "--out", "a"]
        return subprocess.Popen(
            [*wrapped, *own, *options, "--", *words],
            cwd=tmp_path,
            env=environment(LLMTOP_DIR=str(tmp_path / "s")),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
