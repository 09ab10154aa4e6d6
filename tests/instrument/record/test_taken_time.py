"""How long the training thread waited for another thread: both threads' clocks moved by hand."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from llmtop.instrument.record import taken_time
from llmtop.instrument.record.taken_time import TakenTime, processor_ns, thread_clock


class Clocks:
    """Time, and the processor time of the training thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.ran = 1000, 500
        self.asked: list[int] = []
        monkeypatch.setattr(taken_time.time, "perf_counter_ns", lambda: self.wall)
        monkeypatch.setattr(taken_time, "processor_ns", self._read)

    def _read(self, clock: int) -> int:
        self.asked.append(clock)
        return self.ran


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def _recorder(native_id: int | None) -> Any:
    costs = None if native_id is None else SimpleNamespace(native_id=native_id, others=[])
    return SimpleNamespace(costs=costs)


def test_working_times_and_what_the_training_ran_in_them_are_summed_up(clocks: Clocks) -> None:
    recorder = _recorder(4711)
    taken = TakenTime(recorder)
    for wall, ran in ((40, 10), (5, 0), (100, 90)):
        taken.begin()
        clocks.wall += wall
        clocks.ran += ran
        taken.end()
        clocks.wall += 1000  # asleep
        clocks.ran += 1000
    assert (taken.busy_ns, taken.ran_ns) == (145, 100)
    assert recorder.costs.others == [taken]
    assert set(clocks.asked) == {thread_clock(4711)}


@pytest.mark.parametrize("native_id", [None, 0])
def test_without_a_training_thread_nothing_is_measured(native_id: int | None, clocks: Clocks) -> None:
    recorder = _recorder(native_id)
    taken = TakenTime(recorder)
    taken.begin()
    clocks.wall += 40
    taken.end()
    assert (taken.busy_ns, taken.ran_ns, clocks.asked) == (0, 0, [])
    assert recorder.costs is None or recorder.costs.others == []


def test_an_end_without_a_begin_and_a_second_end_count_nothing(clocks: Clocks) -> None:
    taken = TakenTime(_recorder(4711))
    taken.end()
    taken.begin()
    clocks.wall += 40
    taken.end()
    clocks.wall += 40
    taken.end()
    assert (taken.busy_ns, taken.ran_ns) == (40, 0)


@pytest.mark.parametrize(("at_begin", "at_end"), [(0, 500), (500, 0), (0, 0)])
def test_a_training_thread_that_has_ended_counts_nothing(at_begin: int, at_end: int, clocks: Clocks) -> None:
    taken = TakenTime(_recorder(4711))
    clocks.ran = at_begin
    taken.begin()
    clocks.wall += 40
    clocks.ran = at_end
    taken.end()
    assert (taken.busy_ns, taken.ran_ns) == (0, 0)


def test_the_clock_of_a_thread_is_that_of_the_c_library() -> None:
    assert thread_clock(threading.get_native_id()) == time.pthread_getcpuclockid(threading.get_ident())
    before = time.thread_time_ns()
    between = processor_ns(thread_clock(threading.get_native_id()))
    assert before <= between <= time.thread_time_ns()


def test_a_thread_that_is_none_has_no_processor_time() -> None:
    assert processor_ns(thread_clock(4194305)) == 0  # above the largest pid of Linux
