"""A capture in a process that kills itself with SIGKILL at a stage: what `kill -9` of llmtop leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from llmtop.capture import take, targets
from llmtop.capture.base.job import Plan, Progress, Target
from tests.support.processes import REPOSITORY, environment


def kill_capture_at(stage: str, target: Target, captures: Path, engine: str, *options: str) -> None:
    """Take a capture of five steps until that stage."""
    command = [
        sys.executable,
        "-m",
        "tests.capture.killed",
        stage,
        str(target.pid),
        str(captures),
        engine,
        *options,
    ]
    done = subprocess.run(command, env=environment(), cwd=REPOSITORY, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL


def _capture(stage: str, pid: str, captures: str, engine: str, *options: str) -> None:
    def die(progress: Progress) -> None:
        if progress.stage == stage:
            os.kill(os.getpid(), signal.SIGKILL)

    chosen = targets.choose_targets([int(pid)])
    take.take(Plan(engine, chosen, Path(captures), steps=5, options=frozenset(options)), die)


if __name__ == "__main__":
    _capture(*sys.argv[1:])
