"""Names of windows against how long the training has run."""

from __future__ import annotations

import pytest

from llmtop.cli.live.snapshot_text import render
from llmtop.model.run_window import window_label
from llmtop.model.snapshot import Window
from tests.support.snapshots import rank, snapshot


def window(seconds: float, name: str = "run") -> Window:
    return Window(
        name=name, seconds=seconds, steps=10, step_seconds=1.0, step_seconds_p50=1.0, step_seconds_p95=1.0
    )


@pytest.mark.parametrize(
    ("seconds", "attached_at", "label"),
    [
        (990.0, 0.0, "all of the run"),
        (250.0, 0.0, "last 4m 10s"),
        (250.0, 745.0, "all of the run"),
        (250.0, None, "all of the run"),
    ],
)
def test_a_late_monitor_names_the_time_that_it_knows(
    seconds: float, attached_at: float | None, label: str
) -> None:
    training = rank(
        1, attached_at=attached_at, last_step_at=1000.0, windows=(window(5.0, "recent"), window(seconds))
    )
    assert window_label(training, training.windows[1]) == label
    text = render(snapshot(1000.0, ranks=(training,)), width=100)
    assert f"{label}:" in " ".join(text.split())


def test_other_windows_are_called_by_their_length() -> None:
    assert window_label(rank(1, attached_at=0.0, last_step_at=300.0), window(299.0, "5 min")) == "last 4m 59s"
