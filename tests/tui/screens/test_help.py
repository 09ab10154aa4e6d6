"""The help: about the screen it was called from first, short, with every sign and pattern; searched with /."""

from __future__ import annotations

import re

import pytest

from screenshots.scenes import scene
from tests.tui.driving import Held, reply, running, text
from tui.core import keys
from tui.core.key_lookup import title_of
from tui.paint.glyphs import ASCII, UNICODE

SIZES = [(60, 15), (80, 24), (120, 30), (200, 50)]
WAYS = {keys.MAIN: (), keys.GPU: ("1",), keys.ALERTS: ("a",), keys.PROCESSES: ("p",), keys.RANKS: ("r",)}


async def pages(size: tuple[int, int], way: tuple[str, ...] = (), gpus: int = 2, **options: bool) -> list[str]:
    """Every page of the help, as pgdn goes through them."""
    found: list[str] = []
    async with running(Held(*scene(gpus=gpus, seconds=5)), size, **options) as (app, pilot):
        await pilot.press(*way, "question_mark")
        await pilot.pause()
        while not found or text(app) != found[-1]:
            found.append(text(app))
            await pilot.press("pagedown")
            await pilot.pause()
            assert len(found) < 60
    return found


def words(shown: list[str]) -> str:
    return " ".join(re.sub(r"\s+", " ", page) for page in shown)


@pytest.mark.slow(
    "the main screen at two sizes stands for all; each turns all pages",
    kept=(
        "main-size0",
        "main-size3",
    ),
)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", WAYS)
async def test_it_begins_with_every_key_of_the_screen_it_was_called_from(size: tuple[int, int], name: str) -> None:
    shown = await pages(size, WAYS[name])
    assert f"Keys on {title_of(name)}" in shown[0]
    whole = words(shown)
    for key in keys.for_screen(name):
        assert key.shown.split()[0] in whole
        assert " ".join(key.help.split()[:3]) in whole, key.help
    for page in shown[:-1]:  # full but for header, footer and the line that counts what is below
        assert sum(1 for line in page.splitlines() if line.strip()) > 0.6 * size[1]


async def test_it_is_short_and_says_nothing_of_other_screens() -> None:
    shown = words(await pages((80, 24), ("p",)))
    assert "Keys on processes" in shown
    assert "Colors: phases" not in shown
    assert "baseline" not in shown
    assert len(await pages((80, 24), ("p",))) <= 3
    assert len(await pages((80, 24))) <= 5


async def test_without_a_gpu_it_names_no_key_for_gpus() -> None:
    shown = words(await pages((80, 24), gpus=0))
    for key in keys.for_screen(keys.MAIN):
        if key.help:
            assert (" ".join(key.help.split()[:4]) in shown) is not key.gpu, key.help


async def test_what_is_searched_for_is_found_counted_and_left_again() -> None:
    async with running(Held(*scene(gpus=2, seconds=5)), (80, 24)) as (app, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        await pilot.press("slash", *"tensor")
        await pilot.pause()
        assert "/tensor" in text(app)
        assert "1 line found" in text(app)
        assert "tensor: share of their" in text(app), "while it is typed"
        await pilot.press("enter", "n", "N")
        assert "match 1 of 1" in reply(app)
        await pilot.press("slash", *"no such words", "enter")
        await pilot.pause()
        assert reply(app) == '"no such words" is not on this screen.'
        await pilot.press("question_mark")
        await pilot.pause()
        assert len(app.screen_stack) == 1, "the key that opened it closes it"


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_every_sign_and_every_pattern_is_explained(ascii_only: bool) -> None:
    glyphs = ASCII if ascii_only else UNICODE
    shown = words(await pages((120, 30), ascii=ascii_only))
    for sign in (
        glyphs.critical,
        glyphs.warning,
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


@pytest.mark.slow(
    "turns all pages twice; test_it_begins_with_every_key_of_the_screen_it_was_called_from has two sizes"
)
async def test_two_columns_take_fewer_pages() -> None:
    assert len(await pages((120, 24))) < len(await pages((100, 24)))
