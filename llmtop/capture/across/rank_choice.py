"""Which ranks of a job a capture is of: the words of --ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmtop.errors import UnusableInput

ACCUSED, ALL, HERE, NODE = "accused", "all", "here", "node:"
_NUMBERS = re.compile(r"^\d{1,6}(,\d{1,6})*$", re.ASCII)


@dataclass(frozen=True)
class RankChoice:
    """Exactly one of these is set."""

    ranks: tuple[int, ...] | None = None
    node: str | None = None
    """All ranks of the node of that name."""
    all: bool = False
    here: bool = False
    """All ranks of this node."""
    accused: bool = False
    """True to choose the accused ranks, and some to compare them with."""

    @classmethod
    def parse(cls, text: str) -> RankChoice:
        """Read "accused", "0,7", "node:NAME", "here" or "all".

        Raises:
            UnusableInput: none of these.
        """
        text = text.strip()
        if text in (ACCUSED, ALL, HERE):
            return cls(accused=text == ACCUSED, all=text == ALL, here=text == HERE)
        if text.startswith(NODE) and len(text) > len(NODE):
            return cls(node=text.removeprefix(NODE))
        if _NUMBERS.match(text):
            return cls(ranks=tuple(sorted({int(number) for number in text.split(",")})))
        raise UnusableInput(f"--ranks {text!r} is none of: accused, 0,7, node:NAME, here, all")


def median_rank(waits_seconds: Mapping[int, float]) -> int | None:
    """Return the rank whose wait is the median, the lower one of two; None without ranks.

    Args:
        waits_seconds: by rank: how long it waits per step for the last rank.
    """
    ranks = sorted(waits_seconds, key=lambda rank: (waits_seconds[rank], rank))
    return ranks[(len(ranks) - 1) // 2] if ranks else None


def add_reference_ranks(accused: Iterable[int], world_size: int, median: int | None = None) -> tuple[int, ...]:
    """Return the ranks to capture where some are accused: with their neighbours, and one that is as most are.

    Args:
        accused: the ranks; none: rank 0 and the one in the middle stand for all.
        world_size: how many there are.
        median: the rank that waits as long as most; None: the one furthest from the first that is accused.
    """
    named = sorted({rank for rank in accused if 0 <= rank < world_size})
    if not named:
        return tuple(sorted({0, world_size // 2}))
    chosen = {rank + by for rank in named for by in (-1, 0, 1)}
    if median is None or median in chosen:
        median = (named[0] + world_size // 2) % world_size
    return tuple(sorted({rank % world_size for rank in (*chosen, median)}))
