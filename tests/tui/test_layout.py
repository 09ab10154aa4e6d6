"""The layout over all sizes: nothing overlaps, nothing is left out without a sign."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tui.layout import Layout, Rect, arrange, visible


@st.composite
def asks(draw: st.DrawFn, least: tuple[int, int] = (60, 15)) -> dict[str, object]:
    gpus = draw(st.integers(0, 16))
    ranks = draw(st.integers(0, 64))
    alerting = draw(st.lists(st.integers(0, max(gpus - 1, 0)), unique=True, max_size=gpus)) if gpus else []
    return {
        "width": draw(st.integers(least[0], 250)),
        "height": draw(st.integers(least[1], 70)),
        "gpus": gpus,
        "ranks": ranks,
        "alerting": alerting,
        "selected": draw(st.none() | st.integers(0, gpus - 1)) if gpus else None,
        "notes": draw(st.integers(0, 3)),
    }


def placed(ask: dict[str, object]) -> Layout:
    return arrange(**ask)  # type: ignore[arg-type]


def cells(rect: Rect) -> set[tuple[int, int]]:
    return {(x, y) for x in range(rect.x, rect.x + rect.width) for y in range(rect.y, rect.y + rect.height)}


@given(asks(least=(1, 1)))
@example({"width": 1, "height": 1, "gpus": 16, "ranks": 64, "alerting": [3]})
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


@given(asks())
def test_every_gpu_is_shown_or_counted(ask: dict[str, object]) -> None:
    layout = placed(ask)
    shown = [position for position, _ in layout.cards]
    assert len(set(shown)) == len(shown)
    assert len(shown) + layout.hidden == ask["gpus"]
    assert (layout.more is not None) == (layout.hidden > 0)
    if ask["gpus"] == 0:
        assert layout.empty is not None


@given(asks())
def test_gpus_with_an_alert_are_the_last_to_be_left_out(ask: dict[str, object]) -> None:
    layout = placed(ask)
    shown = {position for position, _ in layout.cards}
    alerting = set(ask["alerting"])  # type: ignore[call-overload]
    assert shown or not ask["gpus"]
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
    assert layout.alerts.height == (1 if layout.height <= 24 else 2)


@given(asks())
def test_the_training_always_has_a_place(ask: dict[str, object]) -> None:
    layout = placed(ask)
    assert layout.header is not None
    assert layout.footer is not None
    assert layout.steps is not None


@given(asks())
def test_cards_of_one_form_have_one_size(ask: dict[str, object]) -> None:
    layout = placed(ask)
    assert len({rect.height for _, rect in layout.cards}) <= 1
    widths = {rect.width for _, rect in layout.cards}
    assert not widths or max(widths) - min(widths) <= 2


@given(
    st.integers(0, 64),
    st.integers(0, 64),
    st.lists(st.integers(0, 63), max_size=8),
    st.none() | st.integers(0, 63),
)
def test_the_visible_ones_fill_the_room_in_order(
    count: int, room: int, alerting: list[int], selected: int | None
) -> None:
    shown = visible(count, room, alerting, selected)
    assert shown == sorted(set(shown))
    assert len(shown) == min(count, room)
    assert all(0 <= position < count for position in shown)


def test_eight_gpus_and_eight_ranks_are_full_cards_on_a_large_screen_and_lines_on_a_small_one() -> None:
    large = arrange(200, 50, gpus=8, ranks=8)
    assert large.form == "full"
    assert {rect.width for _, rect in large.cards} == {50}
    assert large.ranks is not None
    small = arrange(80, 24, gpus=8, ranks=8)
    assert small.form == "line"
    assert len(small.cards) == 8


def test_two_gpus_on_a_wide_flat_screen_take_two_lines_each() -> None:
    assert arrange(100, 16, gpus=4, ranks=0).form == "compact"
