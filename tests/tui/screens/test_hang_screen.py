"""`h` at a hung collective: stacks of all ranks of the node in groups; without such an alert it is the help."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llmtop.model.snapshot import Alert, CollectiveCount, Rank, Snapshot
from tests.capture.conftest import Start, Training, start
from tests.tui.screens.test_capture_screens import beside, running, shows

__all__ = ["start"]  # a fixture


def _hung(trainings: list[Training]) -> list[Snapshot]:
    *before, last = beside(trainings[0])
    ranks = tuple(
        Rank(
            pid=training.pid,
            rank=number,
            world_size=len(trainings),
            host=last.ranks[0].host,
            command="training.py",
            step=1,
            state="stalled",
            collectives=(CollectiveCount(group="0", enqueued=7, completed=6 if number else 7),),
        )
        for number, training in enumerate(trainings)
    )
    alert = Alert(id="hung_collective", severity="critical", summary="two ranks wait", since=last.time)
    return [*before, replace(last, ranks=ranks, alerts=(alert,))]


@pytest.mark.slow(
    "two trainings; test_s_shows_the_main_thread_first_with_the_scripts_own_line_marked has the stacks of one"
)
async def test_h_groups_the_stacks_of_real_ranks(start: Start) -> None:
    trainings = [start(), start("--workers")]
    for training in trainings:
        training.wait_attached()
    async with running(_hung(trainings), (120, 60)) as (app, pilot):
        await pilot.press("h")
        shown = await shows(app, pilot, "Stacks of all ranks of this node", "Rank 0", "training.py:")
        assert "Rank 1" in shown or "Ranks 0-1" in shown
        await pilot.press("tab")
        await shows(app, pilot, "Python stacks", "MainThread", "main (training.py:")
    for training in trainings:
        training.wait_for_steps(3)


@pytest.mark.slow("a training of its own; test_every_key_acts_or_is_answered presses this key without a hang")
async def test_without_a_hang_h_is_the_help(start: Start) -> None:
    training = start()
    training.wait_attached()
    async with running(beside(training)) as (app, pilot):
        await pilot.press("h")
        await shows(app, pilot, "the main screen")
