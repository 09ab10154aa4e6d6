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
    """Content of capture.json."""
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
    """Output of `llmtop runs delete RUN --json`."""

    removed: str
    """Id of the run."""


class CaptureResult(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `llmtop capture --json` for a completed capture."""

    folder: str
    trace: str | None
    """Path of the trace; None where the engine wrote none."""
    bytes: int
    copy: str
    """Command that copies the folder to another machine."""
    open: str
    """Command that opens the trace in the viewer of its maker."""
    capture: Info
    """Content of capture.json."""
    report: Any
    """Content of report.json (schemas report, memory, stacks or kernels); None without a report."""


class CaptureNotTaken(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `llmtop capture --trigger ... --json` if a trigger fired and the capture failed."""

    reason: str
    """Trigger that fired."""
    error: str | None


class RecordingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `llmtop record --json` at its end."""

    path: str
    snapshots: int
    seconds: float
    """Time from the first snapshot to the last."""
    bytes: int


class BundleWritten(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `llmtop doctor --bundle --json`."""

    path: str
    bytes: int
    files: list[str]
    """Names of the files in the archive."""


class ConfigSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `llmtop config --json`."""

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
    """Output of `llmtop kernel REPORT --json` for a capture."""

    schema: int = 1
    source: str
    """Path of the capture."""
    kernels: list[KernelCommand]


class SymptomEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One symptom of `llmtop which --json`."""

    id: str
    """Id that `llmtop which` takes."""
    symptom: str
    """Symptom that the user sees."""
    tool: str
    """The first tool."""
    command: str
    """Its command; capital words stand for values of the user's."""
    answer: str
    """Answer that the tool gives."""
    alert: str | None = None
    """Id of the live alert on it; None where no rule watches it."""
    fix: str | None = None
    """The usual fix; None where the tool's answer decides."""
    confirm: str | None = None
    """How to confirm the fix; None where `fix` is."""


class SymptomList(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `llmtop which --json`."""

    query: str | None
    """The words of the command line; None where all symptoms are listed."""
    symptoms: list[SymptomEntry]
