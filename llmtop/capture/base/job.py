"""Model of a capture: targets, engine and window; its progress; and an engine's results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from llmtop.capture.base.step_listener import StepListener
from llmtop.document.model import Document
from llmtop.errors import LlmtopError
from llmtop.protocol.wire import Hello
from llmtop.system import procfs

STAGES = ("prepare", "start", "record", "stop", "export", "analyse", "done")
"""Stages in their order; an engine that does two at once leaves one out."""
DEFAULT_STEPS = 5
DEFAULT_SECONDS = 2.0
"""Where steps cannot be counted: at the lengths of step in use, a handful of them."""
DEFAULT_MEMORY_BYTES = 512 << 20
"""Memory of the training for an engine that records inside it: some 280,000 events of torch.profiler."""


class Cancelled(LlmtopError):
    """The person asked for an end. What was begun has been undone."""

    exit_code = 130
    """Exit code of a shell for a command that ctrl+c ended."""


@dataclass(frozen=True)
class Target:
    """A training process that a capture is taken of."""

    pid: int
    """Pid on this host."""
    rank: int | None = None
    hello: Hello | None = None
    """Its Hello; None when it is not attached."""
    socket: Path | None = None

    @property
    def name(self) -> str:
        """For sentences: "rank 3 (pid 812)"."""
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank} (pid {self.pid})"

    @property
    def file_stem(self) -> str:
        """For file names: "rank3" or "pid812"."""
        return f"pid{self.pid}" if self.rank is None else f"rank{self.rank}"

    @property
    def command(self) -> str | None:
        """The command line of the process; None when it cannot be read."""
        return self.hello.command if self.hello and self.hello.command else procfs.command(self.pid)

    @property
    def can_sample_itself(self) -> bool:
        """Return True if the process can sample its stacks itself."""
        return self.socket is not None and self.hello is not None and self.hello.stacks


@dataclass(frozen=True)
class Plan:
    """Requested capture. Exactly one of `steps` and `seconds` is set."""

    engine: str
    targets: tuple[Target, ...]
    parent: Path
    """The folder in which the capture's own folder is made."""
    steps: int | None = None
    seconds: float | None = None
    options: frozenset[str] = frozenset()
    reason: str = ""
    """Why it was taken, when a trigger fired."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """How much of a training's memory an engine inside it may take for the recording."""
    at_step: int | None = None
    """The first step to be recorded, by the script's own count; None: as soon as may be."""
    wait_seconds: float = 0.0
    """How long that step is expected to be ahead."""
    representative: Target | None = None
    """Training whose command and steps stand for the run, where none of `targets` is requested."""

    @property
    def first(self) -> Target:
        """The process that stands for the run."""
        return self.representative or self.targets[0]

    @property
    def step_sources(self) -> tuple[Target, ...]:
        """Return the targets whose steps are received."""
        return self.targets or ((self.representative,) if self.representative else ())


@dataclass(frozen=True)
class Progress:
    """Progress shown to the waiting person."""

    stage: str
    """One of `STAGES`."""
    detail: str = ""
    steps: int | None = None
    """Whole steps recorded so far; None where they are not counted."""
    wanted: int | None = None
    elapsed: float = 0.0
    """Seconds since the capture was asked for."""


@dataclass(frozen=True)
class CapturedRank:
    """A rank of which there is a trace."""

    rank: int
    pid: int
    """Pid on its host."""
    host: str


@dataclass
class Recorded:
    """Files that an engine left in the folder."""

    traces: list[Path] = field(default_factory=list)
    """Traces for the report, best first; empty where there is nothing to analyse."""
    report: tuple[Document | str, object] | None = None
    """Where the engine makes its own report: the document, or Markdown in a form of its own, and the data."""
    tool: dict[str, str] = field(default_factory=dict)
    """Which program, which version, which session."""
    notes: list[str] = field(default_factory=list)
    """Sentences that the person must read: what is missing and why."""
    seconds: float | None = None
    """Recorded duration of the rank that recorded least; None: that of the job's window."""
    first_step: int | None = None
    last_step: int | None = None
    paused_seconds: list[float] = field(default_factory=list)
    """How long the trainings were paused for it, each time."""
    ranks: list[CapturedRank] | None = None
    """Captured ranks, where these are not the plan's targets: ranks on several nodes."""


OnProgress = Callable[[Progress], None]


class CaptureJob:
    """A running capture as an engine sees it: folder, progress and cancellation."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        watch: StepListener,
        on_progress: OnProgress = lambda progress: None,
        cancelled: threading.Event | None = None,
    ) -> None:
        """Begin the clock; nothing is recorded yet.

        Args:
            plan: what to record, of which processes, and for how long.
            folder: of the capture; exists and is empty.
            watch: receives the steps of the targets.
            on_progress: called in the capturing thread at each change; must be quick and must not raise.
            cancelled: set by the caller to cancel; None: cannot be cancelled.
        """
        self.plan = plan
        self.folder = folder
        self.watch = watch
        self.stage_seconds: dict[str, float] = {}
        self.window: tuple[int, int] | None = None
        """Unix ns from which to which it was recorded, as this process saw it."""
        self.stopped_ns: int | None = None
        """Unix ns at which nothing of it recorded any more."""
        self.stopped_early = ""
        """Why less was recorded than was asked for, in one clause; "" where it is all there."""
        self._on_progress = on_progress
        self._cancelled = cancelled or threading.Event()
        self._began = time.monotonic()
        self._stage = ""
        self._stage_began = self._began

    def stage(self, name: str, detail: str = "") -> None:
        """Enter a stage and report it."""
        self.end_stage()
        self._stage, self._stage_began = name, time.monotonic()
        self.report_progress(detail)

    def end_stage(self) -> None:
        """Note how long the present stage took."""
        if self._stage == "stop":
            self.stopped_ns = time.time_ns()
        if self._stage:
            spent = self.stage_seconds.get(self._stage, 0.0) + time.monotonic() - self._stage_began
            self.stage_seconds[self._stage] = spent
        self._stage = ""

    def report_progress(self, detail: str = "", steps: int | None = None) -> None:
        """Report the progress of the present stage."""
        wanted = self.plan.steps if steps is not None else None
        self._on_progress(Progress(self._stage, detail, steps, wanted, self.elapsed))

    @property
    def elapsed(self) -> float:
        """Seconds since it was asked for."""
        return time.monotonic() - self._began

    @property
    def is_cancelled(self) -> bool:
        """Return True if the person asked for an end."""
        return self._cancelled.is_set()

    def raise_if_cancelled(self) -> None:
        """Raise if the user cancelled the capture.

        Raises:
            Cancelled: they did.
        """
        if self.is_cancelled:
            raise Cancelled("the capture was cancelled; the training continues, and no file was kept")

    def sleep(self, seconds: float) -> None:
        """Wait, or less if cancelled.

        Args:
            seconds: the longest wait.

        Raises:
            Cancelled: the person cancelled before or during the wait.
        """
        self._cancelled.wait(seconds)
        self.raise_if_cancelled()

    @property
    def is_alive(self) -> bool:
        """Return True if any of the processes still runs."""
        return any(procfs.is_alive(target.pid) for target in self.plan.step_sources)
