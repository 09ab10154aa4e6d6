"""Which values, and which combinations of values, columns have: by counting, since most have few.

`numpy.unique` sorts, which for a million rows takes a tenth of a second each time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmtop.trace.intervals import Ns

_SPARE = 1 << 20
"""Places beyond the rows that may be counted in: 8 MiB."""


def distinct_values(column: npt.NDArray[np.signedinteger]) -> Ns:
    """Return the different values of a column, ascending."""
    return rank_values(column, inverse=False)[0]


def grouped(*columns: npt.NDArray[np.signedinteger]) -> tuple[list[tuple[int, ...]], Ns]:
    """Return the different combinations of the values of columns of equal length, ascending, and which each row
    has."""
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
            values = np.unique(column).astype(np.int64)
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
