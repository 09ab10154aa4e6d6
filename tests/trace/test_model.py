"""The tables that a capture is held in."""

from __future__ import annotations

import numpy as np
import pytest

from llmtop.trace import model
from llmtop.trace.intervals import Numbers
from tests.support.tables import PID, Tables


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


def _table(*spans: tuple[int, int]) -> model.Table:
    return model.build(model.Table, {"start": [a for a, _ in spans], "end": [b for _, b in spans]})


@pytest.mark.parametrize(
    ("chosen", "starts", "shares"),
    [
        ([True, True, True, True], [0, 1, 2, 3], True),
        ([False, True, True, False], [1, 2], True),
        ([False, False, False, True], [3], True),
        ([True, False, True, True], [0, 2, 3], False),
        ([False] * 4, [], False),
        ([0, 1, 2, 3], [0, 1, 2, 3], True),
        ([1, 2], [1, 2], True),
        ([2, 1], [2, 1], False),
        ([0, 2], [0, 2], False),
        ([1, 1, 3], [1, 1, 3], False),
        ([-1, 0], [3, 0], False),
    ],
)
def test_chosen_rows_that_follow_one_another_share_the_table_s_memory(
    chosen: list[int], starts: list[int], shares: bool
) -> None:
    table = _table((0, 5), (1, 6), (2, 7), (3, 8))
    found = table.select(np.array(chosen, dtype=bool if chosen and isinstance(chosen[0], bool) else np.int64))
    assert found.start.tolist() == starts
    assert found.end.tolist() == [start + 5 for start in starts]
    assert np.shares_memory(found.start, table.start) == shares
    assert (found is table) == (starts == [0, 1, 2, 3])


def test_rows_of_a_constant_column_need_no_memory() -> None:
    column = np.broadcast_to(np.int64(7), 9)
    some = np.array([False, True, False, True] + [False] * 5)
    for chosen, count in ((some, 2), (np.array([5, 3, 1]), 3)):
        found = model.take_rows(column, chosen)
        assert (found.tolist(), found.strides) == ([7] * count, (0,))


@pytest.mark.parametrize(
    ("largest", "kind"), [(1, np.int32), ((1 << 31) - 1, np.int32), (1 << 31, np.int64), (1 << 40, np.int64)]
)
def test_numbers_of_rows_take_32_bits_where_they_fit(largest: int, kind: type) -> None:
    assert model.index_type(largest) == kind
    for value in (largest, -largest - 1):
        assert model.narrowed(np.array([0, value])).dtype == kind
        assert model.narrowed(np.array([0, value])).tolist() == [0, value]


@pytest.mark.parametrize(
    ("column", "runs"),
    [
        ([], {}),
        ([5], {5: slice(0, 1)}),
        ([5, 5, 3], {5: slice(0, 2), 3: slice(2, 3)}),
        ([5, 3, 5], None),
        ([1, 2, 3], {1: slice(0, 1), 2: slice(1, 2), 3: slice(2, 3)}),
    ],
)
def test_runs_are_of_values_that_do_not_come_again(column: list[int], runs: dict[int, slice] | None) -> None:
    assert model.runs_of_values(np.array(column, dtype=np.int64)) == runs


def test_keys_are_equal_where_process_and_id_are() -> None:
    calls = [(7, 1), (9, 1), (7, (1 << 32) - 1), (9, -1)]
    ops = [(9, 1), (7, (1 << 32) - 1), (8, 1), (9, -1)]
    keys = model.join_keys(*(np.array(column) for pairs in (calls, ops) for column in zip(*pairs, strict=True)))
    assert keys is not None
    for left, call in zip(keys[0].tolist(), calls, strict=True):
        for right, op in zip(keys[1].tolist(), ops, strict=True):
            assert (left == right) == (call == op)
    nothing: Numbers = np.empty(0, dtype=np.int64)
    one = np.array([1])
    assert model.join_keys(nothing, nothing, one, one) is None
    assert model.join_keys(one, one, nothing, nothing) is None


def test_columns_of_tables_are_joined_and_stay_constant_where_they_are() -> None:
    tables = [_table((0, 1), (0, 2)), _table(), _table((0, 3), (0, 4)), _table((0, 9), (0, 9))]
    whole = model.joined(tables)
    assert whole.end.tolist() == [1, 2, 3, 4, 9, 9]
    assert whole.start.strides == (0,)
    assert model.joined([_table(), tables[0], _table()]) is tables[0]
    assert len(model.joined([_table(), _table()])) == 0
    other = model.joined([_table((0, 1), (0, 2)), _table((5, 6), (5, 7))])
    assert other.start.tolist() == [0, 0, 5, 5]
    wide = np.array([1, 1 << 31])
    for parts, kind in (([np.array([1]), np.array([2])], np.int32), ([np.array([1]), wide], np.int64)):
        assert model.join_columns(parts, narrow=True).dtype == kind


def test_columns_of_one_table_have_one_length() -> None:
    with pytest.raises(ValueError, match=r"Table.end has 1 rows, not 2"):
        model.build(model.Table, {"start": [1, 2], "end": [3]})
    made = model.build(model.HostSpans, {"start": [1, 2]})
    assert (made.end.tolist(), made.name.tolist(), made.name.dtype, made.kind.dtype) == (
        [0, 0],
        [0, 0],
        np.int32,
        np.int8,
    )


def test_a_column_is_constant_where_all_its_rows_are() -> None:
    for values, shared in (([5, 5, 5], True), ([5, 6, 5], False), ([5], False), ([5, 6], False)):
        found = model.shared_if_constant(np.array(values))
        assert found.tolist() == values
        assert (found.strides == (0,)) == shared
        assert model.change_values(found, lambda column: column + 1).tolist() == [value + 1 for value in values]


def test_the_window_is_from_the_first_to_the_last_instant_of_what_has_an_end() -> None:
    made = Tables()
    assert made.trace().window == (0, 0)
    made.range("open", 1, int(model.OPEN))
    made.range("closed", 50, 60)
    assert made.trace().window == (50, 60)
    made.op(40, 55)
    made.call("cudaMalloc", 45, 70)
    assert made.trace().window == (40, 70)
    made.host("aten::mm", 30, 65)
    assert made.trace().window == (30, 70)
    samples = model.build(model.StackSamples, {"start": [5, 9], "end": [5, 9]})
    assert made.trace(samples=samples).window == (30, 70)
    assert Tables().trace(samples=samples).window == (5, 9)


def _gpu(uuid: str | None) -> model.TracedGpu:
    return model.TracedGpu(0, "GPU", uuid)


@pytest.mark.parametrize(
    ("gpus", "files", "one", "other", "same"),
    [
        ({(1, 0): "a", (2, 0): "a"}, {1: 0, 2: 1}, (1, 0), (2, 0), True),
        ({(1, 0): "a", (2, 0): "b"}, {}, (1, 0), (2, 0), False),
        ({(1, 0): "a", (2, 3): "a"}, {}, (1, 0), (2, 3), True),
        ({(1, 0): "a"}, {}, (1, 0), (2, 0), True),
        ({(1, 0): "a"}, {}, (1, 0), (2, 1), False),
        ({}, {1: 0, 2: 0}, (1, 0), (2, 0), True),
        ({}, {1: 0, 2: 1}, (1, 0), (2, 0), False),
        ({(1, 0): "a", (2, 0): None}, {1: 0, 2: 1}, (1, 0), (2, 0), False),
    ],
)
def test_processes_share_a_gpu_by_its_uuid_else_by_its_number_in_one_file(
    gpus: dict[tuple[int, int], str | None],
    files: dict[int, int],
    one: tuple[int, int],
    other: tuple[int, int],
    same: bool,
) -> None:
    trace = model.Trace("made", "nsys", gpu_of={key: _gpu(uuid) for key, uuid in gpus.items()}, file_of=files)
    assert trace.same_gpu(one, other) == same
    assert trace.same_gpu(other, one) == same


def test_the_gpu_of_a_process_comes_before_that_of_the_number() -> None:
    own, other = model.TracedGpu(0, "own"), model.TracedGpu(0, "other")
    trace = model.Trace("made", "nsys", gpus={0: other}, gpu_of={(PID, 0): own})
    assert (trace.gpu(PID, 0), trace.gpu(7, 0), trace.gpu(PID, 1)) == (own, other, None)


@pytest.mark.parametrize(
    ("engine", "framework"),
    [("nsys", None), ("kineto", None), ("jax.profiler", "JAX"), ("xla.profiler", "torch_xla")],
)
def test_the_framework_is_that_of_the_tool(engine: str, framework: str | None) -> None:
    assert model.Trace("made", engine).framework == framework


def test_a_value_is_made_once_for_a_key() -> None:
    trace, made = model.Trace("made", "nsys"), []

    def make() -> int:
        made.append(1)
        return len(made)

    assert [trace.once("x", key, make) for key in (1, 1, 2, 2, None, None, 1)] == [1, 1, 2, 2, 3, 3, 4]
    assert trace.once("y", 1, make) == 5
    assert trace.once("x", 1, make) == 4


def test_names_are_numbered_in_order_and_cost_their_characters() -> None:
    names = model.Names()
    assert [names.number(name) for name in ("", "a", "bcd", "a", "")] == [0, 1, 2, 1, 0]
    assert names.all == ["", "a", "bcd"]
    assert names.characters == (1 + 200) + (3 + 200)
