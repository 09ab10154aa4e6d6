"""Base of all rules: the condition, its subject, and the alert made of it.

A `Subject` is the state of a GPU, a rank or a job (`rules/state/`). Its times are unix seconds that ignore any
setting of the wall clock after the first snapshot (`llmtop.recording.steady`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from llmtop.format import DASH, round_significant
from llmtop.model.bottlenecks import AlertId
from llmtop.model.severity import Severity
from llmtop.rules.state.rank import RankState

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class RuleText:
    """A rule in words, for the screen; how its alert is called is in `llmtop.model.bottlenecks`."""

    meaning: str
    """Meaning for the training; the sentence of its bottleneck stands before it."""
    condition: str
    """Condition with its thresholds."""
    source: str
    """Where the thresholds come from."""
    hold_seconds: float = 0.0
    """Seconds for which it must hold before the alert is raised; 0: at the first snapshot."""
    clear_seconds: float = 0.0
    """Seconds for which it must not hold before the alert goes."""
    fields: tuple[str, ...] = ()
    """The fields of a `Gpu` or a `Rank` that decide it: what to draw as evidence over time."""


@dataclass(frozen=True)
class AlertText:
    """Result of a rule that holds: severity, numbers, a sentence made of them, and the advice."""

    severity: Severity
    summary: str
    """One sentence with the subject and the numbers."""
    evidence: Mapping[str, float | int | str | None]
    """Numbers with their unit in the key, and names; `present_values` leaves out what is absent."""
    next: str
    """Next action: a key, a command, or a fix."""
    subject_rank: RankState | None = None
    """The rank that is named, where the rule is about a whole job."""
    since: float | None = None
    """Unix time of the begin, where it is known better than by the first snapshot in which it held."""
    points: tuple[str, ...] = ()
    """The reason in clauses that stand alone (`complete_clauses` makes them), the cause first. The first has
    at most `FIRST_CLAUSE` characters, so that a row of 60 columns has room for it beside the badge."""


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One rule over subjects of one kind: a GPU, a rank, or a job (ranks of one training)."""

    id: AlertId
    holds: Callable[[Subject, bool], bool]
    """Return True if the condition holds now; with the flag, its alert is raised, and easier thresholds keep it
    so. False too when it cannot be decided from what is present."""
    describe: Callable[[Subject], AlertText]
    """Return the alert's content; called only while the rule holds."""
    text: RuleText
    covered_by: frozenset[AlertId] = field(default_factory=frozenset)
    """Ids of alerts that are the cause of this one: while one of them is up for the same GPU, process or job,
    this one is not shown."""


SAVE_LESS_OFTEN: Final = "save less often, or in the background (torch.distributed.checkpoint.async_save)"
PROFILE: Final = "press c to profile a few steps"


def stack_advice(who: str, pid: int) -> str:
    """Return how to see what a process does.

    Args:
        who: how the alert calls the process.
        pid: of it.
    """
    return f"press s for the Python stacks of {who}, or run: py-spy dump --pid {pid}"


FIRST_CLAUSE: Final = 42
"""Characters of the first clause of a reason, and of an advice's first clause some more (`FIRST_ADVICE`)."""
FIRST_ADVICE: Final = 54


def complete_clauses(*texts: str) -> tuple[str, ...]:
    """Return the clauses without an absent number in them."""
    return tuple(text for text in texts if text and DASH not in text)


def present_values(evidence: Mapping[str, float | int | str | None]) -> dict[str, Any]:
    """Return the evidence without absent values, rounded to the precision of the instruments.

    Args:
        evidence: numbers with their unit in the key, and names; None for what is absent.
    """
    return {
        key: round_significant(value) if isinstance(value, float) else value
        for key, value in evidence.items()
        if value is not None
    }
