"""Differences between two runs, as plain typed data. Field names are a contract (docs/contracts.md)."""

from __future__ import annotations

import msgspec


class RunSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of the runs."""

    id: str
    name: str
    """Name from its launcher or user; empty without one."""
    started: float
    """Unix time."""
    wall_seconds: float
    how: str
    """How it ended, as of `AttemptReport`."""
    steps: int
    first_step: int | None
    last_step: int | None
    """Last step of the lowest rank, by the script's count."""
    tokens_per_step: float | None
    samples_per_step: float | None
    """Both: of one rank, the median."""
    world_size: int | None
    gpu_model: str | None


class StretchChange(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of both runs: the same steps, or the same time since the start."""

    first: float
    last: float
    """Last value: for steps their number; for time the seconds since the start of the run."""
    step_seconds_before: float | None
    step_seconds_after: float | None
    """Median from start to start."""
    change_pct: float | None
    last_step_before: int | None
    last_step_after: int | None
    """Number of the last step that had ended by the end of the stretch."""
    values_before: dict[str, float]
    values_after: dict[str, float]
    """The last logged value of each name by then."""


class ValueChange(msgspec.Struct, frozen=True, kw_only=True):
    """A logged value of both runs."""

    name: str
    step: int | None
    """The last step that both runs have made; None where they have none in common."""
    before: float | None
    after: float | None
    """Value at that step, as far as minutes show it."""
    last_before: float | None
    last_after: float | None
    """The last of each run."""


class SignalChange(msgspec.Struct, frozen=True, kw_only=True):
    """A signal of the GPUs of both runs, mean over GPUs and time; from what monitors have seen."""

    field: str
    """Field of `llmtop.model.snapshot.Gpu`."""
    unit: str
    before: float | None
    after: float | None
    gpu_hours_before: float
    gpu_hours_after: float
    """GPU hours that were observed."""


class RunRegime(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of one run whose steps are alike."""

    side: str
    """"before" or "after"."""
    first_step: int
    """The first step of it; where only minutes are kept, the first of that minute."""
    last_step: int
    elapsed_seconds: float
    """Time from the start of the run to the regime's begin."""
    step_seconds: float
    """Median from start to start."""
    kind: str
    """How it began: "start", "jump", or "drift": it becomes slower or faster all the time."""
    change_pct: float | None
    """Change of the step at its beginning; for a drift from its beginning to its end."""


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between two runs."""

    before: RunSide
    after: RunSide
    by_step: tuple[StretchChange, ...] = ()
    """Steps that both have made, in stretches; of steps that were made again, the last time."""
    by_time: tuple[StretchChange, ...] = ()
    regimes: tuple[RunRegime, ...] = ()
    """Regimes of both runs; empty for a run that is too short to be searched."""
    values: tuple[ValueChange, ...] = ()
    signals: tuple[SignalChange, ...] = ()
    """Empty where no monitor has seen the GPUs of both."""
