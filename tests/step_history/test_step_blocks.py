"""Values of blocks, each list made once and its median taken without all logarithms."""

from __future__ import annotations

import random
from statistics import median

import pytest

from llmtop.step_history.step_blocks import Block, Columns, median_level, series_of


@pytest.mark.parametrize("number", [1, 2, 5, 8, 33])
def test_the_median_is_that_of_the_series(number: int) -> None:
    chance = random.Random(number)
    blocks = [
        Block(
            place, 8, place, 0.0, 1.0, chance.gauss(0, 1), 0.0, 0.0, {"a": chance.random(), f"b{place % 2}": 0.1}
        )
        for place in range(number)
    ]
    columns = Columns(blocks)
    for name in (None, "a", "b0", "absent"):
        expected = median(series_of(blocks, name, 0.7))
        assert median_level(columns.column(name), None if name is None else 0.7) == pytest.approx(
            expected, rel=1e-12
        )
