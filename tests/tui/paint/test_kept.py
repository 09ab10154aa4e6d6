"""What is kept of what was painted, or worked out before, is what would be painted and worked out anew."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Alert, Rank, Step
from tests.support.snapshots import gpu, rank, snapshot
from tui.paint.palette import THEMES, Palette
from tui.paint.row_cache import RowCache
from tui.paint.rows import CellTheme
from tui.panes import node_table, time_line
from tui.state.history import History, key_of
from tui.state.view import View

NOW = 1_700_000_000.0
LOOKS = [
    CellTheme.for_palette(Palette.build(theme, "full"), ascii_only=plain)
    for theme in THEMES[:2]
    for plain in (False, True)
]


def _shown(view: View, width: int, look: CellTheme) -> list[Any]:
    """Text and styles of all rows of the table and the time line."""
    lines = node_table.entries(view)
    made = node_table.table(view, lines, width)
    assert made is not None
    rows = [node_table.line(made, line, view, width, look) for line in lines]
    rows += time_line.paint(view, width, 24, look)
    return [list(row.segments) for row in rows]


def _training(dice: random.Random, pid: int, second: int) -> Rank:
    took = dice.choice([0.25, 0.25, 0.26, 3.0])
    steps = (Step(index=second, started_at=NOW + second - 0.5, seconds=took, interval_seconds=took),)
    return rank(
        pid,
        rank=pid - 100,
        world_size=2,
        gpu_uuid=gpu(pid - 100).uuid,
        state=dice.choice(["running", "running", "stalled"]),
        step=second,
        step_seconds_p50=took,
        tokens_per_s=dice.choice([1000.0, 1001.0]),
        metrics={"loss": dice.choice([1.0, 0.5])},
        new_steps=steps,
    )


def _alerts(dice: random.Random, second: int) -> tuple[Alert, ...]:
    if dice.random() < 0.6:
        return ()
    told = {
        "severity": dice.choice(["warning", "critical"]),
        "summary": "it is late",
        "evidence": {},
        "next": "wait",
    }
    return (Alert(id="straggler", gpu=None, pid=dice.choice([100, 101]), since=NOW + second - 3, **told),)


def test_a_row_that_is_kept_is_the_one_that_would_be_painted() -> None:
    dice = random.Random(5)
    view, width, look = View(), 160, LOOKS[0]
    before: list[Any] = []
    same = 0
    for second in range(1, 160):
        gpus = tuple(
            gpu(
                number,
                util_pct=dice.choice([98.0, 99.0]),
                power_watts=dice.choice([640.0, 640.0, 650.0, None]),
                power_limit_watts=700.0,
                sm_active_pct=dice.choice([90.0, None]),
                temperature_c=60.0,
            )
            for number in range(2)
        )
        ranks = tuple(_training(dice, 100 + number, second) for number in range(2))
        now = snapshot(NOW + second, gpus=gpus, ranks=ranks, alerts=_alerts(dice, second))
        view.history.add(now)
        view.alerts.take(now)
        view.snapshot = now
        if second % 7 == 0:
            view.selected = dice.choice([None, gpu(0).uuid, gpu(1).uuid])
            view.rank_pid = dice.choice([None, 100, 101])
        if second % 31 == 0:
            width, look = dice.choice([90, 160, 200]), dice.choice(LOOKS)
            view.history.span = dice.choice([60.0, 300.0, 1200.0])
        shown = _shown(view, width, look)
        kept, view.kept = view.kept, RowCache()
        assert shown == _shown(view, width, look), second
        view.kept = kept
        same += sum(row in before for row in shown)
        before = shown
    assert same > 100, "most rows were the same as the second before"


def test_what_is_kept_is_given_only_for_the_same() -> None:
    kept = RowCache()
    assert kept.get("place", (1, 2.0), lambda: "painted") == "painted"
    assert kept.get("place", (1, 2.0), lambda: "again") == "painted"
    assert kept.get("place", (1, 2.5), lambda: "again") == "again"
    assert kept.get("another", (1, 2.5), lambda: "third") == "third"
    for number in range(10_000):
        kept.get(number, None, lambda: "many")
    assert kept.get("place", (1, 2.5), lambda: "anew") == "anew", "it does not grow"


@pytest.mark.parametrize("span", [60.0, 300.0, 1200.0])
def test_what_is_worked_out_piece_by_piece_is_the_same_as_at_once(span: float) -> None:
    """Read values, and steps that are told some seconds after they ended; a second apart, and more."""
    dice = random.Random(7)
    history = History()
    history.span = span
    now = NOW
    for told in range(400):
        now += dice.choice([0.5, 1.0, 1.0, 2.0, 7.0])
        late = now - dice.uniform(0.0, 4.0)
        training = rank(
            new_steps=(Step(index=told, started_at=late, seconds=0.5, interval_seconds=dice.uniform(0.5, 1.5)),)
        )
        history.add(snapshot(now, gpus=(gpu(0, util_pct=dice.uniform(0, 100)),), ranks=(training,)))
        for name in ((gpu(0).uuid, "util"), (key_of(training), "step")):
            for count in (60, 181):
                shown = history.spreads(name, count)
                slot = history.store.slot(name)
                assert slot is not None
                fresh = history.store.spreads(slot, history.cells(count), 0, history.end)
                newest = 1 + int(2.0 / history.cells(count).seconds) + 1  # those that are drawn every two seconds
                if name[1] == "step":
                    newest += int(5.0 / history.cells(count).seconds) + 1
                assert shown[:-newest] == fresh[:-newest]


def test_a_view_has_its_own() -> None:
    assert View().kept is not View().kept
    assert replace(View(), paused=True).kept is not View().kept
