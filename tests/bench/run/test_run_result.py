"""The verdict on a short window, which a monitor's snapshots alone leave unknown."""

from __future__ import annotations

import pytest

from llmtop.bench.model.results import RunFigures
from llmtop.bench.run.run_result import verdict_of_window
from llmtop.model.snapshot import Alert, Host, Rank, Snapshot

WAITS = Alert(id="input_bound", severity="warning", pid=7, since=0.0, summary="it waits", next="look")


def _window(busy: float | None, *alerts: Alert, bound: bool = False) -> list[Snapshot]:
    rank = Rank(pid=7, host="box", gpu_busy_pct=busy, gpu_busy_bound=bound)
    return [Snapshot(time=float(at), host=Host(name="box"), ranks=(rank,), alerts=alerts) for at in range(3)]


def _figures(idle: float | None, bound: bool = False) -> RunFigures:
    return RunFigures(gpu_idle_pct=idle, gpu_idle_bound=bound, gpu_idle_source="util")


@pytest.mark.parametrize(
    ("idle", "bound", "verdict"),
    [
        (0.4, False, "gpu_bound"),
        (9.9, False, "gpu_bound"),
        (10.0, False, "unknown"),
        (0.4, True, "unknown"),
        (None, False, "unknown"),
    ],
)
def test_the_idle_share_of_the_window_decides_where_snapshots_do_not(
    idle: float | None, bound: bool, verdict: str
) -> None:
    said, summary = verdict_of_window(_window(99.0, bound=True), _figures(idle, bound))
    assert said == verdict
    assert (f"idle for {idle} % of the window, by GPU-Util" in summary) == (verdict == "gpu_bound")


def test_what_the_snapshots_show_holds() -> None:
    said, summary = verdict_of_window(_window(99.0, WAITS, bound=True), _figures(0.4))
    assert said == "input_bound"
    assert "of the window" not in summary


def test_without_snapshots_nothing_is_said() -> None:
    assert verdict_of_window([], _figures(0.4)) == ("unknown", "")
