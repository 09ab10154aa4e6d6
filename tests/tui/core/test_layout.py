"""The layout over all sizes: nothing overlaps, nothing is left out without a sign, nothing jumps."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tui.core.layout import FULL_HEIGHT, Layout, arrange, visible


@st.composite
def asks(draw: st.DrawFn, least: tuple[int, int] = (60, 15)) -> dict[str, object]:
    lines = draw(st.integers(0, 80))
    alerting = draw(st.lists(st.integers(0, max(lines - 1, 0)), unique=True, max_size=lines)) if lines else []
    return {
        "width": draw(st.integers(least[0], 250)),
        "height": draw(st.integers(least[1], 70)),
        "lines": lines,
        "phases": draw(st.integers(0, 12)),
        "trains": draw(st.booleans()),
        "rows": draw(st.integers(1, 14)),
        "alerting": alerting,
        "selected": draw(st.none() | st.integers(0, lines - 1)) if lines else None,
        "notes": draw(st.integers(0, 3)),
        "processes": draw(st.integers(0, 30)),
    }


def placed(ask: dict[str, object]) -> Layout:
    return arrange(**ask)  # type: ignore[arg-type]


@given(asks(least=(1, 1)))
@example({"width": 1, "height": 1, "lines": 64, "trains": True, "alerting": [3]})
def test_no_part_overlaps_another_or_leaves_the_screen(ask: dict[str, object]) -> None:
    layout = placed(ask)
    parts = list(layout.parts())
    for rect in parts:
        assert rect.width > 0, rect
        assert rect.height > 0, rect
        assert rect.x >= 0, rect
        assert rect.y >= 0, rect
        assert rect.x + rect.width <= layout.width, rect
        assert rect.y + rect.height <= layout.height, rect
    for index, one in enumerate(parts):
        for other in parts[index + 1 :]:
            apart = (
                one.x + one.width <= other.x
                or other.x + other.width <= one.x
                or one.y + one.height <= other.y
                or other.y + other.height <= one.y
            )
            assert apart, (one, other)


@given(asks(least=(1, 1)))
def test_no_row_of_the_screen_is_left_over(ask: dict[str, object]) -> None:
    layout = placed(ask)
    assert sum(rect.height for rect in layout.parts()) == layout.height


@given(asks())
def test_every_line_of_the_table_is_shown_or_counted(ask: dict[str, object]) -> None:
    layout = placed(ask)
    shown = [position for position, _ in layout.entries]
    assert len(set(shown)) == len(shown)
    assert len(shown) + layout.hidden == ask["lines"]
    assert (layout.more is not None) == (layout.hidden > 0)
    assert (layout.empty is None) == bool(ask["lines"])


@given(asks())
def test_lines_with_an_alert_are_the_last_to_be_left_out(ask: dict[str, object]) -> None:
    layout = placed(ask)
    shown = {position for position, _ in layout.entries}
    alerting = set(ask["alerting"])  # type: ignore[call-overload]
    assert shown or not ask["lines"]
    assert alerting <= shown or shown <= alerting
    if alerting:
        assert layout.alerts is not None


@given(asks(least=(1, 1)))
def test_nothing_moves_when_an_alert_comes_or_goes(ask: dict[str, object]) -> None:
    with_it, without = placed(ask), placed({**ask, "alerting": ()})
    assert list(with_it.parts()) == list(without.parts())


@given(asks())
def test_the_shown_alert_has_one_row_on_a_low_screen_and_two_on_a_higher_one(ask: dict[str, object]) -> None:
    layout = placed(ask)
    assert layout.alerts is not None
    few = len(layout.entries) + layout.hidden <= 8
    assert layout.alerts.height == (2 if layout.height > 24 or (layout.height == 24 and few) else 1)


@given(asks())
def test_the_step_and_the_time_line_always_have_a_place(ask: dict[str, object]) -> None:
    layout = placed(ask)
    assert layout.header is not None
    assert layout.footer is not None
    assert layout.steps is not None
    assert layout.timeline is not None
    assert layout.timeline.height >= 2, "a row and the ruler"


@given(asks())
@example(
    {"width": 80, "height": FULL_HEIGHT - 1, "lines": 16, "phases": 1, "trains": True, "rows": 1, "alerting": []}
)
def test_one_row_more_takes_nothing_from_the_table(ask: dict[str, object]) -> None:
    def shown(height: int) -> int:
        return len(placed({**ask, "height": height}).entries)

    height = ask["height"]
    assert isinstance(height, int)
    # From 80x24 on phases take up to four rows more, power and utilization two, and one of them is the new one.
    # Where all lines had room, one more row counts those that have none.
    taken = 5 + (shown(height) == ask["lines"]) if height + 1 == FULL_HEIGHT else 1
    assert shown(height + 1) >= shown(height) - taken, "a row for keys or the machine may take one"


@given(
    st.integers(0, 64),
    st.integers(0, 64),
    st.lists(st.integers(0, 63), max_size=8),
    st.none() | st.integers(0, 63),
)
def test_the_visible_ones_fill_the_room_and_an_alerting_one_replaces_the_last(
    count: int, room: int, alerting: list[int], selected: int | None
) -> None:
    shown = visible(count, room, alerting, selected)
    usual = visible(count, room, [], selected)
    assert usual == sorted(usual)
    assert len(set(shown)) == len(shown)
    assert all(one == other or one in alerting for one, other in zip(shown, usual, strict=True)), "no other moves"
    accused = {position for position in alerting if position < count}
    assert accused <= set(shown) or set(shown) <= accused
    assert len(shown) == min(count, room)
    assert all(0 <= position < count for position in shown)


def test_eight_gpus_are_all_in_the_table_at_every_usual_size() -> None:
    for width, height in ((60, 15), (80, 24), (120, 30), (200, 50), (250, 70)):
        layout = arrange(width, height, lines=8, phases=6, trains=True, processes=8)
        assert len(layout.entries) == 8, (width, height)
    assert arrange(100, 12, lines=8, phases=6, trains=True).hidden == 4


@given(asks())
def test_without_a_training_its_area_is_the_whole_hint_or_one_line(ask: dict[str, object]) -> None:
    layout = placed({**ask, "trains": False})
    assert layout.steps is not None
    assert layout.steps.height in (1, 7)
