"""The moving picture of the README: python -m screenshots.moving

Frames of the recording that `llmtop demo` shows, and of the prepared captures that it opens, as one animated SVG.
Each frame is the screen's own export.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from collectors.replay import ReplayFeed
from llmtop.capture.prepared import PreparedCaptures
from llmtop.recording.reader_writer import Reader
from llmtop.rules.engine import Rules
from tui.app import LlmtopApp
from tui.core.canvas import Board

HERE = Path(__file__).parent
DATA = HERE.parent / "llmtop" / "data"
OUT = HERE / "demo.svg"
SIZE = (110, 28)
STORY: tuple[tuple[float | str, str, float], ...] = (
    (15.0, "", 2.0),
    (28.0, "", 1.5),
    (33.0, "", 1.5),
    (36.0, "", 2.0),
    (42.0, "", 3.0),
    ("c", "beforehand", 2.5),
    ("enter", "copy  scp", 4.0),
    ("enter", "fixed", 2.0),
    ("enter", "prepared: The same", 3.0),
    ("o", "gpu-bound", 2.5),
    ("v", "32.9 ms to 14.2 ms", 5.0),
)
"""Seconds of the recording or a key, what is then waited for, and how long the frame stands, in seconds."""
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_FONT = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)
"""What would be loaded from elsewhere: a page shows the reader's own fonts."""


def text(app: LlmtopApp) -> str:
    """What the screen shows."""
    boards = app.screen.query(Board)
    return "\n".join(board.render_line(y).text for board in boards for y in range(board.size.height))


async def frames() -> list[tuple[str, float]]:
    """The screen's exports, and how many seconds each stands."""
    feed = ReplayFeed(Reader(DATA / "demo.llmtop.gz"), lambda: Rules().apply, 1.0)
    prepared = PreparedCaptures(DATA / "demo-captures.tar.xz")
    feed.toggle()
    app = LlmtopApp(feed, prepared=prepared)
    made: list[tuple[str, float]] = []
    async with app.run_test(size=SIZE) as pilot:

        async def until(holds: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 60
            while not holds():
                if time.monotonic() > deadline:
                    raise TimeoutError(text(app))
                await pilot.pause(0.05)

        for what, words, stands in STORY:
            if isinstance(what, float):
                feed.seek(what)
                at = feed.started_at + what
                await until(lambda at=at: abs((app.view.history.instant or 0) - at) < 1)
            else:
                await pilot.press(what)
                await until(lambda words=words: words in text(app))
            await pilot.pause(0.2)
            made.append((app.export_screenshot(title="llmtop demo"), stands))
    prepared.close()
    return made


def animated(shown: list[tuple[str, float]]) -> str:
    """One SVG that shows one frame after the other, for ever."""
    whole = sum(stands for _, stands in shown)
    head = re.match(r"<svg[^>]*>", shown[0][0].strip())
    assert head is not None
    pieces, styles, at = [], [], 0.0
    for number, (drawn, stands) in enumerate(shown):
        unique = re.search(r"terminal-\d+", drawn)
        assert unique is not None
        own = drawn.replace(unique[0], f"f{number}")
        styles.append(_FONT.sub("", "".join(_STYLE.findall(own))))
        body = re.sub(r"</svg>\s*$", "", re.sub(r"^\s*<svg[^>]*>", "", _STYLE.sub("", own)))
        begin, end = 100 * at / whole, 100 * (at + stands) / whole
        at += stands
        styles.append(
            f"@keyframes k{number} {{ 0% {{visibility: {'visible' if begin == 0 else 'hidden'}}} "
            f"{begin:.3f}% {{visibility: visible}} {end:.3f}% {{visibility: hidden}} "
            f"100% {{visibility: hidden}} }}"
            f"#frame{number} {{ visibility: hidden; animation: k{number} {whole:.1f}s step-end infinite; }}"
        )
        pieces.append(f'<g id="frame{number}">{body}</g>')
    return f"{head[0]}<style>{''.join(styles)}</style>{''.join(pieces)}</svg>\n"


def main() -> None:
    """Write the picture."""
    os.environ.setdefault("TERM", "xterm-256color")
    os.environ.setdefault("COLORTERM", "truecolor")
    OUT.write_text(animated(asyncio.run(frames())))
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
