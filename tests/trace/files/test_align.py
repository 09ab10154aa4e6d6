"""Files of several machines, whose clocks differ, on one time line: by the ends of the collectives in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.trace.files.open import open_trace
from tests.support.labelled import SETS, unpacked_set
from tests.support.traces import Capture, write_chrome

RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
BASE = 1_000_000_000_000_000_000
STEP = 10_000.0
"""In µs, as everything here."""


def two_ranks(folder: Path, ahead_us: float, *, steps: int = 6, missing: int = 0, jitter: float = 0.0) -> None:
    """Two ranks with three collectives a step that end together; the second comes later to each.

    Args:
        ahead_us: how far the second one's clock is ahead.
        missing: how many of its first collectives the second has not recorded.
        jitter: by how much every other of its ends is later.
    """
    for rank in range(2):
        capture = Capture(pid=10 + rank)
        moved = ahead_us * rank
        for step in range(steps):
            begun = 1000 + step * STEP
            capture.range(f"ProfilerStep#{step + 40}", begun + moved, begun + STEP - 10 + moved)
            for place in range(3):
                number = 3 * step + place
                if rank and number < missing:
                    continue
                end = begun + 2000 + 1500 * place + (jitter if rank and number % 2 else 0.0)
                start = end - 900 + 500 * rank
                capture.kernel(start + moved, end + 5 * rank + moved, launched=begun + 100 + moved, name=RING)
        write_chrome(folder / f"rank{rank}.json", capture, baseTimeNanoseconds=BASE,
                     distributedInfo={"rank": rank, "world_size": 2})  # fmt: skip


def apart_us(folder: Path) -> tuple[float, list[str]]:
    """How far the last collective's ends are apart on the common time line, and what is noted."""
    trace = open_trace(folder)
    ends = [max(trace.ops.end[trace.ops.process == pid].tolist()) for pid in (10, 11)]
    return (ends[1] - ends[0]) / 1000, [note for note in trace.notes if "clock" in note]


@pytest.mark.parametrize("ahead", [3000.0, -3000.0, 40_000.0, -7_000_000.0])
@pytest.mark.parametrize("missing", [0, 2])
def test_clocks_that_differ_are_told_by_the_ends_of_collectives(
    tmp_path: Path, ahead: float, missing: int
) -> None:
    two_ranks(tmp_path, ahead, missing=missing)
    apart, notes = apart_us(tmp_path)
    assert abs(apart) < 10
    (note,) = notes
    assert f"{'ahead of' if ahead > 0 else 'behind'} that of" in note
    assert "its times were moved by that" in note


def test_clocks_that_agree_are_left_alone(tmp_path: Path) -> None:
    two_ranks(tmp_path, 60.0)
    assert apart_us(tmp_path) == (pytest.approx(65.0), [])


def test_ends_that_are_all_over_the_place_tell_nothing(tmp_path: Path) -> None:
    two_ranks(tmp_path, 3000.0, jitter=900.0)
    apart, notes = apart_us(tmp_path)
    assert (apart > 3000, notes) == (True, [])


def test_too_few_collectives_tell_nothing(tmp_path: Path) -> None:
    two_ranks(tmp_path, 3000.0, steps=2)
    assert apart_us(tmp_path) == (pytest.approx(3005.0), [])


@pytest.mark.slow("reads all real traces; test_steps and test_calls_a_step read one")
def test_real_ranks_of_one_machine_have_one_clock(tmp_path: Path) -> None:
    seen = 0
    for number, packed in enumerate(SETS):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, _, path in unpacked_set(packed, folder):
            if path.is_dir():
                seen += 1
                assert [note for note in open_trace(path).notes if "its clock is" in note] == [], name
    assert seen > 3
