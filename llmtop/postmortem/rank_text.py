"""Ranks in sentences."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_RANGES = 12


def rank_list(ranks: Sequence[int]) -> str:
    """Return ranks as a text: "rank 5", "ranks 0-3, 6"."""
    parts: list[str] = []
    first = last = None
    for rank in [*sorted(ranks), None]:
        if first is not None and last is not None and rank == last + 1:
            last = rank
            continue
        if first is not None:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = rank
    shown = ", ".join(parts[:_MOST_RANGES]) + (", …" if len(parts) > _MOST_RANGES else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"
