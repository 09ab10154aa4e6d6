"""The summary at the end of a run: the longest wait, or untimed work where that is more."""

from __future__ import annotations

import pytest

from llmtop.instrument.run_log.summary import summary_lines
from llmtop.runs import records


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ({"dataload": 0.3, "forward": 60.0}, "untimed: 39.7 % of the steps' time, more than the largest wait"),
        ({"dataload": 30.0, "forward": 60.0}, "largest wait: dataload, 30.0 % of the steps' time"),
        ({"forward": 60.0}, "untimed: 40.0 % of the steps' time"),
        ({"forward": 96.0}, None),
    ],
)
def test_untimed_work_is_named_where_it_is_more_than_a_wait(
    phases: dict[str, float], expected: str | None
) -> None:
    state = records.State(
        at=0.0, mono=0.0, steps=11, intervals=10, interval_seconds=100.0, step_seconds=100.0, phases=phases
    )
    lines = summary_lines(state, "95ba2a88", is_long=False)[1:-1]
    assert len(lines) == (expected is not None)
    assert all(line.startswith(expected or "") for line in lines)
