"""The live rules, as data: what must hold, for how long, how it is told, and where its threshold comes from."""

from __future__ import annotations

from typing import Final

from llmtop.diagnosis.rank_state import JobState, RankState
from llmtop.diagnosis.rules.base import Rule, RuleText
from llmtop.diagnosis.rules.gpu import GPU_RULES
from llmtop.diagnosis.rules.hang import STALLED

RANK_RULES: Final[tuple[Rule[RankState], ...]] = ()
JOB_RULES: Final[tuple[Rule[JobState], ...]] = (STALLED,)

_TEXTS: Final = {rule.id: rule.text for rules in (GPU_RULES, RANK_RULES, JOB_RULES) for rule in rules}


def text_of(alert_id: str) -> RuleText:
    """The rule behind an alert, in words; KeyError for an id that no rule has."""
    return _TEXTS[alert_id]


__all__ = ["GPU_RULES", "JOB_RULES", "RANK_RULES", "text_of"]
