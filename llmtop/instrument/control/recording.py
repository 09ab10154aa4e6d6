"""Interface of a way in which a process records itself at the boundaries of its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder import Recorder


MANY_STEPS = 1 << 30
"""More than a recording by time can have."""


class Recording(ABC):
    """One way to record; all but `is_available`, `refusal` and `write` run in the training thread."""

    engine: str
    """The capture engine that asks for it, by the name that stands in the Hello and in the request."""
    library = "torch"
    """Module that the process must have imported."""
    warmup = 0
    """Steps recorded and thrown away before the first that is kept."""
    least_steps = 1
    """Steps that a recording by time has at least, however long they are."""
    peak_factor = 1.0
    """How many times the memory that a recording grows by is needed when it stops and writes its file."""
    leaves_threads = False
    """True if it starts threads that stay, and that a forked child lacks at its exit."""

    @classmethod
    @abstractmethod
    def is_available(cls, module: Any) -> bool:
        """Return True if a process with this library can have it; imports nothing.

        Args:
            module: the library, which may not be loaded to its end yet.
        """

    @classmethod
    def refusal(cls) -> str:
        """Return why it cannot be had in this process now; "" if it can. In the server thread, and may take
        long."""
        return ""

    @abstractmethod
    def __init__(self, recorder: Recorder, steps: int, options: dict[str, bool]) -> None:
        """Make ready to record.

        Args:
            recorder: whose steps are recorded.
            steps: how many of them; `MANY_STEPS` where something else ends the recording.
            options: by name, what more to record.
        """

    @abstractmethod
    def start(self) -> None:
        """Begin, at a step boundary."""

    def step(self) -> None:  # noqa: B027 - not every recording needs step boundaries
        """A boundary passed, and there are more to come."""

    @abstractmethod
    def stop(self) -> None:
        """End, at a step boundary."""

    @abstractmethod
    def abandon(self) -> None:
        """End at once, wherever the training stands; what was recorded is lost."""

    @abstractmethod
    def write(self, path: str) -> None:
        """Write what was recorded; called in another thread, after `stop`."""
