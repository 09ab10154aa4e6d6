"""Recordings of the cases, small and nobody's, in one file that grows: it is whole whenever a run is cut short."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from llmtop.errors import LlmtopError
from llmtop.model.snapshot import Snapshot
from llmtop.recording.reader_writer import Reader, Writer
from tests.gpu.trim_recording import shown

LARGEST = 1 << 20


class Recordings:
    """A tar of them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, name: str, file: Path) -> dict[str, object]:
        """Add one as NAME.llmtop; what became of it, for the row."""
        try:
            reader = Reader(file)
            snapshots = [shown(snapshot) for _, snapshot in reader.snapshots()]
            reader.close()
        except (LlmtopError, OSError) as error:
            return {"recording": None, "recording_said": str(error)}
        kept, data = small(snapshots)
        with tarfile.open(self.path, "a") as tar:
            member = tarfile.TarInfo(f"{name}.llmtop")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        return {
            "recording": f"{name}.llmtop",
            "recording_bytes": len(data),
            "recording_snapshots": [kept, len(snapshots)],
        }


def small(snapshots: Sequence[Snapshot], largest: int = LARGEST) -> tuple[int, bytes]:
    """How many of the last snapshots fit into a file of that size, and that file.

    What is before the first rank goes first.
    """
    first = next((i for i, one in enumerate(snapshots) if one.ranks), 0)
    kept = list(snapshots[max(0, first - 2) :])
    while True:
        data = packed(kept)
        if len(data) <= largest or len(kept) < 2:
            return len(kept), data
        kept = kept[max(1, int(len(kept) * (1 - largest / len(data)))) :]


def packed(snapshots: Sequence[Snapshot]) -> bytes:
    """A recording of nobody's machine."""
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        path = Path(folder, "small.llmtop")
        writer = Writer(path, host="node", effort=9)
        for snapshot in snapshots:
            writer.write(snapshot)
        writer.close()
        return path.read_bytes()
