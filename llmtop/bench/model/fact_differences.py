"""Differences between the environments of two benches, and the ones that make their figures hard to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmtop.bench.model.comparison import FactDifference

_MEANT = frozenset({"commit", "command", "changes"})
"""Facts that a comparison usually means to differ."""
_NAMES_ONLY = frozenset({"host", "image", "digest"})
"""A runner of CI is called something else every time, on the same hardware."""


def fact_differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[FactDifference]:
    """Return the facts that differ or that only one has, in the order of the second.

    Args:
        before: the main facts of the baseline's environment.
        after: of the candidate's.
    """
    names = [*after, *(name for name in before if name not in after)]
    return [
        FactDifference(
            name=name,
            before=before.get(name),
            after=after.get(name),
            matters=name not in _MEANT and name not in _NAMES_ONLY,
        )
        for name in names
        if before.get(name) != after.get(name)
    ]


def difference_texts(differs: Sequence[FactDifference]) -> list[str]:
    """Return a clause each: "driver: 570.1 -> 580.2"."""
    return [f"{one.name}: {one.before or 'not told'} -> {one.after or 'not told'}" for one in differs]
