"""The live rules, as data: condition, hold time, wording, and the source of each threshold."""

from __future__ import annotations

from typing import Final

from llmtop.rules import gpu, memory
from llmtop.rules.collective_hang import HUNG_COLLECTIVE, HUNG_COMMUNICATOR
from llmtop.rules.hang import STALLED
from llmtop.rules.health import HEALTH_RULES
from llmtop.rules.imbalance import IMBALANCE
from llmtop.rules.link_errors import LINK_RULES
from llmtop.rules.outside import OUTSIDE
from llmtop.rules.rare import RARE_STEPS
from llmtop.rules.risk import RISK_RULES
from llmtop.rules.rule import Rule, RuleText
from llmtop.rules.slower import SLOWER
from llmtop.rules.state.communicator import CommunicatorState
from llmtop.rules.state.gpu import GpuState
from llmtop.rules.state.rank import JobState, RankState
from llmtop.rules.step_bound import STEP_RULES
from llmtop.rules.straggler import STRAGGLER
from llmtop.rules.unattached import UNATTACHED_RULES

GPU_RULES: Final[tuple[Rule[GpuState], ...]] = (*gpu.GPU_RULES, *UNATTACHED_RULES)
RANK_RULES: Final[tuple[Rule[RankState], ...]] = (
    *STEP_RULES,
    OUTSIDE,
    RARE_STEPS,
    memory.MEMORY_PRESSURE,
    memory.MEMORY_GROWTH,
)
JOB_RULES: Final[tuple[Rule[JobState], ...]] = (
    HUNG_COLLECTIVE,
    STALLED,
    STRAGGLER,
    IMBALANCE,
    SLOWER,
    *HEALTH_RULES,
    *RISK_RULES,
)
COMMUNICATOR_RULES: Final[tuple[Rule[CommunicatorState], ...]] = (HUNG_COMMUNICATOR,)

_TEXTS: Final[dict[str, RuleText]] = {
    rule.id: rule.text for rules in (GPU_RULES, RANK_RULES, JOB_RULES, LINK_RULES) for rule in rules
}


def rule_text(alert_id: str) -> RuleText:
    """Return the rule behind an alert, in words; KeyError for an id that no rule has."""
    return _TEXTS[alert_id]


__all__ = ["COMMUNICATOR_RULES", "GPU_RULES", "JOB_RULES", "LINK_RULES", "RANK_RULES", "rule_text"]
