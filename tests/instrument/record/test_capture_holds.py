"""Stretches in which a capture holds the training: which steps they overlap with."""

from __future__ import annotations

import pytest

from llmtop.instrument.record import capture_holds
from llmtop.instrument.record.capture_holds import CaptureHold, CaptureHolds
from tests.support.manual_clock import ManualClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock(100)
    clock.replace_in(monkeypatch, capture_holds)
    return clock


def test_without_a_stretch_there_is_nothing(clock: ManualClock) -> None:
    holds = CaptureHolds()
    assert not holds.has_any
    assert holds.since(0) == []
    assert not holds.overlap(0, 1 << 62)
    holds.end()
    assert not holds.has_any


def test_a_stretch_goes_from_its_begin_to_its_end(clock: ManualClock) -> None:
    holds = CaptureHolds()
    holds.begin("nsys")
    assert holds.has_any
    clock.now = 150
    holds.begin("memory")  # one is under way
    assert holds.since(0) == [CaptureHold("nsys", 100, 150)]
    clock.now = 200
    holds.end()
    clock.now = 300
    holds.end()
    assert holds.has_any
    assert holds.since(0) == [CaptureHold("nsys", 100, 200)]
    holds.begin("memory")
    assert holds.since(0) == [CaptureHold("nsys", 100, 200), CaptureHold("memory", 300, 300)]


@pytest.mark.parametrize(
    ("ended", "engines"), [(0, ["a", "b"]), (19, ["a", "b"]), (20, ["b"]), (39, ["b"]), (40, [])]
)
def test_only_stretches_that_ended_later_are_returned(ended: int, engines: list[str]) -> None:
    holds = CaptureHolds()
    holds.add("a", 10, 20)
    holds.add("b", 30, 40)
    assert [one.engine for one in holds.since(ended)] == engines


@pytest.mark.parametrize(
    ("begun", "ended", "overlaps"),
    [
        (0, 10, False),
        (0, 11, True),
        (12, 15, True),
        (19, 25, True),
        (20, 30, False),
        (20, 31, True),
        (40, 50, False),
    ],
)
def test_steps_that_touch_a_stretch_do_not_overlap_with_it(begun: int, ended: int, overlaps: bool) -> None:
    holds = CaptureHolds()
    holds.add("a", 10, 20)
    holds.add("b", 30, 40)
    assert holds.overlap(begun, ended) is overlaps


@pytest.mark.parametrize(("begun", "ended", "overlaps"), [(0, 100, False), (0, 101, True), (200, 300, True)])
def test_the_stretch_under_way_overlaps_with_all_that_ends_after_its_begin(
    begun: int, ended: int, overlaps: bool, clock: ManualClock
) -> None:
    holds = CaptureHolds()
    holds.begin("nsys")
    assert holds.overlap(begun, ended) is overlaps
    holds.add("a", 50, 60)
    assert holds.overlap(begun, ended) is (overlaps or begun < 60)


def test_the_last_256_stretches_are_kept() -> None:
    holds = CaptureHolds()
    for number in range(300):
        holds.add(str(number), number, number + 1)
    assert [one.begun_ns for one in holds.since(-1)] == list(range(44, 300))
