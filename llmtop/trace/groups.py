"""Which values, and which combinations of values, columns have: by counting, since most have few.

`numpy.unique` sorts, which for a million rows takes a tenth of a second each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llmtop.trace.intervals import Ns, Numbers

_SPARE = 1 << 20
"""Places beyond the rows that may be counted in: 8 MiB."""


def distinct_values(column: npt.NDArray[np.signedinteger]) -> Ns:
    """Return the different values of a column, ascending."""
    return rank_values(column, inverse=False)[0]


_FEW = 4
"""Values that are compared one after the other, which needs no more memory than the answer."""
ROWS_AT_ONCE = 1 << 20
"""Rows that are grouped at once: the columns that this takes for a moment stay below 50 MB."""


def distinct_combinations(*columns: npt.NDArray[np.signedinteger]) -> list[tuple[int, ...]]:
    """Return the different combinations of the values of columns of equal length, ascending.

    As `grouped` does, a block of rows at a time: all rows of many ranks would need four more columns for a moment.
    """
    found: set[tuple[int, ...]] = set()
    for first in range(0, len(columns[0]), ROWS_AT_ONCE):
        found.update(_grouped_at_once([column[first : first + ROWS_AT_ONCE] for column in columns])[0])
    return sorted(found)


def grouped(*columns: npt.NDArray[np.signedinteger]) -> tuple[list[tuple[int, ...]], Numbers]:
    """Return the different combinations of the values of columns of equal length, ascending, and which each row
    has."""
    if len(columns[0]) <= ROWS_AT_ONCE:
        return _grouped_at_once(columns)
    rows, parts = len(columns[0]), []
    which = np.empty(rows, dtype=np.int32)
    for first in range(0, rows, ROWS_AT_ONCE):
        block = slice(first, first + ROWS_AT_ONCE)
        own, which[block] = _grouped_at_once([column[block] for column in columns])
        parts.append(own)
    found = sorted(set().union(*parts))
    number = {combination: place for place, combination in enumerate(found)}
    for place, own in enumerate(parts):
        block = slice(place * ROWS_AT_ONCE, (place + 1) * ROWS_AT_ONCE)
        which[block] = np.array([number[combination] for combination in own], dtype=np.int32)[which[block]]
    return found, which


def is_among(
    column: npt.NDArray[np.signedinteger], wanted: Sequence[int] | npt.NDArray[np.signedinteger]
) -> npt.NDArray[np.bool_]:
    """Return for each value of a column whether it is one of those, as `numpy.isin`, which loads numpy.ma."""
    values = distinct_values(np.asarray(wanted, dtype=np.int64))
    if len(values) <= _FEW:
        found = np.zeros(column.shape, dtype=bool)
        for value in values.tolist():
            found |= column == value
        return found
    at = np.minimum(np.searchsorted(values, column), len(values) - 1)
    return np.asarray(values[at] == column)


def count_and_sum(
    which: npt.NDArray[np.signedinteger], values: npt.NDArray[np.signedinteger], groups: int
) -> tuple[Ns, npt.NDArray[np.float64]]:
    """Return how many rows each group has, and the sum of their values: whole numbers, exact below 2**53.

    Args:
        which: the group of each row, from 0.
        values: of each row.
        groups: how many there are.
    """
    counts, sums = np.zeros(groups, dtype=np.int64), np.zeros(groups)
    for first in range(0, len(which), ROWS_AT_ONCE):
        block = slice(first, first + ROWS_AT_ONCE)
        counts += np.bincount(which[block], minlength=groups)
        sums += np.bincount(which[block], weights=values[block], minlength=groups)
    return counts, sums


def least_and_most(
    which: npt.NDArray[np.signedinteger], values: npt.NDArray[np.signedinteger], groups: int
) -> tuple[Ns, Ns]:
    """Return the smallest and the largest value of each group; for a group without rows the largest and the
    smallest number of 64 bits.

    Args:
        which, values, groups: as for `count_and_sum`.
    """
    bounds = np.iinfo(np.int64)
    least, most = np.full(groups, bounds.max, dtype=np.int64), np.full(groups, bounds.min, dtype=np.int64)
    for first in range(0, len(which), ROWS_AT_ONCE):
        block = slice(first, first + ROWS_AT_ONCE)
        order = np.argsort(which[block], kind="stable")
        present, begins = np.unique(which[block][order], return_index=True)
        ordered = values[block][order]
        least[present] = np.minimum(least[present], np.minimum.reduceat(ordered, begins))
        most[present] = np.maximum(most[present], np.maximum.reduceat(ordered, begins))
    return least, most


def _grouped_at_once(columns: Sequence[npt.NDArray[np.signedinteger]]) -> tuple[list[tuple[int, ...]], Ns]:
    """Return `grouped`, with some more columns of all rows for a moment."""
    own, key = rank_values(columns[0])
    if len(columns) == 1:
        return [(value,) for value in own.tolist()], key
    values, sizes = [own], [len(own)]
    for column in columns[1:]:
        own, rank = rank_values(column)
        values.append(own)
        sizes.append(len(own))
        # Ranks are less than the number of rows, so three columns of two million rows fit into 64 bits.
        key *= max(len(own), 1)
        key += rank
        del rank  # for millions of rows, memory that is needed next
    found, which = rank_values(key)
    rows = []
    for number in found.tolist():
        row, left = [], number
        for own, size in zip(reversed(values), reversed(sizes), strict=True):
            left, place = divmod(left, max(size, 1))
            row.append(int(own[place]))
        rows.append(tuple(reversed(row)))
    return rows, which


def rank_values(column: npt.NDArray[np.signedinteger], inverse: bool = True) -> tuple[Ns, Ns]:
    """(the different values of a column, ascending; which of them each row has, unless `inverse` is False)."""
    if not len(column):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    low, high = int(column.min()), int(column.max())
    if low == high:
        return np.array([low], dtype=np.int64), np.zeros(len(column) if inverse else 0, dtype=np.int64)
    if high - low > 2 * len(column) + _SPARE:
        if not inverse:
            # Not np.unique: without options it loads numpy.ma, which takes 30 ms (numpy 2.3 and newer).
            ordered = np.sort(column)
            values = ordered[np.append(True, ordered[1:] != ordered[:-1])].astype(np.int64)
            return values, values
        values, which = np.unique(column, return_inverse=True)
        return values.astype(np.int64), which.reshape(-1).astype(np.int64)
    shifted = column.astype(np.int64) - low if low else column
    present = np.bincount(shifted, minlength=high - low + 1) > 0
    values = np.flatnonzero(present) + low
    if not inverse:
        return values, values
    rank = np.cumsum(present) - 1
    return values, rank[shifted]
