"""The help: every key, sign and pattern is explained, in two columns where there is room."""

from __future__ import annotations

import re

import pytest

from screenshots.scenes import scene
from tests.tui.driving import Held, running, text
from tui.core import keys
from tui.paint.glyphs import ASCII, UNICODE

SIZES = [(60, 15), (80, 24), (120, 30), (200, 50)]


async def pages(size: tuple[int, int], **options: bool) -> list[str]:
    """Every page of the help, as pgdn goes through them."""
    found: list[str] = []
    async with running(Held(*scene(gpus=1, seconds=5)), size, **options) as (app, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        while not found or text(app) != found[-1]:
            found.append(text(app))
            await pilot.press("pagedown")
            await pilot.pause()
            assert len(found) < 60
    return found


def words(shown: list[str]) -> str:
    return " ".join(re.sub(r"\s+", " ", page) for page in shown)


@pytest.mark.parametrize("size", SIZES)
async def test_every_key_is_explained_on_full_pages(size: tuple[int, int]) -> None:
    shown = await pages(size)
    whole = words(shown)
    for key in keys.KEYS:
        if key.replay is not True:
            assert key.shown in whole
            assert " ".join(key.help.split()[:3]) in whole, key.help
    for page in shown[:-1]:  # full but for header, footer and the line that counts what is below
        assert sum(1 for line in page.splitlines() if line.strip()) > 0.6 * size[1]


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_every_sign_and_every_pattern_is_explained(ascii_only: bool) -> None:
    glyphs = ASCII if ascii_only else UNICODE
    shown = words(await pages((120, 30), ascii=ascii_only))
    for sign in (
        glyphs.critical,
        glyphs.info,
        glyphs.selected,
        glyphs.more,
        glyphs.arrow,
        glyphs.shade,
        glyphs.capture,
    ):
        assert sign in shown
    for place, (letter, name) in enumerate(
        [("f", "forward"), ("b", "backward"), ("h", "h2d"), ("o", "optimizer")]
    ):
        pattern = re.escape(glyphs.fills[place] * 5) if ascii_only else ""
        assert re.search(rf"{letter}{pattern} +{name}", shown), name


async def test_two_columns_take_fewer_pages() -> None:
    assert len(await pages((120, 30))) < len(await pages((100, 30)))
