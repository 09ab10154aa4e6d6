"""Both entry points end with a sentence and a documented code in any environment, never in a traceback.

The screen in such environments: `tests/tui/terminal`. Fewer files than any command needs: `test_open_files.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest

from llmtop.errors import EXIT_DONE, EXIT_ENVIRONMENT, EXIT_USAGE
from tests.support.processes import REPOSITORY, environment

TRACE = REPOSITORY / "tests" / "data" / "h200" / "nsys" / "launch_bound.sqlite.gz"
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "once": ("--once",),
    "json": ("--once", "--json"),
    "demo": ("demo",),
    "doctor": ("doctor",),
    "report": ("report", str(TRACE)),
    "runs": ("runs",),
    "which": ("which", "memory", "grows", "--json"),
    "schema": ("schema", "snapshot"),
    "mcp": ("mcp",),
}
SCREEN_CODES = (EXIT_USAGE, EXIT_ENVIRONMENT)
"""Of `demo` without a terminal."""
CLOSED = {0: "<&-", 1: ">&-", 2: "2>&-"}
FEWEST_FILES = 35
"""`llmtop` needs 32 besides the three streams."""


@dataclass(frozen=True)
class Surroundings:
    """What a command starts in, beside the usual environment."""

    variables: Mapping[str, str | None] = field(default_factory=dict)
    """None: without this variable."""
    files: int | None = None
    """Limit of open files."""
    closed: tuple[int, ...] = ()
    """Standard streams that are closed."""


SURROUNDINGS: Final[dict[str, Surroundings]] = {
    **{f"files {limit}": Surroundings(files=limit) for limit in (16, 32, 64)},
    **{
        f"closed {' '.join(map(str, closed))}": Surroundings(closed=closed)
        for count in (1, 2, 3)
        for closed in combinations(CLOSED, count)
    },
    **{
        f"{name}={value}": Surroundings({name: value})
        for name in ("COLUMNS", "LINES")
        for value in ("0", "-1", "1000000000", "abc")
    },
    "TERM=dumb": Surroundings({"TERM": "dumb"}),
    "no TERM": Surroundings({"TERM": None}),
    "no HOME": Surroundings({"HOME": None, "XDG_CONFIG_HOME": None, "XDG_STATE_HOME": None}),
    "HOME is missing": Surroundings({"HOME": "/proc/none", "XDG_CONFIG_HOME": None}),
    "LANG=C": Surroundings({"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "TMPDIR is unwritable": Surroundings({"TMPDIR": "/proc"}),
    "TMPDIR is missing": Surroundings({"TMPDIR": "/proc/none"}),
}
KEPT = (
    "closed 0 1 2-mcp",
    "closed 1-once",
    "closed 0 2-json",
    "COLUMNS=-1-which",
    "no HOME-runs",
    "LANG=C-which",
)


def run(arguments: tuple[str, ...], given: Surroundings, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command: one with an odd number of words by the script where pip has made one, else by the module."""
    variables = environment(LLMTOP_DIR=str(folder))
    for name, value in given.variables.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    script = Path(sys.executable).with_name("llmtop")
    program = [str(script)] if script.exists() and len(arguments) % 2 else [sys.executable, "-m", "llmtop"]
    limit = f"ulimit -n {given.files}; " if given.files else ""
    line = f'{limit}exec "$@" {" ".join(CLOSED[one] for one in given.closed)}'
    return subprocess.run(
        ["sh", "-c", line, "sh", *program, *arguments],
        cwd=REPOSITORY,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="strict" if "LC_ALL" not in given.variables else "replace",
        timeout=240,
        check=False,
    )


def wanted_codes(command: str, given: Surroundings) -> tuple[int, ...]:
    """The exit codes that are right for a command there."""
    if given.files and given.files < FEWEST_FILES:
        return (EXIT_ENVIRONMENT,)
    if command == "demo":
        return SCREEN_CODES
    needed = {"mcp": (0, 1)}.get(command, (1,))
    if not set(given.closed) & set(needed):
        return (EXIT_DONE,)
    # Without a run, runs prints on standard error alone.
    return (EXIT_ENVIRONMENT, EXIT_DONE) if command == "runs" else (EXIT_ENVIRONMENT,)


@pytest.mark.slow("a matrix of real processes; CI alone runs all of it", kept=KEPT)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_a_command_ends_with_a_sentence_and_a_documented_code(name: str, command: str, tmp_path: Path) -> None:
    given = SURROUNDINGS[name]
    tmp_path.chmod(0o700)
    done = run(COMMANDS[command], given, tmp_path)
    assert done.returncode in wanted_codes(command, given), done.stdout[-500:] + done.stderr[-2000:]
    for fault in ("Traceback", "Exception ignored", "Fatal Python error"):
        assert fault not in done.stdout + done.stderr, done.stderr[-2000:]
    if done.returncode != EXIT_DONE and 2 not in given.closed:
        assert done.stderr.startswith("llmtop: "), done.stderr
    if done.returncode == EXIT_DONE and "--json" in COMMANDS[command]:
        for line in done.stdout.splitlines():
            json.loads(line)
