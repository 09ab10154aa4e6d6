"""JSON objects that one command alone prints; `llmtop/cli/schema/command.py` lists all others.

The names of the fields are a contract (docs/contracts.md).
"""

from __future__ import annotations

from typing import Any

import msgspec

from llmtop.capture.base.folder import Info


class CaptureListing(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `llmtop captures --json`."""

    folder: str
    bytes: int
    capture: Info
    """What capture.json holds."""
    state: str
    """"done", "failed" or what the capture is doing now."""


class CaptureRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `llmtop captures --remove NAME --json`."""

    removed: str
    """The folder that was removed."""
    bytes: int


class OrphanStop(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `llmtop captures --stop --json`."""

    stopped: str
    """Which orphaned capture was stopped, as a sentence."""


class RunRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """What `llmtop runs delete RUN --json` prints."""

    removed: str
    """Id of the run."""


class CaptureResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `llmtop capture --json` prints of a capture that was taken."""

    folder: str
    trace: str | None
    """Path of the trace; None where the engine wrote none."""
    bytes: int
    copy: str
    """Command that copies the folder to another machine."""
    open: str
    """Command that opens the trace in the viewer of its maker."""
    capture: Info
    """What capture.json holds."""
    report: Any
    """What report.json holds (schemas report, memory, stacks or kernels); None where there is none."""


class CaptureNotTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What `llmtop capture --trigger ... --json` prints where a trigger fired and the capture failed."""

    reason: str
    """What fired."""
    error: str | None


class RecordingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `llmtop record --json` prints at its end."""

    path: str
    snapshots: int
    seconds: float
    """From the first snapshot to the last."""
    bytes: int


class BundleWritten(msgspec.Struct, frozen=True, kw_only=True):
    """What `llmtop doctor --bundle --json` prints."""

    path: str
    bytes: int
    files: list[str]
    """Names of the files in the archive."""


class ConfigSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `llmtop config --json` prints."""

    path: str
    exists: bool
    settings: dict[str, Any]
    """Value of each setting that is not the default, by its dotted name; secrets are masked."""


class KernelCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A hot kernel of a capture, and the command that profiles it with ncu."""

    kernel: str
    kind: str
    kernel_time_pct: float
    count: int
    mean_us: float
    launches: str
    """Which launches ncu profiles, in words."""
    skips_warm_up: bool
    command: str


class KernelCommands(msgspec.Struct, frozen=True, kw_only=True):
    """What `llmtop kernel REPORT --json` prints of a capture."""

    schema: int = 1
    source: str
    """Path of the capture."""
    kernels: list[KernelCommand]


class SymptomEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One symptom of `llmtop which --json`."""

    id: str
    """What `llmtop which` takes."""
    symptom: str
    """What the user sees."""
    tool: str
    """The first tool."""
    command: str
    """Its command; capital words stand for values of the user's."""
    answer: str
    """What the tool answers."""
    alert: str | None = None
    """Id of the live alert on it; None where no rule watches it."""
    fix: str | None = None
    """The usual fix; None where the tool's answer decides."""
    confirm: str | None = None
    """How to confirm the fix; None where `fix` is."""


class SymptomList(msgspec.Struct, frozen=True, kw_only=True):
    """What `llmtop which --json` prints."""

    query: str | None
    """The words of the command line; None where all symptoms are listed."""
    symptoms: list[SymptomEntry]
