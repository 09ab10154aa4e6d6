"""The rule for rare steps that take much longer, which `llmtop.step_history.rare_steps` finds.

A checkpoint or an evaluation is normal work, so the alert is a note. Where it takes much of the time it is a
warning, since no other rule shows that time.
"""

from __future__ import annotations

from typing import Final

from llmtop import format as fmt
from llmtop.model.snapshot import RareSteps
from llmtop.naming.phase_names import role_of
from llmtop.rules.rule import SAVE_LESS_OFTEN, AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.rank import RankState
from llmtop.rules.state.windows import finite_or_none
from llmtop.step_history.rare_steps import rare_steps_text

LOST_PCT: Final = (5.0, 3.5)
"""Of the time, beyond what the usual steps would take: to raise and to stay raised."""
WARNING_PCT: Final = 20.0

_LOADING: Final = "persistent_workers=True if epochs begin there; press s for the stacks while one lasts"
_DEFAULT_ADVICE: Final = (
    "if it is an evaluation or a checkpoint, do it less often; press s for the stacks while one lasts"
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
    assert rare is not None, "told only while it holds"
    where = f" ({state.location})" if state.location else ""
    label = state.label[0].upper() + state.label[1:]
    lost, said = _lost_pct(rare), rare_steps_text(rare)
    return AlertText(
        severity="warning" if (lost or 0.0) >= WARNING_PCT else "info",
        summary=f"{label}{where}: {said}; {fmt.percent(lost)} of the time.",
        evidence={
            "every_steps": rare.every,
            "rare_step_seconds": rare.seconds,
            "usual_step_seconds": rare.usual_seconds,
            "lost_pct": lost,
            "lost_seconds_per_hour": rare.seconds_per_hour,
            "part": None if rare.part is None else fmt.printable(rare.part, 80),
        },
        next=_next_step(rare.part),
        points=complete_clauses(
            f"one takes {fmt.duration(rare.seconds)}"
            + (f" ({fmt.printable(rare.part, 40)})" if rare.part else ""),
            f"{fmt.percent(lost)} of the time",
            "now and then" if rare.every is None else f"every {fmt.number(rare.every)} steps",
        ),
    )


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
        meaning="Every so many steps one takes much longer: a checkpoint, an evaluation, the beginning of an "
        "epoch. All of the job's GPUs wait meanwhile.",
        condition=f"single steps of twice the usual length and more, alike and at least two, that cost "
        f"{LOST_PCT[0]:.0f} % of the time or more beyond the usual step; a warning from {WARNING_PCT:.0f} % on",
        source="the training's own steps by the host's clock",
        hold_seconds=2.0,
        clear_seconds=10.0,
        fields=("step_seconds", "step_seconds_p50"),
    ),
)
