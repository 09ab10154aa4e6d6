"""A program of `scripts`, and what its header says of it."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "scripts"
_BESIDE = ("digest.py", "hands.py")
_LINE = re.compile(r"#: (?P<key>[\w.]+(\[\w+\])?) = (?P<value>.*)\n")
_KEYS = frozenset(
    {
        "steps",
        "phases",
        "tokens",
        "samples",
        "note",
        "run",
        "exit",
        "env",
        "stdin",
        "needs",
        "by_hand",
        "compiler",
        "passing_threads",
        "slow",
        "hands",
        "line",
        "says",
    }
)
"""Without the run before them and the process after."""


@dataclass(frozen=True)
class Program:
    """One of them."""

    name: str
    path: Path
    """The file that is started."""
    header: dict[str, str]

    def says(self, key: str, run: str = "", process: str = "main") -> str | None:
        """What the header says: of that run ("hands") before what it says of all, of that process alone."""
        where = "" if process == "main" else f"[{process}]"
        return self.header.get(f"{run}.{key}{where}", self.header.get(f"{key}{where}"))

    def command(self, folder: Path) -> list[str]:
        """How it is started in that folder."""
        line = self.says("run") or "{python} {script}"
        known = {"python": sys.executable, "script": self.path.name, "folder": str(folder)}
        return [word.format(**known) for word in shlex.split(line)]

    def environment(self, folder: Path) -> dict[str, str]:
        """What it has in its environment besides."""
        words = shlex.split(self.says("env") or "")
        return {key: value.format(folder=folder) for key, _, value in (word.partition("=") for word in words)}

    def missing(self) -> list[str]:
        """The modules that it needs and this environment lacks."""
        return [name for name in (self.says("needs") or "").split() if importlib.util.find_spec(name) is None]

    def copy_to(self, folder: Path) -> None:
        """Put it there, with all that belongs to it."""
        if self.path.name == "main.py":
            shutil.copytree(self.path.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(parents=True)
            shutil.copy(self.path, folder)
        for name in _BESIDE:
            shutil.copy(HERE / name, folder)


def programs() -> list[Program]:
    """All of the table, by name."""
    paths = [*SCRIPTS.glob("*.py"), *SCRIPTS.glob("*/main.py")]
    found = [read(path.stem if path.parent == SCRIPTS else path.parent.name, path) for path in paths]
    return sorted(found, key=lambda program: program.name)


def read(name: str, path: Path) -> Program:
    """The program in a file.

    Raises:
        ValueError: its header lacks a line, or has one that nobody knows.
    """
    header = {}
    for line in path.read_text().splitlines(keepends=True):
        if not line.startswith("#"):
            break
        if match := _LINE.match(line):
            header[match["key"]] = match["value"].strip()
    unknown = {key for key in header if key.rpartition(".")[2].partition("[")[0] not in _KEYS}
    if unknown or "steps" not in header:
        raise ValueError(f"{path}: the header must say steps, and says {sorted(unknown) or 'nothing of them'}")
    return Program(name, path, header)
