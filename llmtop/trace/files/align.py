"""Clock offsets between several files, from the ends of the collectives that their ranks were in together.

A collective of all ranks ends on all of them within its last transfer, whichever rank came late. The files of one
machine agree anyway; those of several machines agree only as far as their clocks were set alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llmtop.naming.communication import collective_of
from llmtop.naming.kernel_names import is_collective
from llmtop.trace import model
from llmtop.trace.groups import is_among
from llmtop.trace.intervals import Ns

FEWEST = 8
"""Fewest common collectives for an offset."""
MOST_SPREAD_NS = 200_000
NEARLY_ALL = 90
"""Distance from their median of so many percent of the ends; more, and they were not the same collectives."""
LEAST_NS = 200_000
"""Less is left as it is: the ends themselves are no closer."""
_TIGHT_NS = 30_000
"""Tolerance: on two H100 the ends of the same collectives were 5 to 27 µs apart, those of others mostly more."""
_MOST = 2000
_MOST_LAGS = 256
_TOGETHER = frozenset({"AllReduce", "AllGather", "ReduceScatter", "AllToAll"})
"""Which end on all ranks at once; a broadcast or a send ends earlier on some."""


class ClockOffset(NamedTuple):
    """Offset of one file's clock from another's, in ns."""

    ns: int
    collectives: int
    """Number of collectives used."""


class CollectiveEnds(NamedTuple):
    """When the collectives of one trace ended."""

    ends: Ns
    """In ns of the trace's clock, in the order in which they began."""
    kinds: tuple[tuple[str, int], ...]
    """Kind and size of each."""


def clock_offset(first: model.Trace, other: model.Trace, shift: int) -> ClockOffset | None:
    """Return how far the other's times are ahead of the first's, in ns; None where unknown or negligible.

    Args:
        first: one file.
        other: another one, of another rank.
        shift: what is added to the other's times for their origins.
    """
    one, two = collective_ends(first), collective_ends(other)
    coarse = _step_shift(first, other, shift)
    found = []
    for lag in range(-min(_MOST_LAGS, len(one.ends)), min(_MOST_LAGS, len(one.ends)) + 1):
        mine, theirs = slice(max(0, lag), None), slice(max(0, -lag), None)
        count = min(len(one.ends[mine]), len(two.ends[theirs]))
        if count < FEWEST or one.kinds[mine][:count] != two.kinds[theirs][:count]:
            continue
        apart = two.ends[theirs][:count] + shift - one.ends[mine][:count]
        median = int(np.median(apart))
        spread = float(np.percentile(np.abs(apart - median), NEARLY_ALL))
        if spread <= MOST_SPREAD_NS:
            found.append((spread, ClockOffset(median, count)))
    best = min(_comparable_matches(found), key=lambda one: abs(one.ns - coarse), default=None)
    return best if best is not None and abs(best.ns) > LEAST_NS else None


def _comparable_matches(found: list[tuple[float, ClockOffset]]) -> list[ClockOffset]:
    """Return the matches that are about as good as the best: steps are alike, so some may be whole steps apart.

    Of these the one that agrees with the steps' own numbers, or else with the clocks, is used.
    """
    if not found:
        return []
    tight = max(2 * min(spread for spread, _ in found), _TIGHT_NS)
    most = max(one.collectives for _, one in found)
    return [one for spread, one in found if spread <= tight and 2 * one.collectives >= most]


def collective_ends(trace: model.Trace) -> CollectiveEnds:
    """Return the ends of the collectives of the largest group that end on all ranks at once."""
    ops = trace.ops
    named = {number: name for number, name in enumerate(trace.names) if is_collective(name)}
    chosen = ops.select((ops.kind == model.KERNEL) & is_among(ops.full_name, list(named)))
    if len(chosen) and chosen.ranks.max() > 0:
        chosen = chosen.select(chosen.ranks == chosen.ranks.max())
    chosen = chosen.select(np.argsort(chosen.start, kind="stable")[:_MOST])
    told = [
        _collective_kind(trace.names, said, kernel)
        for said, kernel in zip(chosen.collective, chosen.full_name, strict=True)
    ]
    together = np.array([kind in _TOGETHER for kind in told], dtype=bool)
    kept = chosen.select(together)
    kinds = tuple(zip((kind for kind in told if kind in _TOGETHER), kept.bytes.tolist(), strict=True))
    return CollectiveEnds(kept.end, kinds)


def _collective_kind(names: list[str], said: int, kernel: int) -> str:
    found = collective_of(names[said]) if said else "other"
    return collective_of(names[kernel]) if found == "other" else found


def _step_shift(first: model.Trace, other: model.Trace, shift: int) -> int:
    """Return how far the same steps are apart where both number theirs, else 0: right to about a step."""
    one, two = _step_starts(first), _step_starts(other)
    apart = [two[name] + shift - one[name] for name in one.keys() & two.keys()]
    return int(np.median(apart)) if apart else 0


def _step_starts(trace: model.Trace) -> dict[str, int]:
    """Return when each step that has a number began, by its range's name."""
    numbers = [number for number, name in enumerate(trace.names) if name.startswith("ProfilerStep#")]
    ranges = trace.ranges.select(is_among(trace.ranges.name, numbers))
    return {
        trace.names[name]: start for name, start in zip(ranges.name.tolist(), ranges.start.tolist(), strict=True)
    }
