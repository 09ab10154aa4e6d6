"""Rank and attempt that a path names: torchrun's --log-dir, "rank_3.log", "nccl_trace_rank_3"."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from pathlib import PurePath

_ATTEMPT = re.compile(r"^attempt_(\d{1,4})$")
_WORDS = re.compile(
    r"(?:^|[^a-z])(?:global[_-]?rank|rank|worker|trainer|task|proc|process|r)[_.=-]?(\d{1,6})(?![\d])", re.I
)
_LAST_NUMBER = re.compile(
    r"(?:^|[^\d])(\d{1,6})(?:\.(?:log|err|out|txt|json|pickle|pkl|stdout|stderr|dump|fr|bin|gz|bz2|xz|zst))*$",
    re.I,
)
_ROTATED = re.compile(r"[.-]\d{1,8}(?:\.(?:gz|bz2|xz|zst))?$")
_NO_RANKS = re.compile(r"^slurm-|^dmesg|^kern|^messages|^syslog|^nccl[_-]?ras|^ras", re.I)


_LARGEST_NUMBER = 4096
"""A larger bare number in a name is a pid or a job."""


def rank_of_path(path: PurePath, *, is_lone: bool = False) -> int | None:
    """Return the rank that a path names; None where it names none.

    Args:
        path: relative to the folder that the user named, or the file's name.
        is_lone: a bare number in its name is no rank (`lone_numbers`).
    """
    parts = path.parts
    for place, part in enumerate(parts[:-2]):
        if _ATTEMPT.match(part) and parts[place + 1].isdigit():
            return int(parts[place + 1])
    name = parts[-1] if parts else ""
    if _NO_RANKS.match(name):
        return None
    if (found := _WORDS.search(name)) is not None:
        return int(found[1])
    if len(parts) > 1 and (parts[-2].isdigit() and len(parts[-2]) <= 6):
        return int(parts[-2])
    if len(parts) > 1 and (found := _WORDS.search(parts[-2])) is not None:
        return int(found[1])
    found = _LAST_NUMBER.search(name) if not is_lone else None
    return int(found[1]) if found is not None and int(found[1]) < _LARGEST_NUMBER else None


def without_rotation(name: str, names: Container[str]) -> str:
    """Return a name without the number of its rotation: "0.log.1" beside "0.log" is an older part of that log."""
    base = _ROTATED.sub("", name)
    return base if base != name and base in names else name


def lone_numbers(paths: Iterable[PurePath]) -> set[PurePath]:
    """Return the paths whose bare number is no rank: no file beside it has another one ("error_191.err").

    Args:
        paths: of all logs, relative to the folder that the user named.
    """
    alike: dict[tuple[PurePath, str], dict[PurePath, str]] = {}
    for path in paths:
        found = _LAST_NUMBER.search(path.name)
        if found is not None and _WORDS.search(path.name) is None:
            pattern = path.name[: found.start(1)] + path.name[found.end(1) :]
            alike.setdefault((path.parent, pattern), {})[path] = found[1]
    return {path for numbers in alike.values() if len(set(numbers.values())) == 1 for path in numbers}


def attempt_of_path(path: PurePath) -> int | None:
    """Return which restart of torchrun a file is of; None where the path names none."""
    for part in path.parts:
        if (found := _ATTEMPT.match(part)) is not None:
            return int(found[1])
    return None
