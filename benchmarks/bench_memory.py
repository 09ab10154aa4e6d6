"""From a memory snapshot of a training of 20 GiB to its report: in processor time, as a fresh process takes it."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.large_snapshot import write
from benchmarks.older import Cost, cost
from benchmarks.result import Result
from llmtop.format import size
from llmtop.memory.snapshot import ACTIVE, load
from tests.support.processes import REPOSITORY

RUNS = 5
_MOST_SECONDS = 5.0


def run() -> Iterable[Result]:
    """The report as text and as data, and what grew between two."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        path = write(Path(name) / "large.pickle", native=False)
        yield _figure("a memory snapshot to its report", ["report", str(path)], _MOST_SECONDS, _content_note(path))
        yield _figure("the same, --full --json", ["report", str(path), "--full", "--json"], _MOST_SECONDS)
        yield _figure("two of them compared", ["compare", str(path), str(path)])
        write(path, native=True)
        yield _figure("with frames of C++ too", ["report", str(path)], _MOST_SECONDS, _content_note(path))


def _figure(what: str, arguments: list[str], most: float | None = None, note: str = "") -> Result:
    costs: list[Cost] = [cost(REPOSITORY, ["-m", "llmtop", *arguments]) for _ in range(RUNS)]
    seconds = [one.seconds for one in costs]
    spread = f"{min(seconds):.2f} to {max(seconds):.2f} s, {max(one.peak for one in costs) >> 20} MiB"
    return Result(what, statistics.median(seconds), "s", most, "; ".join(filter(None, (note, spread))))


def _content_note(path: Path) -> str:
    """What is in it."""
    device = load(path).devices[0]
    blocks = int((device.blocks.state == ACTIVE).sum())
    return (
        f"{size(int(device.segment_bytes.sum()))} reserved, {len(device.events):,} events, {blocks:,} live "
        f"blocks, a file of {size(path.stat().st_size)}"
    )
