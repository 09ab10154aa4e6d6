"""Base of all engines: support of a process, known before a key is pressed, and recording of a window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import printable
from llmtop.nsys_cli.tool import Option

PERFETTO = "https://ui.perfetto.dev"
SPEEDSCOPE = "https://www.speedscope.app"
"""Web pages that open a trace, and stacks."""


class Refusal(NamedTuple):
    """Why something cannot be had."""

    reason: str
    """One clause, without a full stop."""
    command: str = ""
    """The one command that would change it; "" where none would."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One fact about this machine, for `llmtop doctor`."""

    name: str
    ok: bool | None
    """None: information, neither good nor bad."""
    says: str
    command: str = ""
    """Command that makes the check pass."""


class Engine(ABC):
    """One way to take a capture. It keeps nothing of a process: several threads ask it about many."""

    name: str
    """Name on the command line, in folder names and in capture.json."""
    description: str
    """Content of its captures, in one clause."""
    has_time_report: bool = True
    """True if its captures say where time goes. One for another question is taken only when it is named."""
    report_kind: str = "steps"
    """The kind of its reports, which decides how they are shown: a name in `llmtop.report_kinds.kinds`."""
    has_export_stage: bool = False
    """True if it has the stage "export"."""
    stays_in_process: bool = False
    """True if it cannot leave a process again that it has captured, whose steps may be longer from then on."""
    one_file_for_all: bool = False
    """True if several processes come into one file; else all ranks at once are more than most want."""
    counts_steps: bool = False
    """True if it counts the steps of a process that reports none."""
    is_time_based: bool = False
    """True if its windows are stretches of time, whatever was asked for: all whole steps in one are judged."""
    is_length_only_in_trace: bool = False
    """True if only its trace shows how long it recorded: the file comes later."""
    supports_start_step: bool = False
    """True if it can begin at a step that is named beforehand, the same in all ranks."""
    launch_flag: str = ""
    """The flag of `llmtop run` without which it can capture nothing; "" where it needs none."""
    open_with: str = ""
    """Viewer for its traces: a command, or an address to drop them on; "" where none is needed."""
    options: tuple[Option, ...] = ()
    """Options beyond the defaults, at launch or at each capture."""

    @abstractmethod
    def refusal(self, target: Target) -> Refusal | None:
        """Return why it cannot capture a process that is alive; None if it can. May take 0.1 s."""

    def find_unattached(self, pids: Collection[int]) -> dict[int, bool]:
        """Return the unattached processes that were started so that this engine can capture them.

        Args:
            pids: processes of this user.

        Returns:
            Of those that were: True for one that trains; False for one that only serves a training, as a launcher
            does. A process that is False for one engine is not shown, whatever the others return.
        """
        return {}

    def checks(self) -> list[Check]:
        """Check each requirement of the engine on this machine."""
        return []

    def orphan_messages(self) -> list[str]:
        """Return one sentence for each process that a killed capture left running."""
        return []

    def warning(self, target: Target, options: Collection[str] = ()) -> str:
        """Return a warning to show before a capture of that process with these options, in one clause; "" for
        none."""
        return ""

    def pauses(self, target: Target) -> bool:
        """Return True if it pauses that process unasked."""
        return False

    def available_options(self, pauses: bool) -> list[Option]:
        """Return the options that a capture can have.

        Args:
            pauses: whether it pauses the process unasked.
        """
        return [option for option in self.options if not option.at_launch]

    def option_refusal(self, name: str) -> Refusal | None:
        """Return why one of its options cannot be had on this machine; None if it can."""
        return None

    def check_options(self, names: Collection[str]) -> None:
        """Refuse what cannot be had together, now, or here.

        Args:
            names: of its own options.

        Raises:
            UnusableInput: one belongs on the launch, or two contradict each other.
            NotPossibleHere: this machine does not allow one.
        """
        for option in self.options:
            if option.name not in names:
                continue
            if option.at_launch:
                raise UnusableInput(
                    f"{option.name} must be enabled when the training starts: llmtop run {self.launch_flag} "
                    f"--with {option.name} -- COMMAND"
                )
            refused = self.option_refusal(option.name)
            if refused:
                raise NotPossibleHere(f"{option.name}: {refused.reason}; to change that: {refused.command}")

    @abstractmethod
    def record(self, job: CaptureJob) -> Recorded:
        """Record the window that `job.plan` asks for into `job.folder`.

        Whatever is raised, the training continues and nothing keeps recording it.

        Raises:
            Cancelled: the person asked for an end.
            LlmtopError: one sentence: what went wrong, what was kept and where, how to finish by hand.
        """

    def learn_from_report(self, job: CaptureJob, report: Any) -> None:  # noqa: B027 - most have nothing to learn from it
        """Learn from the report that was made of its traces (a `llmtop.report.model.Report`)."""

    def viewer_file(self, trace: Path) -> Path:
        """Return the file that `open_with` shows, which lies beside a trace that a report is made of, or is it."""
        return trace

    def restart_command(self, target: Target) -> str:
        """Return the command that starts a process again so that this engine can capture it."""
        flag = f"{self.launch_flag} " if self.launch_flag else ""
        return f"llmtop run {flag}-- {printable(target.command or 'COMMAND', 120)}"
