"""The row on health and risk, at the widths of terminals."""

from __future__ import annotations

import pytest

from llmtop.model.health import Checkpoint
from llmtop.model.snapshot import Host, Rank, Snapshot
from tests.tui.paint.test_painting import LOOKS
from tui.panes import health_row
from tui.state.view import View

NOW = 1000.0
LOGGED = "loss 0.6009 · gradient norm 0.2988"


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (118, f"{LOGGED} · last checkpoint 14m 03s ago: 312 steps at risk"),
        (78, f"{LOGGED} · saved 14m 03s ago: 312 steps at risk"),
        (40, LOGGED),
    ],
)
def test_the_last_checkpoint_is_shown_where_it_fits(width: int, text: str) -> None:
    rank = Rank(
        pid=100,
        host="node",
        step=1312,
        attached_at=1.0,
        metrics={"loss": 0.6009, "grad_norm": 0.2988},
        checkpoint=Checkpoint(step=1000, at=NOW - 843, seconds=1.0, blocked_seconds=1.0),
    )
    view = View(snapshot=Snapshot(time=NOW, host=Host(name="node"), ranks=(rank,)))
    row = health_row.paint(rank, view, width, LOOKS["dark"])
    assert row is not None
    assert row.plain().strip() == text
