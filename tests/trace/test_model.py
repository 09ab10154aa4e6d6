"""The tables that a capture is held in."""

from __future__ import annotations

import numpy as np

from llmtop.trace import model


def test_pairs_are_those_that_occur_in_order() -> None:
    random = np.random.default_rng(5)
    one, other = random.integers(-3, 4, 500), random.integers(0, 3, 500) << 40
    expected = sorted(set(zip(one.tolist(), other.tolist(), strict=True)))
    assert model.pairs(one, other).tolist() == [list(pair) for pair in expected]
    nothing = np.empty(0, dtype=np.int64)
    assert model.pairs(nothing, nothing).shape == (0, 2)
