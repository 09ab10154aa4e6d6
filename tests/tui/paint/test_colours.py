"""The colours of phases: told apart by all eyes, the same on every screen, and never the only sign."""

from __future__ import annotations

from itertools import combinations

import pytest
from rich.style import Style

from llmtop.model.snapshot import Phase, Rank
from tests.support.colour_vision import SEEN, difference, seen
from tui.paint.palette import THEMES, Palette
from tui.panes import phase_bars

OWN = [theme for theme in THEMES if not theme.ansi]
STEP = ("dataload", "h2d", "forward", "backward", "allreduce", "optimizer")
"""Phases in the order of a step; time in none follows the last, and the next step's first follows that."""
LEAST = 10.0


def code(style: Style, *, ground: bool = False) -> str:
    color = style.bgcolor if ground else style.color
    assert color is not None
    return color.get_truecolor().hex


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("theme", OWN, ids=lambda theme: theme.name)
def test_phases_beside_each_other_differ_to_all_eyes(theme: object, eyes: str) -> None:
    palette = Palette.build(theme, "full")  # type: ignore[arg-type]
    colors = phase_bars.colors_of(STEP)
    shown = {name: seen(code(palette.phase_bars[colors[name]], ground=True), eyes) for name in STEP}
    ground = seen(code(palette.text, ground=True), eyes)
    for one, other in combinations(STEP, 2):  # any of them may be missing, and then others meet
        assert difference(shown[one], shown[other]) >= LEAST, (one, other)
    for name in STEP:
        assert difference(shown[name], ground) >= LEAST, name


@pytest.mark.parametrize("theme", OWN, ids=lambda theme: theme.name)
def test_all_eight_differ_by_something_to_all_eyes(theme: object) -> None:
    palette = Palette.build(theme, "full")  # type: ignore[arg-type]
    for eyes in SEEN:
        shown = [seen(code(style, ground=True), eyes) for style in palette.phase_bars]
        for one, other in combinations(shown, 2):
            assert difference(one, other) >= 7.0


def test_the_formula_gives_what_its_authors_published() -> None:
    # Sharma, Wu, Dalal (2005), table 1, pairs 1, 15 and 17.
    assert difference((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485)) == pytest.approx(2.0425, abs=1e-4)
    assert difference((50.0, -0.001, 2.49), (50.0, 0.0011, -2.49)) == pytest.approx(4.7461, abs=1e-4)
    assert difference((50.0, 2.5, 0.0), (73.0, 25.0, -18.0)) == pytest.approx(27.1492, abs=1e-4)


def test_a_phase_keeps_its_colour_whatever_the_others_are_and_however_it_is_called() -> None:
    usual = phase_bars.colors_of(STEP)
    for left_out in STEP:
        rest = phase_bars.colors_of([name for name in STEP if name != left_out])
        assert all(rest[name] == usual[name] for name in rest)
    odd = phase_bars.colors_of(
        ["zero_grad", "next_batch", "to_device", "forward", "loss", "backward", "optimizer"]
    )
    assert odd["next_batch"] == usual["dataload"]
    assert odd["to_device"] == usual["h2d"]
    assert [odd[name] for name in ("forward", "backward", "optimizer")] == [
        usual[name] for name in ("forward", "backward", "optimizer")
    ]
    assert len(set(odd.values())) == len(odd), "while there are colours left, no two phases share one"


def test_every_phase_has_a_letter_of_its_own() -> None:
    names = ["forward", "forward2", "f", "", "前向", "backward"]
    found = phase_bars.letters(names)
    assert found["forward"] == "f"
    assert len({found[name] for name in names[:3]}) == 3
    assert all(len(found[name]) == 1 for name in names)


def test_ranks_and_steps_have_the_same_colours() -> None:
    rank = Rank(pid=1, host="node", phases=tuple(Phase(name=name, host_seconds=0.1) for name in STEP))
    assert {part.phase.name: part.color for part in phase_bars.parts(rank)} == phase_bars.colors_of(STEP)
