"""The figures of the step on the main screen: none of them disagrees with another that stands beside it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Snapshot
from screenshots.scenes import scene
from tests.tui.driving import Held, running, text
from tests.tui.paint.test_painting import LOOKS, viewed
from tui.panes import alert_rows, steps

LOOK = LOOKS["dark"]


def drawn(moment: Snapshot, width: int) -> list[str]:
    return [row.strip(ascii_only=False).text for row in steps.paint(viewed(moment), width, 9, LOOK)]


def uneven(mean: float) -> Snapshot:
    """A training whose steps take 111 ms by the median and `mean` seconds by the mean."""
    moment = scene(gpus=1, seconds=30)[-1]
    (rank,) = moment.ranks
    return replace(moment, ranks=(replace(rank, step_seconds_mean=mean),))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_bars_of_a_mean_that_is_not_the_median_are_called_so(width: int) -> None:
    title, host, *_ = drawn(uneven(0.241), width)
    assert "p50 111 ms" in title
    assert "mean 241 ms" in title
    assert host.rstrip().endswith("241 ms")
    assert "mean" not in drawn(uneven(0.1107), width)[0]


def test_a_change_that_cannot_be_known_yet_is_a_dash() -> None:
    rows = drawn(scene(gpus=1, seconds=2)[-1], 200)
    titles = next(place for place, row in enumerate(rows) if "vs 5 min" in row)
    edge = rows[titles].index("vs 5 min") + len("vs 5 min")
    assert {
        row[edge - 1] for row in rows[titles + 1 :] if row.strip() and not row.lstrip().startswith("loss")
    } == {"–"}


@pytest.mark.parametrize("width", [45, 80, 120])
def test_without_an_alert_the_judgement_goes_before_the_clock(width: int) -> None:
    view = viewed(*scene(gpus=1, seconds=40))
    assert view.snapshot is not None
    view.alerts.since = view.snapshot.time - 22.0
    (row, *_) = alert_rows.paint(view, width, 1, LOOK)
    shown = row.strip(ascii_only=False).text
    assert "no alerts" in shown
    assert "→ no action needed" in shown
    assert ("since" in shown) == (width > 70)


async def test_with_eight_gpus_a_screen_of_80x24_has_what_to_do_and_the_keys_for_it() -> None:
    async with running(Held(*scene(gpus=8, spinning=(3,))), (80, 24)) as (app, _pilot):
        lines = text(app).splitlines()
        assert "LOW POWER" in lines[1]
        assert lines[2].startswith("   → ")
        assert "a evidence" in lines[2]
        assert lines[3].split()[:2] == ["▴GPU", "rank"]
        assert sum("113/140" in line or "80/140" in line for line in lines) == 8
        assert any(line.startswith(" GPU3 power") for line in lines)
        assert any(line.startswith(" GPU3 util") for line in lines)
