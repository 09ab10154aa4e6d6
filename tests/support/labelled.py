"""The captures with a planted bottleneck of tests/data/labelled, unpacked, each in a folder of its own."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from tests.support.data import DATA

SETS = sorted((DATA / "labelled").glob("*.tar.xz"))


def unpacked_set(packed: Path, folder: Path) -> list[tuple[str, Any, Path]]:
    """(name, label, path) of each capture of a set; the path is a file, or a folder with a file for each rank.

    Args:
        packed: one of `SETS`.
        folder: an empty one, to unpack it into.
    """
    with tarfile.open(packed) as tar:
        tar.extractall(folder)
    found = []
    for name, label in json.loads((folder / "labels.json").read_text()).items():
        own = folder / name
        own.mkdir()
        for file in label["files"]:
            (folder / file).rename(own / file)
        found.append((name, label, own if len(label["files"]) > 1 else own / label["files"][0]))
    return found
