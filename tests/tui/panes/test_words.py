"""What the screen says: of MIG instances, of a warm-up, of long recordings, and where only ASCII can be drawn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from collectors.replay import ReplayFeed
from llmtop.model.jobs import job_totals
from llmtop.model.snapshot import Alert
from llmtop.recording.reader_writer import Reader, Writer
from tests.support.processes import wait_for
from tests.support.snapshots import gpu, rank, snapshot
from tests.support.terminal import Terminal
from tests.tui.driving import Held, running, text
from tui.paint import alert_style, gpu_names
from tui.panes.words import job_and_ranks

WHOLE = gpu(0)
PARTS = tuple(
    gpu(0, uuid=f"MIG-{number}a2b", name="NVIDIA H200 MIG 1g.18gb", mig_parent_uuid=WHOLE.uuid)
    for number in range(3)
)
OTHER = gpu(1)


def test_instances_are_counted_and_numbered_as_parts_of_their_gpu() -> None:
    assert gpu_names.gpu_counts((WHOLE, *PARTS, OTHER)) == "2 × H200, 3 MIG instances"
    assert gpu_names.gpu_counts((WHOLE, PARTS[0])) == "1 × H200, 1 MIG instance"
    assert gpu_names.gpu_counts((WHOLE, gpu(1, name="NVIDIA A100"))) == "2 GPUs"
    assert list(gpu_names.labels((WHOLE, *PARTS, OTHER)).values()) == ["0", "0:0", "0:1", "0:2", "1"]
    alert = Alert(id="gpu_error", severity="warning", gpu=PARTS[1].uuid, since=0.0, summary="")
    assert alert_style.subject(alert, snapshot(gpus=(WHOLE, *PARTS))) == "GPU 0:1"


@pytest.mark.parametrize(
    ("name", "seen", "said"),
    [
        ("toy.py · 8 ranks", 8, ("toy.py", "8 ranks")),
        ("toy.py · 8 ranks · pid 7", 8, ("toy.py · pid 7", "8 ranks")),
        ("toy.py · 8 ranks", 5, ("toy.py", "5 of 8 ranks seen")),
        ("toy.py · :29500", 8, ("toy.py · :29500", "8 ranks")),
        ("8 ranks", 8, ("8 ranks", "8 ranks")),
    ],
)
def test_how_many_ranks_there_are_is_said_once(name: str, seen: int, said: tuple[str, str]) -> None:
    (job,) = job_totals(rank(pid=100 + n, rank=n, world_size=8, job=name) for n in range(seen))
    assert job_and_ranks(job) == said


def test_instances_shown_without_their_gpu_are_not_counted_wrongly() -> None:
    assert list(gpu_names.labels((PARTS[2], OTHER)).values()) == ["0:2a2b", "1"]
    assert gpu_names.gpu_counts((PARTS[2],)) == "1 MIG instance"


async def test_the_header_and_the_cards_tell_a_gpu_from_its_instances() -> None:
    async with running(Held(snapshot(gpus=(WHOLE, *PARTS))), (160, 50)) as (app, pilot):
        await pilot.pause(0.3)
        assert "1 × H200, 3 MIG instances" in text(app)
        assert "0:2" in text(app)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        (rank(step=3, step_seconds=0.1, warmup_steps=5), "phases after warm-up (first 5 steps)"),
        (rank(warmup_steps=0), "phases after the first step"),
        (
            rank(step=9, step_seconds=0.1, step_seconds_p50=0.1, warmup_steps=5),
            "no phases; name a part of a step: with llmtop.phase(",
        ),
    ],
)
async def test_why_there_are_no_phases(training: object, words: str) -> None:
    async with running(Held(snapshot(gpus=(WHOLE,), ranks=(training,))), (120, 40)) as (app, pilot):
        await pilot.pause(0.3)
        assert words in text(app)


async def test_a_long_recording_has_hours_and_jumps_by_minutes_and_per_cent(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r", host="node")
    for number in range(961):
        writer.write(snapshot(1000.0 + 30 * number))
    writer.close()
    feed = ReplayFeed(Reader(tmp_path / "r"), lambda: lambda moment: moment)
    feed.toggle()
    async with running(feed, (160, 40)) as (app, pilot):
        for key, seconds in (
            ("right_parenthesis", 1440),
            ("right_curly_bracket", 1500),
            ("left_curly_bracket", 1440),
            ("right_parenthesis", 2880),
            ("right_parenthesis", 4320),
            ("left_parenthesis", 2880),
            ("greater_than_sign", 2910),
            ("less_than_sign", 2880),
        ):
            await pilot.press(key)
            wait_for(
                lambda seconds=seconds: feed.position == pytest.approx(seconds), what=f"{seconds} after {key}"
            )
        await pilot.pause(0.3)
        assert "48:00 of 8:00:00" in text(app)


def test_where_python_writes_ascii_the_screen_is_drawn_in_ascii() -> None:
    with Terminal([sys.executable, "-m", "llmtop", "demo"], PYTHONIOENCODING="ascii") as terminal:
        terminal.shows("REPLAY")
        wait_for(lambda: "GPU" in terminal.text(), what="a frame")
        assert "\\u" not in terminal.text()
        assert terminal.text().isascii()
        terminal.keys("q")
        assert terminal.ends() == 0
