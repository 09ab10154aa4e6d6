"""The rule about steps that take longer than they did; `llmtop.step_history.step_changes` decides it."""

from __future__ import annotations

from typing import Final, NamedTuple

from llmtop import format as fmt
from llmtop.model.snapshot import Change
from llmtop.naming.own_phases import OUTSIDE, phase_label
from llmtop.naming.phase_names import Role, role_of
from llmtop.rules import limits
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.slower_than_run import slower_than_run, than_run_alert
from llmtop.rules.state.rank import JobState, RankState
from llmtop.rules.state.windows import finite_or_none
from llmtop.step_history.change_point import NORMAL_AFTER_SECONDS

LEAST_FACTOR: Final = limits.CONFIGURED.slower.factor or 1.1
"""Least change worth acting on; smaller ones are not searched for either."""

_NEXT: Final[dict[Role, str]] = {
    "input": "press s for the Python stacks of the data loader; check the disk or network of the data, and the "
    "DataLoader workers",
    "h2d": "set pin_memory=True, and .to(device, non_blocking=True); check if batches became larger",
    "comm": "press c on another rank to find the straggler; check the network between nodes",
    "sync": "press c to profile the work that the call waits for",
}
_NEXT_OUTSIDE: Final = (
    "press s for the Python stack between steps; check for logging, checkpoints, garbage collection and .item()"
)
_NEXT_EVERYWHERE: Final = "check for other programs on the CPUs and the GPU (top, nvidia-smi or amd-smi)"
_NEXT_COMPUTE: Final = "press c to profile a few steps; check for longer sequences, recompilation and lower clocks"
_NEXT_WORK: Final = "no action if the change is intended; compare tokens per second, not the time of a step"
_CAUSE_FIRST: Final[dict[Role, int]] = {
    **dict.fromkeys(("compute", "optimizer", "step"), 1),
    "backward": 2,
    **dict.fromkeys(("sync", "comm"), 3),
}
"""All ranks of a job get slower together. The one whose data comes late is the cause; those that wait for it see
their communication grow, or the backward pass that hides it."""


class AddedWork(NamedTuple):
    """Work that a step has more than before the change."""

    kind: str
    """"sequences", "accumulation" (more samples per step), or "tokens" where samples are unknown."""
    unit: str
    before: float
    after: float
    longest_factor: float
    """The longest that this work alone makes a step, as a factor."""

    @property
    def clauses(self) -> tuple[str, str]:
        """The cause, and the work per step or sample before and since."""
        numbers = f"{fmt.number(self.before)} → {fmt.number(self.after)} {self.unit}"
        return _WORK_CAUSES[self.kind], numbers


_WORK_CAUSES: Final = {
    "sequences": "longer sequences",
    "accumulation": "gradient accumulation or a larger batch",
    "tokens": "more tokens per step",
}


def _ratio(before: float | None, after: float | None) -> float | None:
    before, after = finite_or_none(before), finite_or_none(after)
    return after / before if before and after and before > 0 else None


def _added_work(change: Change) -> AddedWork | None:
    """Return the larger of the two ways in which a step has more work; None where it has no more, or unknown.

    Samples cost in proportion. Length costs up to its square, by attention.
    """
    samples = _ratio(change.samples_before, change.samples_after)
    tokens = _ratio(change.tokens_before, change.tokens_after)
    length = tokens if tokens is None else tokens / (samples or 1.0)
    longest = (samples or 1.0) * (1.0 if length is None else max(length, length**2) if length > 1 else length)
    if max(samples or 1.0, length or 1.0) <= 1.0:
        return None
    if length is not None and tokens is not None and length >= (samples or 1.0):
        before, after = change.tokens_before or 0.0, change.tokens_after or 0.0
        if samples is None:
            return AddedWork("tokens", "tokens per step", before, after, longest)
        before, after = before / (change.samples_before or 1.0), after / (change.samples_after or 1.0)
        return AddedWork("sequences", "tokens per sample", before, after, longest)
    before, after = change.samples_before or 0.0, change.samples_after or 0.0
    return AddedWork("accumulation", "samples per step", before, after, longest)


def _is_explained(change: Change) -> bool:
    """Return True if more work per step explains the longer steps, to less than the least change."""
    added = _added_work(change)
    return added is not None and change.after_seconds < LEAST_FACTOR * added.longest_factor * change.before_seconds


def _recent_slowdown(state: RankState) -> Change | None:
    """Return the change of a training that goes on, if its steps have been longer for less than half an hour."""
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
    """Return the rank that is most likely the cause, and its change."""
    changed = [(state, change) for state in job.ranks if (change := _recent_slowdown(state)) is not None]
    return min(
        changed,
        key=lambda one: (
            _is_explained(one[1]),
            _CAUSE_FIRST.get(_role(one[1]), 0) if one[1].part else 4,
            one[1].since,
        ),
        default=None,
    )


def _role(change: Change) -> Role:
    return "other" if change.part is None or change.part == OUTSIDE else role_of(change.part)


def _is_slower(job: JobState, is_raised: bool) -> bool:
    return _most_likely_cause(job) is not None or slower_than_run(job, LEAST_FACTOR) is not None


def _slower_alert(job: JobState) -> AlertText:
    first = _most_likely_cause(job)
    if first is None:
        return than_run_alert(job, LEAST_FACTOR)
    state, change = first
    factor = change.after_seconds / change.before_seconds
    since = state.changed_at
    ago = max(0.0, state.now - since) if since is not None else None
    where = f" ({state.location})" if state.location else ""
    added, is_explained = _added_work(change), _is_explained(change)
    why = ", ".join(added.clauses) if added is not None and is_explained else _part_text(change)
    return AlertText(
        severity="info" if is_explained else "warning",
        summary=f"Steps of {state.label}{where} take {_factor_text(factor)} as long as before since step "
        f"{change.since_step:,}, {_ago_text(ago)}: {why}.",
        evidence={
            "times_as_long": factor,
            "since_step": change.since_step,
            "before_step_seconds": change.before_seconds,
            "step_seconds": change.after_seconds,
            "part": None if change.part is None else fmt.printable(change.part, 80),
            "part_before_seconds": change.part_before_seconds,
            "part_seconds": change.part_after_seconds,
            **_work_evidence(change, added),
        },
        next=_NEXT_WORK if is_explained else _next_step(change),
        subject_rank=state,
        since=since,
        points=complete_clauses(
            *(added.clauses if added is not None and is_explained else _points(change)),
            f"{_factor_text(factor)} as long since step {change.since_step:,}",
        ),
    )


def _work_evidence(change: Change, added: AddedWork | None) -> dict[str, float | str | None]:
    """Return what changed in the work of a step; nothing where it is the same or unknown."""
    if added is None:
        return {}
    return {
        "work": added.kind,
        "before_tokens_per_step": change.tokens_before,
        "tokens_per_step": change.tokens_after,
        "before_samples_per_step": change.samples_before,
        "samples_per_step": change.samples_after,
    }


def _factor_text(factor: float) -> str:
    return f"{factor:.{1 if factor >= 2 else 2}f}x"


def _ago_text(seconds: float | None) -> str:
    return f"{fmt.duration(None if seconds is None else float(round(seconds)))} ago"


def _points(change: Change) -> tuple[str, ...]:
    if change.part is None:
        before, after = change.before_seconds, change.after_seconds
        return f"step {fmt.duration(before)} → {fmt.duration(after)}", "several phases are longer"
    return (_grown_part_text(change, 22),)


def _part_text(change: Change) -> str:
    if change.part is None:
        return ", ".join(_points(change))
    return _grown_part_text(change, 40)


def _grown_part_text(change: Change, width: int) -> str:
    """Return the part that takes longer, its name in so many characters at most."""
    grown = f"{fmt.duration(change.part_before_seconds)} → {fmt.duration(change.part_after_seconds)}"
    return f"{fmt.shorten_middle(phase_label(change.part or ''), width)} {grown}"


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
        meaning="At that step the data, the machine or the code of the script changed, and the change lasts. Rare "
        "evaluations and checkpoints do not count.",
        condition=f"steps take at least {LEAST_FACTOR} times as long as before: eight steps in a "
        "row are longer than all earlier groups of long steps, or the "
        "median of 16 to 512 steps is above all earlier such medians. If "
        "all phases are longer at once, only after 15 s to 60 s. A note (INFO) if more samples or "
        "longer sequences explain it. Never in the first 24 steps after warm-up. It ends after "
        f"{NORMAL_AFTER_SECONDS / 60:.0f} minutes, or when steps are nearly as short as before. Or "
        f"in the first hour: the median over 60 s is {LEAST_FACTOR} times that of the first hour of an earlier "
        "run. That is the last run of the same command that ended in order; its GPU model, world size, tokens and "
        "samples per step are the same",
        source="earlier steps of the same training; checked on healthy CPU trainings on a busy machine and on GPU "
        "trainings, resampled in blocks, with planted changes of 15 % to 5x",
        fields=("step_seconds_mean", "step_seconds_p50"),
    ),
)
