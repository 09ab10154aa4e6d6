"""The main screen says, without a key, which situation it is, since when and what to do next."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from screenshots import situations
from screenshots.scenes import scene
from tests.tui.driving import Held, running, text
from tui.core.layout import Layout

MOST_BYTES = 60_000


class Answer(NamedTuple):
    """What must be read on the screen."""

    which: str
    why: str
    """The first clause of the reason."""
    seconds: float | None
    """How long it had gone on at the recording's end, by the steps in it; None: nobody can tell."""
    next: str


ANSWERS = {
    "healthy": Answer("POWER-CAPPED", "687 of 700 W, normal for a busy GPU", None, "no action needed"),
    "starved": Answer("INPUT-BOUND", "waits for data 87 % of the step", 22.0, "decode once and store the result"),
    "launch_bound": Answer(
        "LAUNCH-BOUND", "kernel launches take 96 % of the step", 18.6, "use torch.compile, CUDA graphs"
    ),
    "hung": Answer("HUNG", "never entered all_reduce #1979", 19.0, "run: py-spy dump --pid"),
    "straggler": Answer(
        "STRAGGLER", "17.2 ms later than other ranks", 17.6, "check situation_training.py:139 time.sleep("
    ),
    "checkpointing": Answer("LONG STEPS", "takes 6.21 s", None, "save less often, or in the back"),
    "leaking": Answer("MEMORY GROWTH", "GPU full in about 54.0 s", 34.0, "find tensors kept over steps"),
    "throttled": Answer("THROTTLED", "thermal limit of the hardware", 10.4, "check the cooling"),
}
LATE_SECONDS = 9.0
"""By which an alert's beginning may be later than the truth: what bounds a step is judged over some seconds."""


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_every_situation_has_its_answer_and_its_recording_is_small() -> None:
    assert set(ANSWERS) == set(situations.NAMES)
    files = {path.name.split(".")[0]: path.stat().st_size for path in situations.FOLDER.iterdir()}
    assert set(files) == set(situations.NAMES) - {"throttled"}
    assert max(files.values()) <= MOST_BYTES


async def last_frame(name: str, size: tuple[int, int], folder: Path) -> tuple[list[str], Layout]:
    """The lines of the screen at the end of the replay, and where its parts are."""
    async with running(situations.feed(name, folder), size) as (app, pilot):
        while not app.view.ended:
            await pilot.pause(0.05)
            app.redraw()
        await pilot.pause()
        return text(app).splitlines(), app.screen.layout_now(*size)  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", situations.SIZES, ids=str)
@pytest.mark.parametrize("name", situations.NAMES)
async def test_which_since_when_and_what_next_without_a_key(
    name: str, size: tuple[int, int], tmp_path: Path
) -> None:
    lines, layout = await last_frame(name, size, tmp_path)
    answer, alerts = ANSWERS[name], layout.alerts
    assert alerts is not None
    assert alerts.height == 2
    first, second = lines[alerts.y : alerts.y + 2]
    assert f" {answer.which} " in first
    assert answer.why in first
    assert second.lstrip().startswith(f"→ {answer.next}")
    assert "…" not in first + second
    told = re.search(r" (?:for )?(\d+) s (?:GPU|rank|pid) ", first)
    assert told is not None
    if answer.seconds is not None:
        assert -1.0 <= answer.seconds - int(told[1]) <= LATE_SECONDS


async def test_who_waits_in_a_hang_is_not_called_ok_and_no_figure_is_told_as_of_now(tmp_path: Path) -> None:
    lines, layout = await last_frame("hung", (120, 30), tmp_path)
    waiting, behind = [lines[rect.y] for _, rect in layout.entries]
    assert re.search(r"waits( · all_reduce)?$", waiting.rstrip())
    assert behind.rstrip().endswith("HUNG")
    assert any("no step for 19 s" in line for line in lines)
    assert any(re.match(r" job tok/s +– ", line) for line in lines)


async def test_the_step_shown_is_the_accused_rank_s(tmp_path: Path) -> None:
    lines, layout = await last_frame("straggler", (120, 30), tmp_path)
    assert layout.steps is not None
    assert "rank 1 of 2" in lines[layout.steps.y]


async def test_what_is_made_says_so(tmp_path: Path) -> None:
    for size in situations.SIZES:
        lines, _ = await last_frame("throttled", size, tmp_path)
        assert any(situations.MADE in line for line in lines)


async def test_without_an_alert_there_is_nothing_to_do_since_when() -> None:
    for size in situations.SIZES:
        async with running(Held(*scene(gpus=1, seconds=40)), size) as (app, _pilot):
            assert re.search(r"no alerts for 39 s, since \d\d:\d\d:\d\d  → no action needed", text(app))


async def test_a_training_that_is_not_there_is_not_called_well() -> None:
    async with running(Held(*scene(gpus=2, ranks=0))) as (app, _pilot):
        assert "no action needed" not in text(app)
