"""Finds whether a sample is of a phase, where the training thread ran on before it could be sampled.

A sampler that waits for Python's lock gets it where the training thread gives the lock up, most often in an
operator of the next phase. The sample is of code before that; the stamps of phases show which phase had ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from llmtop.instrument.steps.ring import FIELDS, MASK

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State
    from llmtop.instrument.serve.lock_wait import LockWait
    from llmtop.instrument.steps.phase_tree import PhaseNode


class SampledMoment(NamedTuple):
    """Place of a sample among the phases of the step."""

    is_outside: bool
    """True if it is of no phase."""
    is_present: bool
    """True if no phase has begun since: the stack is of the same code."""
    passed: tuple[str, ...] = ()
    """Names of the phases that began before it, the last one first."""
    before: str = ""
    """Name of the first phase that has begun since; "" where none has."""

    @property
    def phase_before(self) -> str:
        """The phase that began last before it; "" where unknown."""
        return self.passed[0] if self.passed else ""


OF_NO_PLACE: Final = SampledMoment(is_outside=False, is_present=True)
"""Place of a sample where steps overlap."""


def sampled_moment(recorder: State, wait: LockWait) -> SampledMoment:
    """Return the place of the present sample; to be called before this thread gives up the lock.

    Args:
        recorder: of a training whose steps do not overlap.
        wait: how this thread got the lock.
    """
    node, root = outermost(recorder), recorder.root
    phases = list(root.children.values())
    since, latest = wait.was_held_since_ns, None
    if since is not None and (node is root or node.begun > since):
        latest = wait.latest_ns  # reads a file, so only where it can matter
    begun = sorted(phases, key=_begin_ns, reverse=True)
    if latest is None:
        return SampledMoment(node is root, True, tuple(one.name for one in begun))
    passed = [one for one in begun if one.begun <= latest]
    since_then = begun[: len(begun) - len(passed)]
    if node is root:
        ended = _end_ns(recorder, passed[0]) if passed else None
        is_outside = ended is None or ended <= latest
    else:  # had it ended in this step before, the sample may be of that time
        is_outside = node.begun > latest and not _count(recorder, node)
    before = since_then[-1].name if since_then else ""
    return SampledMoment(is_outside, not since_then, tuple(one.name for one in passed), before)


def outermost(recorder: State) -> PhaseNode:
    """Return the outermost open phase; the root where none is open."""
    node, root = recorder.node, recorder.root
    while node.parent is not root and node is not root:
        node = node.parent
    return node


def _begin_ns(node: PhaseNode) -> int:
    return node.begun


def _count(recorder: State, node: PhaseNode) -> int:
    """Return how often a phase has ended in the step that runs."""
    return recorder.cells[node.slot + 1] if node.slot + 1 < len(recorder.cells) else 0


def _end_ns(recorder: State, node: PhaseNode) -> int | None:
    """Return when a phase ended, as perf_counter ns; None where it has run several times in its step."""
    cells, slot = recorder.cells, node.slot
    if not _count(recorder, node) and recorder.ring.count:
        row = recorder.ring.rows[(recorder.ring.count - 1) & MASK]
        if row[1] <= node.begun <= row[1] + row[2]:
            cells, slot = list(row), slot + FIELDS
    if slot + 1 >= len(cells) or cells[slot + 1] != 1:
        return None
    return node.begun + int(cells[slot])
