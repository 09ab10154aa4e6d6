"""The idle share of a rank's GPU, from its busy share."""

from __future__ import annotations

import math

import pytest

from llmtop.model.gpu_busy import idle_pct
from tests.support.snapshots import rank


@pytest.mark.parametrize(
    ("busy", "idle"),
    [(None, None), (math.nan, None), (math.inf, None), (0.0, 100.0), (86.0, 14.0), (100.0, 0.0), (101.0, 0.0)],
)
def test_the_idle_share_is_the_rest_and_unknown_stays_unknown(busy: float | None, idle: float | None) -> None:
    assert idle_pct(rank(gpu_busy_pct=busy)) == idle
