"""Steps that wait to be handed over with the next snapshot: so many, and so many bytes of them, and no more."""

from __future__ import annotations

from llmtop.model.snapshot import Step

PENDING_STEPS = 4096
PENDING_BYTES = 2 << 20
"""Size as lines of JSON. A thousand steps with four phases have 0.4 MB; one with 128 long names may have 0.1
MB."""
_STEP_BYTES = 200
_PHASE_BYTES = 64

_Key = tuple[int, float]


class PendingSteps:
    """The newest steps of a training that were not taken yet; the oldest are dropped when there are too many."""

    def __init__(self) -> None:
        self._steps: dict[_Key, Step] = {}
        self._bytes = 0

    def add(self, step: Step) -> int:
        """Take a step in; returns how many older ones went for it."""
        key = step.index, step.started_at
        before = self._steps.get(key)
        if before is not None:
            self._bytes -= _size(before)
        self._steps[key] = step
        self._bytes += _size(step)
        dropped = 0
        while len(self._steps) > PENDING_STEPS or (self._bytes > PENDING_BYTES and len(self._steps) > 1):
            self._bytes -= _size(self._steps.pop(next(iter(self._steps))))
            dropped += 1
        return dropped

    def replace(self, step: Step) -> bool:
        """Replace an earlier form of a step; returns whether the step waits here."""
        if (step.index, step.started_at) not in self._steps:
            return False
        self.add(step)
        return True

    def take(self) -> tuple[Step, ...]:
        """Hand over all steps that wait, oldest first."""
        steps, self._steps, self._bytes = tuple(self._steps.values()), {}, 0
        return steps


def _size(step: Step) -> int:
    return _STEP_BYTES + sum(_PHASE_BYTES + len(phase.name) for phase in step.phases)
