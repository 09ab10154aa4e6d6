"""What a recorder knows of its parts: as little as it uses of them.

The parts know the recorder (a server reads it, a pause takes its hook), so the recorder must not know them: it
sees these protocols, and is given the parts by whoever makes them.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from llmtop.instrument.record.phase_tree import Node

Kind = Literal["step", "request"]


class OpenStep(Protocol):
    """A step that is open."""

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
        """End it; an exception's is not counted."""


class BoundaryObserver(Protocol):
    """Who else is told when phases and steps begin and end; in the training thread."""

    def begin(self, node: Node) -> None:
        """A phase begins."""

    def end(self, node: Node) -> None:
        """A phase ends."""

    def give_up(self, node: Node) -> None:
        """An open phase is not counted after all."""

    def move(self, slot: int, target: int) -> None:
        """What was recorded for one slot belongs to another."""

    def begin_step(self) -> None:
        """A step begins."""

    def end_step(self) -> None:
        """A step ends."""


class Overlapping(Protocol):
    """Steps and phases that are told by their thread and task; each call is of whoever makes it."""

    def open_step(self) -> OpenStep | None:
        """The step that the calling thread and task has open."""

    def enter(self, name: str) -> None:
        """A phase begins here."""

    def exit(self, name: str, now: int) -> None:
        """A phase ends here, at `now` (perf_counter ns)."""

    def cancel(self, name: str) -> None:
        """The innermost phase ends here and is not counted."""

    def enter_step(self, step: OpenStep) -> None:
        """A step begins here."""

    def exit_step(self, step: OpenStep, now: int, failed: bool) -> None:
        """A step ends at `now` (perf_counter ns), in whatever thread or task."""


class PublishingServer(Protocol):
    """The thread that serves monitors."""

    def start(self) -> None:
        """Begin to listen."""

    def stop(self) -> None:
        """Say goodbye and end; waits for the thread."""

    def forget_after_fork(self) -> None:
        """In a forked child: the thread and its sockets are the parent's."""
