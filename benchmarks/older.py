"""What an older commit of this repository costs beside the present one, in turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from benchmarks.result import SkipBenchmark
from tests.support.processes import REPOSITORY, environment

PAIRS = int(os.environ.get("LLMTOP_BENCH_ROUNDS", "5"))


class Cost(NamedTuple):
    """Of one process, from its start to its end."""

    seconds: float
    """Of processor time, its own and the system's for it: other programs run on the machine as well."""
    peak: int
    """Bytes of memory."""


@dataclass(frozen=True)
class Pair:
    """Medians of both."""

    now: Cost
    older: Cost
    ratios: tuple[float, ...]
    """Processor time now over that of the older commit, of each pair."""

    @property
    def seconds(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def peak(self) -> float:
        """Memory now over that of the older commit."""
        return self.now.peak / self.older.peak

    @property
    def note(self) -> str:
        """Both, and how far the pairs differ."""
        now, older = (f"{one.seconds:.2f} s and {one.peak >> 20} MiB" for one in (self.now, self.older))
        spread = f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"
        return f"{now} against {older}; {len(self.ratios)} pairs, {spread}"


def checkout(commit: str, folder: Path) -> None:
    """Put the files of a commit into a folder.

    Args:
        commit: its name.
        folder: an empty one.

    Raises:
        SkipBenchmark: this is no clone that has it.
    """
    packed = subprocess.run(
        ["git", "archive", commit], cwd=REPOSITORY, capture_output=True, check=False, timeout=60
    )
    if packed.returncode != 0:
        raise SkipBenchmark(f"the commit {commit} is not in this clone: git fetch --unshallow")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as tar:
        tar.extractall(folder)


def run_interleaved(root: Path, arguments: list[str], pairs: int = PAIRS) -> Pair:
    """Run `python ARGUMENTS` with the present files and with those below `root`, in turns."""
    costs: list[tuple[Cost, Cost]] = []
    for turn in range(pairs):
        both = {place: cost(place, arguments) for place in (REPOSITORY, root)[:: 1 if turn % 2 else -1]}
        costs.append((both[REPOSITORY], both[root]))
    now, older = (
        Cost(statistics.median(one.seconds for one in side), round(statistics.median(one.peak for one in side)))
        for side in zip(*costs, strict=True)
    )
    return Pair(now, older, tuple(one.seconds / other.seconds for one, other in costs))


def cost(root: Path, arguments: list[str], python: str = sys.executable) -> Cost:
    """What a process costs that finds its modules below `root`.

    Raises:
        RuntimeError: it failed.
    """
    child = subprocess.Popen(
        [python, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=None if python == sys.executable else subprocess.DEVNULL,  # others have much to say
        cwd=root,
        env=environment(PYTHONPATH=str(root)),
    )
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise RuntimeError(f"{' '.join(arguments)} failed")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
