"""The rule about steps that take longer than they did; `llmtop.step_history.step_changes` decides it."""

from __future__ import annotations

from typing import Final

from llmtop import format as fmt
from llmtop.model.snapshot import Change
from llmtop.naming.own_phases import OUTSIDE
from llmtop.naming.phase_names import Role, role_of
from llmtop.rules import limits
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.rank import JobState, RankState
from llmtop.rules.state.windows import finite_or_none
from llmtop.step_history.change_point import NORMAL_AFTER_SECONDS

LEAST_FACTOR: Final = limits.CONFIGURED.slower.factor or 1.1
"""Least change worth acting on; smaller ones are not searched for either."""

_NEXT: Final[dict[Role, str]] = {
    "input": "press s for the stacks of the loading thread; look at the disk or network that the data comes from, "
    "and at DataLoader workers",
    "h2d": "pin_memory=True and .to(device, non_blocking=True); look whether batches got larger",
    "comm": "look which rank comes late (press c on another one), and at the network between nodes",
    "sync": "press c to see which work the call waits for",
}
_NEXT_OUTSIDE: Final = (
    "press s for the stacks between two steps: logging, a checkpoint, garbage collection or .item() there"
)
_NEXT_EVERYWHERE: Final = "look what else runs on this machine's CPUs and GPU (top, nvidia-smi or amd-smi)"
_NEXT_COMPUTE: Final = "press c to capture some steps; look for longer sequences, recompilation and lower clocks"
_CAUSE_FIRST: Final[dict[Role, int]] = {
    **dict.fromkeys(("compute", "optimizer", "step"), 1),
    "backward": 2,
    **dict.fromkeys(("sync", "comm"), 3),
}
"""All ranks of a job get slower together. The one whose data comes late is the cause; those that wait for it see
their communication grow, or the backward pass that hides it."""


def _recent_slowdown(state: RankState) -> Change | None:
    """The change of a training that goes on, if its steps have been longer for less than half an hour."""
    rank, change = state.rank, state.rank.change
    # Requests and batches of inference are as long as what they ask for.
    if change is None or rank.kind != "step" or rank.inference or rank.state != "running":
        return None
    before, after, since = (
        finite_or_none(change.before_seconds),
        finite_or_none(change.after_seconds),
        state.changed_at,
    )
    if before is None or after is None or since is None or not 0 < before * LEAST_FACTOR <= after:
        return None
    return change if state.now - since <= NORMAL_AFTER_SECONDS else None


def _most_likely_cause(job: JobState) -> tuple[RankState, Change] | None:
    """The rank that is most likely the cause, and its change."""
    changed = [(state, change) for state in job.ranks if (change := _recent_slowdown(state)) is not None]
    return min(
        changed,
        key=lambda one: (_CAUSE_FIRST.get(_role(one[1]), 0) if one[1].part else 4, one[1].since),
        default=None,
    )


def _role(change: Change) -> Role:
    return "other" if change.part is None or change.part == OUTSIDE else role_of(change.part)


def _is_slower(job: JobState, is_raised: bool) -> bool:
    return _most_likely_cause(job) is not None


def _slower_alert(job: JobState) -> AlertText:
    first = _most_likely_cause(job)
    assert first is not None, "told only while it holds"
    state, change = first
    factor = change.after_seconds / change.before_seconds
    since = state.changed_at
    ago = max(0.0, state.now - since) if since is not None else None
    label = state.label[0].upper() + state.label[1:]
    where = f" ({state.location})" if state.location else ""
    return AlertText(
        severity="warning",
        summary=f"{label}{where} is {_factor_text(factor)} slower since step {change.since_step}, "
        f"{fmt.duration(ago)} ago: {_part_text(change)}.",
        evidence={
            "times_as_long": factor,
            "since_step": change.since_step,
            "before_step_seconds": change.before_seconds,
            "step_seconds": change.after_seconds,
            "part": None if change.part is None else fmt.printable(change.part, 80),
            "part_before_seconds": change.part_before_seconds,
            "part_seconds": change.part_after_seconds,
        },
        next=_next_step(change),
        subject_rank=state,
        since=since,
        points=complete_clauses(*_points(change), f"{_factor_text(factor)} since step {change.since_step}"),
    )


def _factor_text(factor: float) -> str:
    return f"{factor:.{1 if factor >= 2 else 2}f}×"


def _points(change: Change) -> tuple[str, ...]:
    if change.part is None:
        before, after = change.before_seconds, change.after_seconds
        return f"the step {fmt.duration(before)} → {fmt.duration(after)}", "in several parts of it"
    return (_grown_part_text(change, 22),)


def _part_text(change: Change) -> str:
    if change.part is None:
        return ", ".join(_points(change))
    return _grown_part_text(change, 40)


def _grown_part_text(change: Change, width: int) -> str:
    """The part that takes longer, its name in so many characters at most."""
    grown = f"{fmt.duration(change.part_before_seconds)} → {fmt.duration(change.part_after_seconds)}"
    return f"{fmt.shorten_middle(change.part or '', width)} {grown}"


def _next_step(change: Change) -> str:
    if change.part is None:
        return _NEXT_EVERYWHERE
    return _NEXT_OUTSIDE if change.part == OUTSIDE else _NEXT.get(_role(change), _NEXT_COMPUTE)


SLOWER: Final = Rule[JobState](
    id="slower",
    holds=_is_slower,
    describe=_slower_alert,
    # Not by power_capped, in which a healthy GPU is all the time, nor by what bounds the step: that names the
    # cause, this rule names the time.
    covered_by=frozenset({"stalled", "hung_collective", "straggler", "throttled"}),
    text=RuleText(
        meaning="Something changed at that step, for good: the data, the machine, or what the script does. An "
        "evaluation or a checkpoint now and then does not count.",
        condition=f"steps from start to start take at least {LEAST_FACTOR} times what they took before: eight in "
        "a row above what the training's own bursts reached (twice as long at least, four times at most), or the "
        "median of 16 to 512 steps and 1 to 32 s (the smaller the change, the more) beyond what such medians did "
        "before; if all parts of the step are longer together, only after 15 s or a minute; never within the "
        f"first 24 steps after warm-up; for {NORMAL_AFTER_SECONDS / 60:.0f} minutes, or until steps are nearly as "
        "before",
        source="the training's own earlier steps; checked on healthy CPU trainings on a busy machine and on GPU "
        "ones, resampled in blocks, with changes of 15 % to five times planted in them",
        fields=("step_seconds_mean", "step_seconds_p50"),
    ),
)
