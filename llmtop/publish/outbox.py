"""From the ring to messages: what one monitor has not been sent yet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from llmtop import wire
from llmtop.errors import UnusableInput
from llmtop.publish import values
from llmtop.publish.ring import Row

if TYPE_CHECKING:
    from llmtop.publish.state import State

BATCH = 32
"""Steps in one message. To make one takes about 0.1 ms, for which the server thread may hold the training's GIL;
sending it lets go."""


class StepReader:
    """Turns rows of the ring into messages."""

    def __init__(self, recorder: State) -> None:
        self._ring = recorder.ring
        self._names = recorder.paths.names
        self._offset = recorder.facts.unix_offset_ns

    def read(self, first: int, limit: int = BATCH) -> tuple[int, list[wire.StepDone]]:
        """Up to `limit` finished steps from number `first` on, and the number of the first of them."""
        start, rows = self._ring.read(first, limit)
        return start, [self._step(row) for row in rows]

    def _step(self, row: Row) -> wire.StepDone:
        names, cells = self._names, row.cells
        return wire.StepDone(
            row.step_index,
            row.begun_ns + self._offset,
            row.host_ns,
            row.interval_ns if row.interval_ns >= 0 else None,
            _finite(row.tokens),
            _finite(row.samples),
            [
                wire.PhaseTime(names[slot >> 1], cells[slot], cells[slot + 1])
                for slot in range(2, len(cells), 2)
                if cells[slot + 1]
            ],
        )


def _finite(count: float | None) -> float | None:
    number = values.number(count)
    return number if number is not None and math.isfinite(number) else None


def encode_steps(message: wire.Steps) -> bytes:
    """Encode, in two halves when many phases make it too large for one frame."""
    try:
        return wire.encode(message)
    except UnusableInput:
        middle = len(message.steps) // 2
        if middle == 0:
            raise
        head, tail = message.steps[:middle], message.steps[middle:]
        common = {"lost": message.lost, "metrics": message.metrics, "history": message.history}
        first = wire.Steps(steps=head, first_ordinal=message.first_ordinal, **common)  # type: ignore[arg-type]
        second = wire.Steps(steps=tail, first_ordinal=message.first_ordinal + middle, **common)  # type: ignore[arg-type]
        return encode_steps(first) + encode_steps(second)
