"""The answer about a dead or hung job, as plain typed data for every output."""

from __future__ import annotations

from typing import Literal

import msgspec

from llmtop.format import encode_json

POSTMORTEM_SCHEMA = 1

FailureClass = Literal[
    "exception", "out_of_memory", "killed", "stopped", "gpu_fault", "different_collective", "shape_or_dtype",
    "stall", "storage", "network", "data", "exited", "unknown",
]  # fmt: skip
"""Why a rank is the culprit. "killed": by a signal; "stopped": the process exists and runs nothing (SIGSTOP);
"stall": the GIL, a lock or CPU work keeps it from its next collective; "exited": it ended without an error;
"unknown": the rank is known and the reason is not."""
Confidence = Literal["high", "medium", "low"]


class EvidenceItem(msgspec.Struct, frozen=True, kw_only=True):
    """One fact, and where it was read."""

    text: str
    source: str = ""
    """File below the path that the user named, with the line; "" where several files together show it."""


class WaitingRanks(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that only waited, in one collective for the same ranks."""

    ranks: tuple[int, ...]
    operation: str
    number: int | None = None
    """Number of the collective in its process group; None: the stacks alone show the operation."""
    process_group: str = ""
    waits_for: tuple[int, ...] = ()
    line: str = ""
    """The script's line: "train.py:88 in step"."""


class Culprit(msgspec.Struct, frozen=True, kw_only=True, rename={"failure": "class"}):
    """One rank that failed first."""

    rank: int
    failure: FailureClass
    confidence: Confidence
    summary: str
    """Activity of the rank, in one sentence."""
    evidence: tuple[EvidenceItem, ...]
    """The strongest first."""
    host: str | None = None
    pid: int | None = None
    gpu: str | None = None
    """GPU as the files name it: an index, or a PCI address."""
    role: str | None = None
    """Names of the process groups that the rank is in, without the default one."""
    line: str | None = None
    """The script's line: "train.py:88 in load"."""
    phase: str | None = None
    step: int | None = None
    operation: str | None = None
    """The collective that it has not entered, or that it called differently."""
    process_group: str | None = None
    number: int | None = None


class PostmortemReport(msgspec.Struct, frozen=True, kw_only=True):
    """Post-mortem of a job: the rank that failed first, and the ranks that only waited."""

    schema: int = POSTMORTEM_SCHEMA
    kind: Literal["postmortem"] = "postmortem"
    source: str
    verdict: FailureClass
    """Class of the first culprit. Without one: that of a failure that names no rank where the files show one, else
    "unknown"."""
    summary: str
    confidence: Confidence | None = None
    """Confidence in the first culprit; None where none is named."""
    culprits: tuple[Culprit, ...] = ()
    """Most likely first."""
    waiting: tuple[WaitingRanks, ...] = ()
    """Ordered by which rank waits for which: those that wait for the culprit come first."""
    victims: tuple[int, ...] = ()
    """Ranks that failed because another one had gone."""
    next: tuple[str, ...] = ()
    """Next actions, the most important first."""
    missing: tuple[str, ...] = ()
    """Evidence that is not there and would tell more."""
    candidates: tuple[int, ...] = ()
    """Where no culprit is named: ranks that the evidence does not clear; at most 16."""
    ranks: int | None = None
    """Number of ranks of the job; None: no file has it."""
    files: dict[str, int] = {}
    """Number of files that were read, by kind."""
    notes: tuple[str, ...] = ()
    """Skipped inputs, with the reason."""


_encoder = msgspec.json.Encoder()


def postmortem_json(report: PostmortemReport) -> bytes:
    """Return the report as one line of JSON."""
    return encode_json(report, _encoder.encode)
