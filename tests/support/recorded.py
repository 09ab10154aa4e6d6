"""What the recorder of this process holds, as a monitor would be sent it."""

from __future__ import annotations

import msgspec

from llmtop.instrument.record.recorder import Recorder, get
from llmtop.instrument.serve.step_messages import StepReader
from llmtop.protocol import wire


def steps_of(recorder: Recorder) -> list[wire.StepDone]:
    """All finished steps that the ring still holds, as a monitor decodes them."""
    return msgspec.convert(StepReader(recorder).read(0, 1 << 20)[1], list[wire.StepDone])


def ring_times(recorder: Recorder) -> list[tuple[int, ...]]:
    """Index, begin, duration and interval of each row of the ring, in ns; -1 for no interval."""
    return [row[:4] for row in recorder.ring.rows[: recorder.ring.count]]


def ring_phases(recorder: Recorder, number: int = -1) -> dict[str, tuple[int, int]]:
    """Time in ns and count of each phase of a row of the ring."""
    cells = recorder.ring.rows[: recorder.ring.count][number][6:]
    names = recorder.paths.names
    found = {names[slot // 2]: cells[slot : slot + 2] for slot in range(0, len(cells), 2)}
    return {name: pair for name, pair in found.items() if pair != (0, 0)}


class Recorded:
    """The process's recorder, and what a monitor would be sent of it."""

    def __init__(self) -> None:
        self.recorder: Recorder = get()

    @property
    def steps(self) -> list[wire.StepDone]:
        """All finished steps."""
        return steps_of(self.recorder)

    @property
    def step(self) -> wire.StepDone:
        """The only one."""
        (only,) = self.steps
        return only

    @property
    def left_out(self) -> list[str]:
        """The reasons for which something is not in the numbers."""
        return list(self.recorder.left_out)


def names(step: wire.StepDone) -> list[str]:
    """The phases of a step."""
    return [phase.name for phase in step.phases]


def top_level_ns(step: wire.StepDone) -> int:
    """What the phases add up to that are not within another."""
    return sum(phase.host_ns for phase in step.phases if "/" not in phase.name)
