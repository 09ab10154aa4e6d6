"""The span of the charts while little is known, and the advice as far as it is whole."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from screenshots.scenes import scene
from tests.tui.driving import Held, running, text
from tui.panes.alert_rows import fitting_clause
from tui.state.history import History

MOMENTS = scene(gpus=1, seconds=400)


@pytest.mark.parametrize(("known", "span"), [(10, 15.0), (59, 60.0), (91, 120.0), (200, 240.0), (399, 300.0)])
def test_charts_cover_no_more_than_what_is_known_fills(known: int, span: float) -> None:
    history = History()
    for moment in MOMENTS[:known]:
        history.add(moment)
    assert history.seconds == span
    history.span = 1200.0
    assert history.seconds == 1200.0, "a chosen one stays"


def test_the_span_stays_while_an_earlier_instant_is_shown() -> None:
    history = History()
    for moment in MOMENTS[:50]:
        history.add(moment)
    assert history.seconds == 60.0
    history.instant = MOMENTS[30].time
    for moment in MOMENTS[50:200]:
        history.add(moment)
    assert history.seconds == 60.0
    history.instant = None
    assert history.seconds == 240.0


async def test_the_keys_go_on_from_the_span_that_is_shown() -> None:
    async with running(Held(*MOMENTS[:90])) as (app, pilot):
        assert "time line · 2 min" in text(app)
        await pilot.press("right_square_bracket")
        assert "time line · 5 min" in text(app)
    async with running(Held(*MOMENTS[:90])) as (app, pilot):
        await pilot.press("left_square_bracket")
        assert "time line · 1 min" in text(app)
        await pilot.press("left_square_bracket")
        assert "time line · 1 min" in text(app)


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (90, "look at its memory (nvidia-smi, 3 times); or run: py-spy dump --pid 7"),
        (60, "look at its memory (nvidia-smi, 3 times)"),
        (36, "look at its memory"),
        (10, ""),
    ],
)
def test_what_is_left_of_an_advice_is_whole(room: int, said: str) -> None:
    assert fitting_clause("look at its memory (nvidia-smi, 3 times); or run: py-spy dump --pid 7", room) == said


async def test_a_silent_training_s_rate_is_not_told_as_of_now() -> None:
    last = MOMENTS[99]
    quiet = [
        replace(
            last, time=last.time + second,
            ranks=tuple(replace(one, last_step_at=last.time, new_steps=()) for one in last.ranks),
        )
        for second in range(1, 20)
    ]  # fmt: skip
    async with running(Held(*MOMENTS[:100], *quiet)) as (app, _pilot):
        assert "no step for 19 s" in text(app)
        assert " tok/s         – " in text(app)
