"""The tables that a capture is held in."""

from __future__ import annotations

import numpy as np
import pytest

from llmtop.trace import model


def test_pairs_are_those_that_occur_in_order() -> None:
    random = np.random.default_rng(5)
    one, other = random.integers(-3, 4, 500), random.integers(0, 3, 500) << 40
    expected = sorted(set(zip(one.tolist(), other.tolist(), strict=True)))
    assert model.pairs(one, other).tolist() == [list(pair) for pair in expected]
    nothing = np.empty(0, dtype=np.int64)
    assert model.pairs(nothing, nothing).shape == (0, 2)


@pytest.mark.parametrize("apart", [True, False])
def test_work_belongs_to_the_first_call_with_its_id_in_its_process(apart: bool) -> None:
    random = np.random.default_rng(8)
    ids = np.append(-1, np.arange(60) * 70_000_000)  # CUPTI's have 32 bits
    calls = np.stack([random.integers(0, 4, 400), random.choice(ids, 400)], axis=1)
    ops = np.stack([random.integers(1, 6, 300), random.choice(ids, 300)], axis=1)
    if apart:  # each process's rows follow one another, as of files that are read together
        calls, ops = calls[np.argsort(-calls[:, 0], kind="stable")], ops[np.argsort(ops[:, 0], kind="stable")]
    trace = model.Trace(
        "made",
        "kineto",
        calls=model.build(model.ApiCalls, {"process": calls[:, 0], "correlation": calls[:, 1]}),
        ops=model.build(model.DeviceOps, {"process": ops[:, 0], "correlation": ops[:, 1]}),
    )
    first: dict[tuple[int, int], int] = {}
    for row, key in enumerate(map(tuple, calls.tolist())):
        first.setdefault(key, row)
    expected = [first.get((pid, number), -1) if number >= 0 else -1 for pid, number in ops.tolist()]
    assert trace.launched_by.tolist() == expected
    assert max(expected) >= 0
    for pid in range(6):
        own = trace.rows_of("calls", pid)
        assert set(np.flatnonzero(calls[:, 0] == pid).tolist()) <= set(range(400)[own])
        assert not apart or own.stop - own.start == int((calls[:, 0] == pid).sum())


def test_the_rows_of_a_process_are_those_of_the_table_that_the_trace_has_now() -> None:
    trace = model.Trace("made", "kineto", calls=model.build(model.ApiCalls, {"process": [7, 7, 9, 9, 9]}))
    assert [trace.rows_of("calls", pid) for pid in (7, 9, 8)] == [slice(0, 2), slice(2, 5), slice(0, 0)]
    trace.calls = trace.calls.select(np.array([False, True, True, False, False]))
    assert [trace.rows_of("calls", pid) for pid in (7, 9)] == [slice(0, 1), slice(1, 2)]


def test_ids_take_32_bits_only_where_all_fit() -> None:
    for largest, kind in (((1 << 31) - 1, np.int32), (1 << 31, np.int64), ((1 << 32) - 1, np.int64)):
        calls = model.build(model.ApiCalls, {"correlation": [-1, 5, largest]})
        assert calls.correlation.dtype == kind
        assert calls.correlation.tolist() == [-1, 5, largest]
