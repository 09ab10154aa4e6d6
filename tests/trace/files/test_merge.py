"""Captures of several ranks on one time line: narrow columns where the numbers fit, wide ones where not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from llmtop.trace import model
from llmtop.trace.files.merge import merge
from tests.support.traces import Capture, steady


def _ranks(folder: Path, *pids: int) -> list[model.Trace]:
    return [steady(4, capture=Capture(pid=pid)).chrome_trace(folder) for pid in pids]


@pytest.mark.parametrize(("pids", "kind"), [((7, 8, 9), np.int32), ((7, 8, 1 << 40), np.int64)])
def test_pids_take_as_many_bits_as_they_need(tmp_path: Path, pids: tuple[int, ...], kind: type) -> None:
    files = _ranks(tmp_path, *pids)
    rows = [len(one.ops) for one in files]
    starts = np.concatenate([one.ops.start for one in files])
    merged = merge(files, "all")
    assert merged.ops.process.dtype == kind
    assert merged.ops.process.tolist() == [
        pid for pid, number in zip(pids, rows, strict=True) for _ in range(number)
    ]
    assert np.array_equal(merged.ops.start, starts)


def test_released_files_have_empty_tables_and_the_same_events(tmp_path: Path) -> None:
    files = _ranks(tmp_path, 7, 8)
    first = merge(files, "all")
    second = merge(files, "all", release=True)
    assert [len(one.ops) + len(one.calls) + len(one.ranges) for one in files] == [0, 0]
    for field in dataclasses.fields(first.calls):
        assert np.array_equal(getattr(first.calls, field.name), getattr(second.calls, field.name))


def test_each_kernel_keeps_the_call_of_its_own_rank(tmp_path: Path) -> None:
    # All ranks count their calls from the same number on.
    merged = merge(_ranks(tmp_path, 30, 10, 20), "all")
    by = merged.launched_by
    assert by.dtype == np.int32
    assert (by >= 0).all()
    assert np.array_equal(merged.calls.process[by], merged.ops.process)
    assert np.array_equal(merged.calls.correlation[by], merged.ops.correlation)
