"""One run of the command: started, measured, ended, and its files written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llmtop.bench.model import BenchRun, BenchSettings


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What one run is to be."""

    number: int
    """From 1, over all variants."""
    folder: Path
    """Its own, inside that of all runs; made if it is not there."""
    command: tuple[str, ...]
    settings: BenchSettings
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """What the command is started with, as a whole."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What is set in it besides, for this run; told in metrics.json."""
    label: str = ""
    """Which variant it is of."""
    attached: bool = True
    """False: a bare run, without llmtop; whole, as it needs `settings.to_end`."""
    say: Callable[[str], None] = print
    """Tells the person at the terminal what is waited for, a sentence each."""


def run_once(request: RunRequest) -> BenchRun:
    """Run the command once, and write recording, gpu.csv, environment.json and metrics.json into its folder.

    A command that crashes, never steps or ends early is no error here: `BenchRun.ended`, `window` and `notes` say
    so. After ctrl+c or SIGTERM the run is "interrupted", and nothing more should be started.

    Raises:
        UnusableInput: there is no such command, or it cannot be executed.
        NotPossibleHere: the folder cannot be written, or its disk is full.
    """
    raise NotImplementedError
