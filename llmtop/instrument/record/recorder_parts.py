"""Protocols of a recorder's parts: no more than the recorder uses.

The parts know the recorder (a server reads it, a pause takes its hook), so the recorder must not import them: it
has these protocols, and gets the parts from their makers.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from llmtop.instrument.steps.phase_tree import PhaseNode

Kind = Literal["step", "request"]


class OpenStep(Protocol):
    """A step that is open, as a context."""

    tokens: float | None
    samples: float | None
    kind: Kind
    index: int | None
    track: Any
    """Where overlapping steps keep what they have of it."""

    def __enter__(self) -> Any:
        """Begin it, unless it is the step that has just begun."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the step; one that an exception leaves is not counted."""


class BoundaryObserver(Protocol):
    """Notified when phases and steps begin and end, in the training thread."""

    def begin(self, node: PhaseNode) -> None:
        """Called when a phase begins."""

    def end(self, node: PhaseNode) -> None:
        """Called when a phase ends."""

    def give_up(self, node: PhaseNode) -> None:
        """Called when an open phase ends and is not counted."""

    def move(self, slot: int, target: int) -> None:
        """Count what was recorded in the open step for one slot to another."""

    def begin_step(self) -> None:
        """Called when a step begins."""

    def end_step(self) -> None:
        """Called when a step ends."""


class PhaseObserver(Protocol):
    """Notified of phases alone."""

    def begins(self, node: PhaseNode) -> None:
        """Called when a phase, or the step, begins."""

    def ends(self, node: PhaseNode) -> None:
        """Called when a phase, or the step, ends."""


class WorkingTime(Protocol):
    """How long another thread of llmtop's has worked, in nanoseconds."""

    busy_ns: int
    """Time for which it has worked so far."""
    ran_ns: int
    """Part of this time in which the training thread ran."""


class MeasuredCosts(Protocol):
    """Time that llmtop takes from the training thread, in nanoseconds."""

    periodic_ns: int
    """Processor time between steps so far, in all."""
    native_id: int
    """The system's number of the training thread."""
    others: list[WorkingTime]
    """Working times of llmtop's other threads, for which the training may wait."""

    @property
    def has_samples(self) -> bool:
        """Return True if anything has been measured yet."""

    def cold_ns(self) -> float:
        """Return the cost of one entry of a phase with cold caches."""

    def warm_ns(self) -> float:
        """Return the cost of one entry of a phase right after others."""

    def sample(self, recorder: Any, now: int) -> None:
        """Measure again if it is due; called between steps in the training thread.

        Args:
            recorder: the state that holds this; it is left as it was.
            now: `perf_counter_ns`, which the caller has read anyway.
        """


class Overlapping(Protocol):
    """Steps and phases identified by thread and task; each call belongs to the calling thread and task."""

    thread: int | None
    """Thread of the first step; None before."""

    def open_step(self) -> OpenStep | None:
        """Return the step that the calling thread and task has open."""

    def enter(self, name: str) -> None:
        """A phase begins in the calling thread or task."""

    def exit(self, name: str, now: int) -> None:
        """A phase ends in the calling thread or task, at `now` (perf_counter ns)."""

    def cancel(self, name: str) -> None:
        """End the innermost phase of the calling thread or task without counting it."""

    def enter_step(self, step: OpenStep) -> None:
        """A step begins in the calling thread or task."""

    def exit_step(self, step: OpenStep, now: int, failed: bool) -> None:
        """A step ends at `now` (perf_counter ns), in whatever thread or task."""


class PublishingServer(Protocol):
    """The thread that serves monitors."""

    def start(self) -> None:
        """Start the thread, and wait a moment until it listens."""

    def wake(self) -> None:
        """Wake the thread to send what is new; from any thread, never blocks."""

    def stop(self) -> None:
        """Send what is left, and wait a moment for the thread to end."""

    def forget_after_fork(self) -> None:
        """In a forked child: close the sockets, which are the parent's as the thread is."""
