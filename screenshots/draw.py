"""Draw pictures of the screen: python -m screenshots.draw [NAME ...]

The app is run without a terminal on made-up scenes, its screen exported as SVG and drawn with resvg. Text wants
the font Fira Code; braille wants DejaVu Sans (Debian: fonts-firacode, fonts-dejavu-core). Without Fira Code,
DejaVu Sans Mono is taken.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.replay import ReplayFeed
from llmtop.model.snapshot import Snapshot
from screenshots import captures, reports, situations
from screenshots.scenes import scene

HERE = Path(__file__).parent
_FONTS = (Path("/usr/share/fonts"), Path.home() / ".fonts", Path.home() / ".local/share/fonts")


class StaticFeed:
    """A feed that hands over a scene at once and then holds still."""

    interval = 1.0

    def __init__(self, snapshots: list[Snapshot]) -> None:
        self._snapshots = snapshots

    def start(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Hand over everything."""
        self._on_snapshot = on_snapshot
        for snapshot in self._snapshots:
            on_snapshot(snapshot)

    def repeat(self) -> None:
        """Hand over the last one again."""
        self._on_snapshot(self._snapshots[-1])

    def close(self) -> None:
        """Nothing to stop."""

    def set_interval(self, seconds: float) -> None:
        """Nothing to change."""


@dataclass(frozen=True)
class Picture:
    """One picture: a scene, a size, and keys pressed before."""

    name: str
    size: tuple[int, int]
    scene: Callable[[], list[Snapshot]] | str
    """Snapshots, or the name of a situation whose replay is shown at its end."""
    keys: tuple[str, ...] = ()
    app: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    before: Callable[[Any], None] | None = None
    """Called with the app before the keys are pressed."""
    then: Callable[[Any], None] | None = None
    """The same after them."""


def _anomaly() -> list[Snapshot]:
    return scene(gpus=8, spinning=(3,))


def _alone() -> list[Snapshot]:
    return scene(gpus=1)


def _h200(until: int) -> Callable[[], list[Snapshot]]:
    """The recording of a real H200 that `llmtop demo` shows, up to so many snapshots (two a second)."""

    def recorded() -> list[Snapshot]:
        from itertools import islice

        from llmtop.recording.reader_writer import Reader
        from llmtop.rules.engine import Rules

        rules = Rules()
        path = Path(__file__).resolve().parents[1] / "llmtop" / "data" / "demo.llmtop.gz"
        return [rules.apply(one) for _, one in islice(Reader(path).snapshots(), until)]

    return recorded


PICTURES: tuple[Picture, ...] = (
    Picture("anomaly-200x50", (200, 50), _anomaly),
    Picture("anomaly-120x30", (120, 30), _anomaly),
    Picture("anomaly-80x24", (80, 24), _anomaly),
    Picture("anomaly-60x15", (60, 15), _anomaly),
    Picture("h200-healthy-120x30", (120, 30), _h200(60)),
    Picture("h200-input-bound-120x30", (120, 30), _h200(130)),
    Picture("h200-launch-bound-80x24", (80, 24), _h200(200)),
    Picture("h200-spinning-120x30", (120, 30), _h200(270)),
    Picture("h200-alert-120x30", (120, 30), _h200(270), keys=("a",)),
    Picture("one-gpu-120x30", (120, 30), _alone),
    Picture("one-gpu-80x24", (80, 24), _alone),
    Picture("straggler-120x30", (120, 30), lambda: scene(gpus=2, slow_rank=1)),
    Picture("no-gpu-80x24", (80, 24), lambda: scene(gpus=0, ranks=0, notes=(_NO_DRIVER,))),
    Picture("cpu-training-80x24", (80, 24), lambda: scene(gpus=0, ranks=2, notes=(_NO_DRIVER,))),
    Picture("idle-80x24", (80, 24), lambda: scene(gpus=2, ranks=0)),
    Picture("gpu-large-120x40", (120, 40), _anomaly, keys=("3",)),
    Picture("processes-120x30", (120, 30), _anomaly, keys=("p", "down", "down")),
    Picture("signal-80x24", (80, 24), _anomaly, keys=("p", "X", "down")),
    Picture("capture-dialog-120x30", (120, 30), captures.training, ("c", "down"), before=captures.dialog),
    Picture("capture-dialog-80x24", (80, 24), captures.training, ("c",), before=captures.dialog),
    Picture("capture-progress-120x30", (120, 30), captures.training, ("c",), before=captures.under_way),
    Picture(
        "capture-result-120x40",
        (120, 40),
        captures.training,
        ("c",),
        before=captures.under_way,
        then=captures.finished,
    ),
    Picture("stacks-100x24", (100, 24), captures.training, ("s",), before=captures.stacks),
    Picture("report-120x40", (120, 40), _alone, ("enter",), before=reports.open_report(reports.LAUNCH_BOUND)),
    Picture("report-80x24", (80, 24), _alone, ("down",), before=reports.open_report(reports.LAUNCH_BOUND)),
    Picture("timeline-120x30", (120, 30), _alone, ("l",), before=reports.open_report(reports.TWO_GPUS)),
    Picture(
        "timeline-zoom-120x30",
        (120, 30),
        _alone,
        ("l", *("left_square_bracket",) * 4),
        before=reports.open_report(reports.TWO_GPUS),
    ),
    Picture(
        "compare-120x40",
        (120, 40),
        _alone,
        ("v",),
        before=reports.open_report(reports.HEALTHY, reports.LAUNCH_BOUND),
    ),
    Picture("help-100x40", (100, 40), _alone, keys=("question_mark",)),
    Picture("light-120x30", (120, 30), _anomaly, app={"theme": "light"}),
    Picture("16-colors-120x30", (120, 30), _anomaly, environment={"TEXTUAL_COLOR_SYSTEM": "standard"}),
    Picture("no-color-120x30", (120, 30), _anomaly, environment={"NO_COLOR": "1"}),
    Picture("ascii-120x30", (120, 30), _anomaly, app={"ascii": True}),
    *(
        Picture(f"situation-{name}-{width}x{height}", (width, height), name)
        for name in situations.NAMES
        for width, height in situations.SIZES
    ),
)
_NO_DRIVER = "No NVIDIA driver: libnvidia-ml.so.1 was not found. On a machine with a GPU, install the driver."


async def svg(picture: Picture) -> str:
    """The picture as SVG."""
    from tui.app import LlmtopApp

    if isinstance(picture.scene, str):
        with tempfile.TemporaryDirectory() as folder:
            return await _replayed(situations.feed(picture.scene, Path(folder)), picture)
    feed = StaticFeed(picture.scene())
    app = LlmtopApp(feed, **picture.app)
    async with app.run_test(size=picture.size) as pilot:
        await pilot.pause()
        if picture.before:
            picture.before(app)
        for key in picture.keys:
            await pilot.press(key)
            await pilot.pause(0.1)
        if picture.then:
            picture.then(app)
            await pilot.pause(0.1)
        for _ in range(20):
            if app.view.silent_seconds is None:
                break
            feed.repeat()  # a slow machine took long; the scene is live all the same
            await pilot.pause(0.1)
        return app.export_screenshot(title="llmtop")


async def _replayed(feed: ReplayFeed, picture: Picture) -> str:
    """The last frame of a replay as SVG."""
    from tui.app import LlmtopApp

    app = LlmtopApp(feed, **picture.app)
    async with app.run_test(size=picture.size) as pilot:
        deadline = time.monotonic() + 60
        while not app.view.ended:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{picture.name}: the replay does not end")
            await pilot.pause(0.05)
            app.redraw()
        await pilot.pause()
        return app.export_screenshot(title="llmtop")


def png(drawn: str) -> bytes:
    """SVG to PNG, with fonts of this machine."""
    import resvg_py

    # resvg asks no web; the exported style names a font that it would load from one.
    styled = drawn.replace("Fira Code", "Fira Code, DejaVu Sans Mono, DejaVu Sans")
    folders = [str(folder) for folder in _FONTS if folder.is_dir()]
    return bytes(resvg_py.svg_to_bytes(svg_string=styled, font_dirs=folders, monospace_family="DejaVu Sans Mono"))


def draw(picture: Picture, folder: Path) -> Path:
    """Draw one picture into the folder."""
    path = folder / f"{picture.name}.png"
    path.write_bytes(png(asyncio.run(svg(picture))))
    return path


def main(names: list[str]) -> None:
    """Draw the pictures named, or all."""
    os.environ.setdefault("TERM", "xterm-256color")
    os.environ.setdefault("COLORTERM", "truecolor")
    for picture in PICTURES:
        if names and picture.name not in names:
            continue
        if all(os.environ.get(name) == value for name, value in picture.environment.items()):
            print(draw(picture, HERE))
        else:
            # Textual reads what the terminal can do once, when it is imported.
            command = [sys.executable, "-m", "screenshots.draw", picture.name]
            subprocess.run(command, env={**os.environ, **picture.environment}, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
