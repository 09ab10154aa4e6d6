"""The launcher in each of its forms, and small programs to start with it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.nsys import NO_NSYS, find_nsys
from tests.support.processes import environment

LLMTOP = [sys.executable, "-m", "llmtop", "run"]


class Launcher:
    """`llmtop run` with some options; `environment` is what it is to be called with."""

    def __init__(self, options: list[str]) -> None:
        self.options = options
        self.environment = environment(LLMTOP_NSYS=find_nsys() or "")
        # what an nsys around the tests may have put there, and a coverage tool's own hook
        for name in ("NSYS_PROFILING_SESSION_ID", "LD_PRELOAD"):
            self.environment.pop(name, None)

    @property
    def nsys(self) -> bool:
        """Whether the command is to run in an nsys session."""
        return "--nsys" in self.options

    def __call__(self, *command: str) -> list[str]:
        """The whole command line."""
        return [*LLMTOP, *self.options, "--", *command]


@pytest.fixture(params=["run", pytest.param("run --nsys", marks=pytest.mark.nsys)])
def launcher(request: pytest.FixtureRequest, runtime_dir: Path) -> Launcher:
    """`llmtop run` as it is, and with --nsys: both must keep the same promises."""
    options = request.param.split()[1:]
    if options and find_nsys() is None:
        pytest.skip(NO_NSYS)
    return Launcher(options)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Writes a program to a file and returns the command that runs it."""

    def write(source: str) -> list[str]:
        path = tmp_path / f"training{len(list(tmp_path.iterdir()))}.py"
        path.write_text(source)
        return [sys.executable, str(path)]

    return write
