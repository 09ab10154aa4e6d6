"""Where memory snapshots lie: files that are named, and those in the folder of a capture. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmtop.errors import UnusableInput
from llmtop.trace.files.file_kind import Examined, examine

_SUFFIX = ".memory.pickle"
"""Ending of captures' files. Another pickle in a folder may be anything; it is read when it is named itself."""


def memory_files(paths: Sequence[Path]) -> list[Path] | None:
    """Return the memory snapshots that paths lead to; None where they lead to something else.

    Args:
        paths: files, or folders of captures, which have a snapshot a rank.

    Raises:
        UnusableInput: one cannot be read; or snapshots and captures of another kind are mixed.
    """
    files: list[Path] = []
    others: list[Path] = []
    for path in paths:
        found = _in_folder(path) if path.is_dir() else _if_snapshot(examine(path))
        files += found
        others += [] if found else [path]
    if files and others:
        raise UnusableInput(
            f"{others[0]} is not a memory snapshot, but {files[0]} is one: read each kind separately"
        )
    return files or None


def _if_snapshot(file: Examined) -> list[Path]:
    return [file.path] if file.kind == "memory-snapshot" else []


def _in_folder(folder: Path) -> list[Path]:
    try:
        named = sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIX) and path.is_file())
    except OSError as error:
        raise UnusableInput(f"{folder} cannot be read: {error.strerror}; check its permissions") from None
    return [path for path in named if examine(path).kind == "memory-snapshot"]
