"""The board in a Textual app: what it has drawn when Textual draws for the first time, and for a new size."""

from __future__ import annotations

import asyncio

from textual.app import App, ComposeResult

from tests.tui.paint.test_painting import LOOKS
from tui.core.canvas import Board, Placed
from tui.core.layout import Rect
from tui.paint.rows import Row

_LOOK = LOOKS["dark"]


class _Watched(Board):
    """A board that notes when it draws lines, and when it is resized."""

    def __init__(self, noted: list[str]) -> None:
        super().__init__(self._paint)
        self._noted = noted

    def _paint(self) -> None:
        width, height = self.size
        rows = [
            Row(width).add(f"line {y} of {height}", _LOOK.palette.text).end(_LOOK.palette.text)
            for y in range(height)
        ]
        self.show([Placed(Rect(0, 0, width, height), rows)], _LOOK, self.size)

    def render_lines(self, crop):  # type: ignore[no-untyped-def]
        lines = super().render_lines(crop)
        self._noted.append(lines[0].text.rstrip())
        return lines

    def on_resize(self) -> None:
        self._noted.append("resized")
        super().on_resize()


class _App(App[None]):
    def __init__(self, noted: list[str]) -> None:
        super().__init__()
        self._noted = noted

    def compose(self) -> ComposeResult:
        yield _Watched(self._noted)


def test_the_first_drawing_and_that_of_a_new_size_have_its_lines() -> None:
    noted: list[str] = []

    async def use() -> None:
        async with _App(noted).run_test(size=(40, 5)) as pilot:
            await pilot.pause()
            assert "resized" in noted
            assert noted[0] == "line 0 of 5"
            noted.clear()
            await pilot.resize_terminal(30, 7)
            await pilot.pause()
            assert noted[0] == "line 0 of 7"
            assert "resized" in noted

    asyncio.run(use())
