"""Global ranks of files whose path has only a local rank: by the ranks that other files of the node name."""

from __future__ import annotations

import re
from pathlib import PurePath

from llmtop.postmortem.evidence import Evidence, InputFile

_LOCAL = re.compile(r"^(?P<node>.*attempt_\d+)/(?P<local>\d{1,6})/[^/]+$")


def place_local_ranks(evidence: Evidence) -> None:
    """Replace the local ranks of torchrun's folders by global ones, or by None where nothing names them.

    With one launcher both are the same. With several, each has a folder per local rank.
    """
    nodes: dict[str, list[tuple[int, InputFile]]] = {}
    for file in evidence.files:
        if (found := _LOCAL.match(file.path)) is not None:
            nodes.setdefault(found["node"], []).append((int(found["local"]), file))
    hosts = _first_ranks(evidence)
    for node, files in nodes.items():
        offset = _offset(files)
        if offset is None:
            offset = next((hosts[part] for part in PurePath(node).parts if part in hosts), None)
        if offset is None and len(nodes) == 1:
            offset = 0
        for local, file in files:
            if not file.is_certain:
                _rename(evidence, file, None if offset is None else local + offset)


def _offset(files: list[tuple[int, InputFile]]) -> int | None:
    """First global rank of a node: where its files agree."""
    offsets = {file.rank - local for local, file in files if file.is_certain and file.rank is not None}
    return offsets.pop() if len(offsets) == 1 else None


def _first_ranks(evidence: Evidence) -> dict[str, int]:
    """First global rank of each host, by the tables of launchers: rank less local rank."""
    found: dict[str, set[int]] = {}
    for end in evidence.ends:
        if end.host and end.rank is not None and end.local_rank is not None:
            found.setdefault(end.host, set()).add(end.rank - end.local_rank)
    return {host: next(iter(ranks)) for host, ranks in found.items() if len(ranks) == 1}


def _rename(evidence: Evidence, file: InputFile, rank: int | None) -> None:
    before, file.rank = file.rank, rank
    for facts in (evidence.errors, evidence.stacks, evidence.marks):
        for fact in facts:
            if fact.place.file == file.path and fact.rank == before and fact.pid is None:
                fact.rank = rank
