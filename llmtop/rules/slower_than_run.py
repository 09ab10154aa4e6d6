"""Steps that are longer than in an earlier run of the same command and hardware; a part of the rule `slower`."""

from __future__ import annotations

import time
from typing import Final

from llmtop import format as fmt
from llmtop.model.run_reference import FIRST_SECONDS, RunReference
from llmtop.model.snapshot import Rank, Window
from llmtop.rules.rule import PROFILE, AlertText, complete_clauses
from llmtop.rules.state.rank import JobState, RankState
from llmtop.rules.state.windows import finite_or_none

_LEAST_SECONDS: Final = 60.0
"""Time of steps from start to start, since a busy machine makes some steps longer."""
_LEAST_STEPS: Final = 50
_AS_MUCH_WORK: Final = 0.02


def slower_than_run(job: JobState, least_factor: float) -> tuple[RankState, RunReference, float] | None:
    """Return the rank that has a reference, the reference, and how many times as long its steps take.

    None where they do not take that long, do other work, or where there is no reference.

    Args:
        job: its ranks.
        least_factor: times the reference's step.
    """
    for state in job.ranks:
        reference = state.rank.reference
        if reference is None or not state.is_stepping or not _is_young(state):
            continue
        median = _lasting_median(state.rank)
        before = finite_or_none(reference.step_seconds_p50)
        if median is None or not before or not _does_as_much(state.rank, reference):
            continue
        if median >= least_factor * before:
            return state, reference, median / before
    return None


def than_run_alert(job: JobState, least_factor: float) -> AlertText:
    """Return the alert; called only while `slower_than_run` finds something."""
    found = slower_than_run(job, least_factor)
    assert found is not None, "called only while the rule holds"
    state, reference, factor = found
    where = f" ({state.location})" if state.location else ""
    day = time.strftime("%-d %b", time.localtime(reference.started))
    more = f"{100 * (factor - 1):.0f} %"
    now, before = fmt.duration(factor * reference.step_seconds_p50), fmt.duration(reference.step_seconds_p50)
    return AlertText(
        severity="warning",
        summary=f"Steps of {state.label}{where} are {more} slower than in the run of {day} (run:{reference.run}): "
        f"{before} → {now}.",
        evidence={
            "times_as_long": factor,
            "reference_run": reference.run,
            "reference_step_seconds": reference.step_seconds_p50,
            "step_seconds": factor * reference.step_seconds_p50,
        },
        next=f"run llmtop compare run:{reference.run} run:; {PROFILE}",
        subject_rank=state,
        since=state.unshifted(state.rank.attached_at),
        points=complete_clauses(f"{more} slower than run:{reference.run}", f"step {before} → {now}"),
    )


def _is_young(state: RankState) -> bool:
    attached = state.unshifted(state.rank.attached_at)
    return attached is not None and state.now - attached <= FIRST_SECONDS


def _lasting_median(rank: Rank) -> float | None:
    """Return the least of the medians of long enough windows and of the recent one, so that steps are still
    that long."""
    long_enough = [window for window in rank.windows if _is_long_enough(window)]
    medians = [finite_or_none(window.step_seconds_p50) for window in long_enough]
    recent = finite_or_none(rank.step_seconds_p50)
    known = [median for median in (*medians, recent) if median is not None]
    return min(known) if long_enough and recent is not None else None


def _is_long_enough(window: Window) -> bool:
    return window.seconds >= _LEAST_SECONDS and window.steps >= _LEAST_STEPS


def _does_as_much(rank: Rank, reference: RunReference) -> bool:
    """Return True if a step has as many tokens and samples; also where neither script counts them."""
    rate = finite_or_none(rank.steps_per_s)
    for per_second, before in (
        (rank.tokens_per_s, reference.tokens_per_step),
        (rank.samples_per_s, reference.samples_per_step),
    ):
        known = finite_or_none(per_second)
        if (known is None) != (before is None):
            return False
        if known is not None and before and (not rate or abs(known / rate / before - 1) > _AS_MUCH_WORK):
            return False
    return True
