"""All runs, one after the other: who comes when, and what they come to together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmtop.bench.model import Bench, BenchSettings


@dataclass(frozen=True)
class Variant:
    """One of the commands that are run beside each other."""

    command: tuple[str, ...]
    label: str = ""
    """What it is called; "" where there is one alone."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Set in its environment."""


def interleaved(variants: Sequence[Variant], runs: int) -> list[Variant]:
    """The order of runs: each variant once in every round, first and last in turns.

    So what drifts over minutes (heat, a neighbour) touches all of them alike.
    """
    return [one for turn in range(runs) for one in (variants if turn % 2 == 0 else tuple(reversed(variants)))]


def measure(
    variants: Sequence[Variant],
    settings: BenchSettings,
    out: Path,
    say: Callable[[str], None],
    *,
    bare: bool = False,
) -> Bench:
    """Make all runs and write metrics.json of all of them into `out`, again after each run.

    Args:
        variants: what to run, `settings.runs` times each.
        settings: of every run.
        out: the folder; made if it is not there.
        say: tells the person at the terminal, a sentence each.
        bare: one more run first, without llmtop; needs `settings.to_end`.

    Returns:
        All of it; `state` is "done" only if every run has its window. Otherwise the last run says why.

    Raises:
        UnusableInput: a command cannot be started, or `out` holds the runs of another bench.
        NotPossibleHere: nothing can be written there.
    """
    raise NotImplementedError
