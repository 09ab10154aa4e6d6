"""No text of a recording, a capture, a report or a training reaches the terminal as an escape sequence.

Each free text of each type holds escape sequences (`tests/support/hostile.py`); every screen is opened with them
in a real pty (`tests/support/hostile_screens.py`), and what came out of it is read byte by byte.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from llmtop.capture.base.folder import Info
from llmtop.model.snapshot import Snapshot
from llmtop.recording.reader_writer import Writer
from llmtop.report.model import Report
from screenshots.scenes import scene
from tests.support import hostile
from tests.support.hostile_screens import BEGIN, END, screens
from tests.support.terminal import Terminal
from tui.paint.palette import THEMES
from tui.paint.rows import Row, clip, pad
from tui.terminal.session import title

WITHOUT_DATA = {"HelpScreen", "DemoEndScreen", "END"}
"""What draws nothing of what the data holds."""
TOUR_SECONDS = 840.0
"""Limit of a tour, against hanging: one of a quarter of the pieces takes 15 to 25 s, two at once on two cores."""


@pytest.fixture(scope="module")
def hostile_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recording, and a folder with a capture; each text in them and the capture's name are hostile."""
    place = tmp_path_factory.mktemp("hostile")
    return recorded(place), captured(place)


def recorded(place: Path) -> Path:
    """A recording: for each piece a scene with hostile names, and a snapshot in which nothing is absent."""
    path = place / "hostile.llmtop.gz"
    usual = scene(gpus=2, spinning=(1,), slow_rank=0)[-1]
    writer = Writer(path, host=hostile.text(), environment={hostile.text(): hostile.text()})
    for first in range(len(hostile.PIECES)):
        both = (hostile.spoilt(usual, first), hostile.value(Snapshot, first))
        for number, moment in enumerate(both):
            writer.write(replace(moment, time=1e9 + 2 * first + number, monotonic=1e3 + 2 * first + number))
    writer.close()
    return path


def captured(place: Path) -> Path:
    """A folder of one capture that has a hostile name, capture.json and report."""
    folder = place / "llmtop-captures"
    capture = folder / hostile.text()[:80].replace("/", "_")
    capture.mkdir(parents=True)
    (capture / "capture.json").write_bytes(msgspec.json.encode(hostile.value(Info)))
    (capture / "report.json").write_bytes(msgspec.json.encode(hostile.value(Report)))
    return folder


def written(files: tuple[Path, Path], size: tuple[int, int], *options: str) -> dict[str, bytes]:
    """What the tour wrote, by the screen that wrote it."""
    command = [sys.executable, "-m", "tests.support.hostile_screens", *map(str, files), *options]
    with Terminal(command, size) as terminal:
        code = terminal.process.wait(TOUR_SECONDS)
        parts = re.split(re.escape(BEGIN.encode()) + b"(.*?)" + re.escape(END.encode()), terminal.raw)
        assert code == 0, terminal.text()
    found: dict[str, bytes] = {}
    for name, said in zip(parts[1::2], parts[2::2], strict=True):
        found[name.decode()] = found.get(name.decode(), b"") + said
    return found


def check(found: dict[str, bytes]) -> None:
    """Each screen has drawn hostile text, and none of it is obeyed."""
    leaks = {name: hostile.obeyed(said)[:3] for name, said in found.items()}
    assert not {name: seen for name, seen in leaks.items() if seen}
    unseen = {name for name, said in found.items() if hostile.MARK.encode() not in said}
    assert unseen <= WITHOUT_DATA


@pytest.mark.timeout(TOUR_SECONDS + 60)
@pytest.mark.slow("a tour of every screen; test_the_screen_of_a_hostile_training_obeys_nothing has the main one")
@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((200, 50), ("--themes", THEMES[0].name, "--every", "6")),
        ((80, 24), ("--themes", THEMES[-1].name, "--ascii", "--every", "6")),
        *(((120, 40), ("--themes", THEMES[1].name, "--every", "4", "--begin", str(begin))) for begin in range(4)),
        *(((120, 40), ("--themes", theme.name, "--every", "4")) for theme in THEMES[2:]),
        ((120, 40), ("--spread", "--every", "4")),
        ((120, 40), ("--spread", "--every", "4", "--ascii")),
    ],
    ids=[
        "dark",
        "ascii",
        *(f"{THEMES[1].name}, {begin + 1} of 4" for begin in range(4)),
        *(theme.name for theme in THEMES[2:]),
        "all of Textual's",
        "all of Textual's, ascii",
    ],
)
def test_no_screen_writes_an_escape_sequence_of_its_data(
    hostile_files: tuple[Path, Path], size: tuple[int, int], options: tuple[str, ...]
) -> None:
    found = written(hostile_files, size, *options)
    assert {*found} >= {screen.__name__ for screen in screens()} | {"notices"}
    check(found)


def test_what_no_painter_has_cleaned_is_cleaned_as_it_leaves_at_the_same_width() -> None:
    console, text = Console(force_terminal=True), hostile.text()
    put = Row(200).put(text, Style(), cell_len(text)).strip(ascii_only=False)
    linked = Strip([Segment(text, Style(link="https://example.org")), Segment(text)])
    for strip in (put, linked, linked.crop(3, 60)):
        width, drawn = strip.cell_length, strip.render(console)
        assert hostile.obeyed(drawn.encode()) == []
        assert hostile.MARK in drawn
        assert "example.org" not in drawn
        assert cell_len(re.sub("\x1b\\[[0-9;]*m", "", drawn)) == width


@pytest.mark.parametrize("first", range(len(hostile.PIECES)))
def test_painters_measure_what_is_drawn(first: int) -> None:
    text = hostile.text(first)
    for drawn in (Row(400).add(text, Style()), Row(40).add_right(text[:9], Style(), Style())):
        assert cell_len(drawn.plain()) == drawn.used
        assert drawn.plain().isprintable()
    assert cell_len(pad(text, 30)) == cell_len(clip(text, 30)) == 30


def test_the_title_is_text() -> None:
    assert hostile.obeyed(title(hostile.text()).encode()) == []


@pytest.mark.slow("a tour of the pane; test_a_prometheus_writes_no_escape_sequence finds the same fault")
@pytest.mark.parametrize(
    "options",
    [pytest.param(("--spread",), marks=pytest.mark.slow("the second tour of the same pane")), ("--ascii",)],
    ids=["themes", "ascii"],
)
def test_nor_does_the_pane_of_a_cluster(hostile_files: tuple[Path, Path], options: tuple[str, ...]) -> None:
    check(written(hostile_files, (120, 36), "--cluster", *options))
