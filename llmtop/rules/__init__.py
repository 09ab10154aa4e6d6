"""The live rules, as data: what must hold, for how long, how it is told, and where its threshold comes from."""

from __future__ import annotations

from typing import Final

from llmtop.diagnosis.gpu_state import GpuState
from llmtop.diagnosis.rank_state import JobState, RankState
from llmtop.diagnosis.rules import gpu, memory
from llmtop.diagnosis.rules.base import Rule, RuleText
from llmtop.diagnosis.rules.hang import STALLED
from llmtop.diagnosis.rules.steps import STEP_RULES
from llmtop.diagnosis.rules.straggler import STRAGGLER

GPU_RULES: Final[tuple[Rule[GpuState], ...]] = gpu.GPU_RULES
RANK_RULES: Final[tuple[Rule[RankState], ...]] = (*STEP_RULES, memory.MEMORY_PRESSURE, memory.MEMORY_GROWTH)
JOB_RULES: Final[tuple[Rule[JobState], ...]] = (STALLED, STRAGGLER)

_TEXTS: Final = {rule.id: rule.text for rules in (GPU_RULES, RANK_RULES, JOB_RULES) for rule in rules}


def text_of(alert_id: str) -> RuleText:
    """The rule behind an alert, in words; KeyError for an id that no rule has."""
    return _TEXTS[alert_id]


__all__ = ["GPU_RULES", "JOB_RULES", "RANK_RULES", "text_of"]
