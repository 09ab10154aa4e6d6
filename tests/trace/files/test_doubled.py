"""Events that are there twice: counted once and named; alike rows that are no doubles stay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from llmtop.analysis.analyze import analyze
from llmtop.trace.files.open import open_trace
from tests.support.traces import Capture, steady, write_chrome, write_sqlite


def _merged(path: Path, part: float) -> Path:
    """A trace with its events, and part of them once more."""
    whole = json.loads(path.read_text())
    events = whole["traceEvents"]
    whole["traceEvents"] = [*events, *events[: round(part * len(events))]]
    twice = path.with_name("twice.json")
    twice.write_text(json.dumps(whole))
    return twice


def _training() -> Capture:
    made = steady(steps=40)
    for step in range(40):
        made.operator("aten::mm", step * 10_000 + 5, step * 10_000 + 40)
    return made


@pytest.mark.parametrize("part", [1.0, 0.4])
def test_figures_are_those_of_the_file_without_doubles(tmp_path: Path, part: float) -> None:
    once = write_chrome(tmp_path / "once.json", _training())
    twice = analyze(_merged(once, part))
    expected = analyze(once)
    for name in ("kernels", "devices", "api", "operators", "phases", "verdict", "steps"):
        assert getattr(twice, name) == getattr(expected, name), name
    assert [note for note in twice.notes if "events are in the file twice" in note]


def test_a_copy_of_a_file_is_no_second_rank(tmp_path: Path) -> None:
    path = write_sqlite(tmp_path / "rank0.sqlite", [_training()])
    shutil.copy(path, tmp_path / "rank0 (copy).sqlite")
    trace = open_trace(tmp_path)
    assert len(trace.ops) == 40
    assert [note for note in trace.notes if "holds the same events as" in note]


def test_operators_that_are_alike_by_rounding_stay(tmp_path: Path) -> None:
    made = _training()
    for step in range(40):  # of no length at the resolution of the file, twice
        made.operator("aten::empty", step * 10_000 + 6, step * 10_000 + 6)
        made.operator("aten::empty", step * 10_000 + 6, step * 10_000 + 6)
    trace = open_trace(write_chrome(tmp_path / "made.json", made))
    assert len(trace.host) == 40 + 80
    assert not trace.notes


def test_a_capture_of_the_cpu_alone(tmp_path: Path) -> None:
    made = Capture()
    for step in range(30):
        made.operator("aten::mm", step * 100, step * 100 + 90)
    trace = open_trace(_merged(write_chrome(tmp_path / "once.json", made), 1.0))
    assert len(trace.host) == 30
    assert np.diff(np.sort(trace.host.start)).min() > 0
