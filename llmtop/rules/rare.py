"""The rule for rare steps that take much longer, which `llmtop.step_history.rare_steps` finds.

A checkpoint or an evaluation is normal work, so the alert is a note. Where it takes much of the time it is a
warning, since no other rule shows that time.
"""

from __future__ import annotations

from typing import Final

from llmtop import format as fmt
from llmtop.model.snapshot import Cause, RareSteps
from llmtop.naming.own_phases import OUTSIDE
from llmtop.naming.phase_names import role_of
from llmtop.rules.outside import advice_for, alike_causes
from llmtop.rules.rule import SAVE_LESS_OFTEN, AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.rank import RankState
from llmtop.rules.state.windows import finite_or_none
from llmtop.step_history.rare_steps import most_text, rare_steps_text

LOST_PCT: Final = (5.0, 3.5)
"""Percent of the time, beyond the time of the usual steps: to raise and to stay raised."""
WARNING_PCT: Final = 20.0

_LOADING: Final = (
    "set persistent_workers=True in the DataLoader (needs num_workers of 1 or more); press s during a long step "
    "for the Python stacks"
)
_DEFAULT_ADVICE: Final = (
    "press s during a long step for the Python stacks; if it evaluates or saves, do so less often"
)


def _lost_pct(rare: RareSteps) -> float | None:
    lost = finite_or_none(rare.seconds_per_hour)
    return None if lost is None else lost / 36.0


def _is_costly(state: RankState, is_raised: bool) -> bool:
    rank = state.rank
    if rank.rare is None or rank.kind != "step" or rank.inference or rank.state != "running":
        return False
    lost = _lost_pct(rank.rare)
    return lost is not None and lost >= LOST_PCT[1 if is_raised else 0]


def _rare_steps_alert(state: RankState) -> AlertText:
    rare = state.rank.rare
    assert rare is not None, "called only while the rule holds"
    where = f" ({state.location})" if state.location else ""
    label = state.label[0].upper() + state.label[1:]
    lost, cost = _lost_pct(rare), rare_steps_text(rare)
    cause = _cause(state, rare)
    return AlertText(
        severity="warning" if (lost or 0.0) >= WARNING_PCT else "info",
        summary=f"{label}{where}: {cost}, which is {fmt.percent_text(lost)} of the time"
        f"{f': {cause.what}' if cause else ''}.",
        evidence={
            "every_steps": rare.every,
            "rare_step_seconds": rare.seconds,
            "usual_step_seconds": rare.usual_seconds,
            "lost_pct": lost,
            "lost_seconds_per_hour": rare.seconds_per_hour,
            "part": None if rare.part is None else fmt.printable(rare.part, 80),
            **({"cause": cause.what, "cause_seconds": cause.seconds} if cause else {}),
        },
        next=_next_step(rare.part) if cause is None else advice_for(state, cause.what),
        points=complete_clauses(
            f"{_frequency(rare)} takes {fmt.duration(rare.seconds)}",
            f"{fmt.percent_text(lost)} of the time",
            most_text(rare.part) if rare.part else "",
            fmt.shorten_middle(cause.what, 40) if cause else "",
        ),
    )


def _cause(state: RankState, rare: RareSteps) -> Cause | None:
    """Return what the host did in the untimed part of the long steps; None where samples do not show it.

    The samples are over the recent steps. The cause counts if it covers at least half of what the recent steps
    take beyond the usual one, so a cause that every step has is not named for the long ones. Nor is one of several
    causes that the samples do not separate.
    """
    rank = state.rank
    mean, usual = finite_or_none(rank.step_seconds_mean), finite_or_none(rank.step_seconds_p50)
    if rare.part != OUTSIDE or mean is None or usual is None or mean <= usual:
        return None
    cause = max(rank.outside_causes, key=lambda one: one.seconds, default=None)
    if cause is None or (cause.samples is not None and alike_causes(state) != [cause]):
        return None
    return cause if cause.seconds >= (mean - usual) / 2 else None


def _frequency(rare: RareSteps) -> str:
    return "a rare step" if rare.every is None else f"1 step in {fmt.number(rare.every)}"


def _next_step(part: str | None) -> str:
    if part is None:
        return _DEFAULT_ADVICE
    if "checkpoint" in part or "save" in part:
        return SAVE_LESS_OFTEN
    return _LOADING if role_of(part) == "input" else _DEFAULT_ADVICE


RARE_STEPS: Final = Rule[RankState](
    id="rare_steps",
    holds=_is_costly,
    describe=_rare_steps_alert,
    covered_by=frozenset({"stalled", "hung_collective", "straggler", "input_bound", "h2d_bound", "sync_bound"}),
    text=RuleText(
        meaning="A checkpoint, an evaluation or the beginning of an epoch makes single steps much longer. All "
        "GPUs of the job wait meanwhile.",
        condition=f"at least two steps, longest in the same phase, take twice the usual time or longer; together "
        f"they cost {LOST_PCT[0]:.0f} % of the time or more; info below {WARNING_PCT:.0f} %, else a warning",
        source="the steps of the training by the host clock",
        hold_seconds=2.0,
        clear_seconds=10.0,
        fields=("step_seconds", "step_seconds_p50"),
    ),
)
