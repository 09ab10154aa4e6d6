"""The report, the timeline and the comparison, driven by keys on real captures."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from llmtop.analysis.analyze import analyze
from llmtop.capture.base.folder import PARENT
from llmtop.report.model import Span, to_json
from screenshots.draw import StaticFeed
from screenshots.scenes import scene
from tests.support.data import HEALTHY, LAUNCH_BOUND, TWO_GPUS
from tests.tui.driving import reply
from tui.app import LlmtopApp
from tui.core.canvas import Board
from tui.panes.timeline import ShownStretch, cells
from tui.screens import report_picker
from tui.screens.report import ReportScreen
from tui.screens.timeline import TimelineScreen

SIZES = [(60, 15), (80, 24), (120, 40), (200, 50)]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    report_picker.mark(None)
    yield
    report_picker.mark(None)


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `llmtop capture` leaves it: two captures with their written reports."""
    parent = tmp_path_factory.mktemp("here") / PARENT
    for name, source in (("1-healthy", HEALTHY), ("2-launch", LAUNCH_BOUND)):
        folder = parent / name
        folder.mkdir(parents=True)
        (folder / "report.json").write_bytes(to_json(analyze(source)))
    return parent


@asynccontextmanager
async def running(
    size: tuple[int, int] = (120, 40), path: Path | None = None, **options: Any
) -> AsyncIterator[tuple[LlmtopApp, Pilot[int]]]:
    app = LlmtopApp(StaticFeed(scene(gpus=1)), **options)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        if path is not None:
            app.push_screen(ReportScreen(path))
            await loaded(app, pilot)
        yield app, pilot


async def loaded(app: LlmtopApp, pilot: Pilot[int]) -> None:
    """Wait for the thread that reads."""
    for _ in range(6000):
        await pilot.pause(0.02)
        if "reading" not in text(app):
            return
    raise AssertionError("the report was never read")


def text(app: LlmtopApp) -> str:
    """What the screen on top shows, line by line."""
    board = app.screen.query_one(Board)
    return "\n".join(board.render_line(y).text for y in range(board.size.height))


@pytest.mark.parametrize("size", SIZES)
async def test_the_verdict_comes_first_at_every_size(size: tuple[int, int], captures: Path) -> None:
    async with running(size, captures / "2-launch") as (app, _):
        shown = text(app)
        assert "launch-bound: the host launches kernels more slowly than the GPU runs them" in " ".join(
            shown.split()
        )
        assert all(len(line) == size[0] for line in shown.splitlines())
        assert "more lines" in shown


async def test_the_key_opens_the_newest_capture(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(captures.parent)
    async with running() as (app, pilot):
        await pilot.press("o")
        await loaded(app, pilot)
        assert "2-launch" in text(app)
        await pilot.press("q")
        await pilot.pause()
        assert len(app.screen_stack) == 1


async def test_enter_unfolds_the_evidence_and_folds_it_again(captures: Path) -> None:
    async with running(path=captures / "2-launch") as (app, pilot):
        assert "kernels_per_step" not in text(app)
        await pilot.press("enter")
        await pilot.pause()
        shown = " ".join(text(app).split())
        assert "kernels_per_step 3683" in shown
        assert "llmtop capture --engine py-spy" in shown
        assert "at most 55.2 ms per step" in shown
        await pilot.press("enter", "down", "down", "down", "enter")
        await pilot.pause()
        assert "ncu --set full --clock-control none --target-processes all" in " ".join(text(app).split())


async def test_the_text_scrolls_to_the_tables(captures: Path) -> None:
    async with running((100, 20), captures / "2-launch") as (app, pilot):
        for _ in range(12):
            await pilot.press("pagedown")
        await pilot.pause()
        assert "cudaLaunchKernel" in text(app) or "GPU metrics" in text(app)
        assert "more lines" not in text(app)


async def test_a_capture_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "broken.sqlite"
    path.write_bytes(b"SQLite format 3\0")
    async with running(path=path) as (app, _):
        assert "cannot be read" in " ".join(text(app).split())


@pytest.mark.parametrize("size", SIZES)
async def test_the_timeline_has_gpu_host_and_phases(size: tuple[int, int]) -> None:
    async with running(size, TWO_GPUS) as (app, pilot):
        await pilot.press("l")
        await pilot.pause()
        shown = text(app)
        assert isinstance(app.screen, TimelineScreen)
        for part in ("GPU 1", "comm", "idle", "host (main)"):
            assert part in shown
        assert "GGGG" in shown, "letters say what colours say"
        assert all(len(line) == size[0] for line in shown.splitlines())
        if size[1] >= 40:
            assert "backward" in shown
            assert "G GEMM" in shown


async def test_the_timeline_zooms_and_pans_within_the_step() -> None:
    async with running(path=TWO_GPUS) as (app, pilot):
        await pilot.press("l")
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, TimelineScreen)
        whole = screen.window
        await pilot.press(*["left_square_bracket"] * 3)
        await pilot.pause()
        assert screen.window.seconds == pytest.approx(whole.seconds / 8)
        assert (screen.window.start + screen.window.end) / 2 == pytest.approx(whole.seconds / 2)
        before = text(app)
        for _ in range(16):  # quarters of an eighth: fourteen reach the end
            await pilot.press("right")
        await pilot.pause()
        assert screen.window.end == pytest.approx(whole.end)
        assert text(app) != before
        await pilot.press("w")
        await pilot.pause()
        assert screen.window == whole
        assert whole.seconds / 2**20 < 1e-6
        for _ in range(20):
            await pilot.press("left_square_bracket")
        assert screen.window.seconds >= 1e-6 * 0.999


async def test_a_baseline_is_held_against_the_next_capture(captures: Path) -> None:
    async with running(path=captures / "2-launch") as (app, pilot):
        await pilot.press("v")
        await pilot.pause()
        assert "baseline" in reply(app)
        await pilot.press("b")
        await pilot.pause()
        assert "This capture is the baseline" in text(app)
        await pilot.press("q")
        app.push_screen(ReportScreen(captures / "1-healthy"))
        await loaded(app, pilot)
        assert "Against the baseline 2-launch" in text(app)
        assert "The bottleneck changed: launch-bound (the host launches kernels" in " ".join(text(app).split())
        await pilot.press("v")
        await pilot.pause()
        shown = text(app)
        assert "* GPU idle" in shown
        assert "90.5%" in shown
        assert "than the GPU runs them) to gpu-bound (the GPU is the limit)." in " ".join(shown.split()), (
            "a sentence is broken into lines, not cut"
        )
        await pilot.press("q")
        await pilot.press("b", "b")
        await pilot.pause()
        assert report_picker.baseline() is None


@pytest.mark.slow("ASCII stands for both", kept=("options0",))
@pytest.mark.parametrize("options", [{"ascii": True}, {"theme": "light"}])
async def test_other_looks(options: dict[str, Any]) -> None:
    async with running(path=TWO_GPUS, **options) as (app, pilot):
        await pilot.press("enter")
        await pilot.press("l")
        await pilot.pause()
        shown = text(app)
        assert "GGGG" in shown
        if options.get("ascii"):
            assert shown.isascii()


def test_cells_tell_how_much_is_filled_and_by_what() -> None:
    spans = [Span(0.0, 0.5, "GEMM", ""), Span(0.5, 0.25, "copy", ""), Span(0.9, 0.1, "GEMM", "", 0.5)]
    found = cells(spans, ShownStretch(0.0, 1.0), 4)
    assert [(round(cell.filled, 3), cell.kind) for cell in found] == [
        (1.0, "GEMM"), (1.0, "GEMM"), (1.0, "copy"), (0.2, "GEMM"),
    ]  # fmt: skip
    assert cells([], ShownStretch(0.0, 1.0), 3)[1].kind == ""
    zoomed = cells(spans, ShownStretch(0.5, 0.75), 2)
    assert [cell.kind for cell in zoomed] == ["copy", "copy"]


@pytest.mark.slow("a process that imports three screens; numpy there costs start-up time alone")
def test_a_written_report_is_shown_without_numpy(captures: Path) -> None:
    import subprocess

    from tests.support.processes import environment

    code = (
        "import sys, threading, tui.screens.report, tui.screens.timeline, tui.screens.comparison\n"
        "from pathlib import Path\nfrom tui.screens import report_picker\ndone = threading.Event()\n"
        f"report_picker.read(Path({str(captures / '1-healthy')!r}), lambda result: done.set())\n"
        "assert done.wait(200)\nsys.exit('numpy' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], env=environment(), timeout=240).returncode == 0
