"""`slower` and `rare_steps` on generated series with known truth; 2,000 of them with
``python -m tests.support.judged_series 2000``."""

from __future__ import annotations

import pytest

from tests.support.judged_series import RULES, judged


@pytest.mark.slow("10 s; test_slower.py, test_rare.py and test_rare_steps.py find the same faults")
def test_generated_series_are_judged_right() -> None:
    verdicts = judged(range(5000, 5240))
    for rule in RULES:
        results = [one.result for one in verdicts if one.rule == rule]
        assert len(results) == 240
        assert results.count("right") >= 0.95 * 240, rule
        assert results.count("false") <= 0.01 * 240, rule
