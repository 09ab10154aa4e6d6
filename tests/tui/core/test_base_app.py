"""What every app of ours does at its start."""

from __future__ import annotations

import pytest
from textual.app import App
from textual.css.stylesheet import Stylesheet

from tests.tui.driving import Held
from tui.app import LlmtopApp
from tui.paint.palette import THEMES

NAMES = [theme.name for theme in THEMES]


@pytest.mark.parametrize("name", NAMES)
async def test_the_style_sheets_are_read_once_and_have_the_theme_s_colours(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    read: list[Stylesheet] = []
    reparse = Stylesheet.reparse
    monkeypatch.setattr(Stylesheet, "reparse", lambda sheet: (read.append(sheet), reparse(sheet))[1])
    app = LlmtopApp(Held(), theme=name)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert not read, "the first frame needs no second reading"
        colors, classes = app.screen.background_colors, set(app.classes)
        App.refresh_css(app)
        await pilot.pause()
        assert (app.screen.background_colors, set(app.classes)) == (colors, classes)
        read.clear()
        app.theme = next(other for other in NAMES if other != name)
        await pilot.pause()
        assert read, "another theme has other colours"
