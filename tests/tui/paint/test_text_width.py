"""Width of texts in cells, held against rich, whose cache it leaves alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cached_cell_len

from tui.paint.text_width import cell_len

TEXTS = st.text() | st.text("▁█≥µ°×日本👩🏽\u200d\ufe0f\u0301 a1\t\x1b\n")


@given(TEXTS)
def test_it_is_as_wide_as_rich_measures(text: str) -> None:
    assert cell_len(text) == cached_cell_len(text)


def test_no_text_is_kept() -> None:
    cached_cell_len.cache_clear()
    assert [cell_len(text) for text in ("57.1 ms", "µs", "▁▂▃", "日本", "\x1b")] == [7, 2, 3, 4, 0]
    assert cached_cell_len.cache_info().currsize == 0
