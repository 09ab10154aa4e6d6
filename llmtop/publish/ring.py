"""The last finished steps, in memory that is laid out once; written by the training, read by the server thread."""

from __future__ import annotations

from llmtop.publish.phases import Paths

SIZE = 2048
"""Steps kept; a power of two."""
MASK = SIZE - 1

Head = tuple[int, int, int, int, object, object]
"""index, begun (perf_counter ns), host ns, ns since the step before began (-1: none), tokens, samples."""


class Ring:
    """One writer, any number of readers, no lock.

    The writer fills row `count & MASK` and only then raises `count`. A reader copies and then looks at `count`
    again: what the writer may have reached meanwhile it throws away.
    """

    __slots__ = ("count", "heads", "paths", "rows")

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.count = 0
        """Steps finished since the process attached."""
        self.heads: list[Head | None] = [None] * SIZE
        self.rows: list[list[int]] = [[0, 0] for _ in range(SIZE)]

    def oldest(self) -> int:
        """The number of the oldest step that can still be read."""
        return max(0, self.count - SIZE + 1)

    def read(self, first: int, limit: int) -> tuple[int, list[tuple[Head, list[int]]]]:
        """Copy up to `limit` steps from number `first` on.

        Returns:
            the number of the first step copied, larger than `first` when the ring has turned over; and the steps.
        """
        start = max(first, self.oldest())
        stop = min(self.count, start + limit)
        copied = []
        for number in range(start, stop):
            head = self.heads[number & MASK]
            assert head is not None
            copied.append((head, self.rows[number & MASK].copy()))
        overrun = min(max(0, self.oldest() - start), len(copied))
        return start + overrun, copied[overrun:]
