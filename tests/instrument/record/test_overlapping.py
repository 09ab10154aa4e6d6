"""Steps that overlap, by a clock that is moved by hand: whose phase is whose, and what each row has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from llmtop.instrument.record import overlapping, state
from llmtop.instrument.record import recorder as recorder_module
from llmtop.instrument.record.overlapping import Track, Tracks
from llmtop.instrument.record.recorder import Step
from tests.support.manual_clock import ManualClock
from tests.support.phases import begin_phase, end_phase
from tests.support.recorded import Recorded, ring_phases, ring_times

ENCLOSING = "phases that enclose a step or were not ended within it"


class Server:
    """A process that answers requests; its threads take turns as the test says."""

    def __init__(self, recorded: Recorded, clock: ManualClock) -> None:
        self.recorder, self.clock = recorded.recorder, clock
        self.recorder.facts.set_kind("request", since=0)
        self.recorder.attach()
        self.recorder.go_concurrent()
        self._threads: dict[str, ThreadPoolExecutor] = {}

    def at(self, now: int, work: Any, *given: Any, thread: str = "") -> Any:
        """Do something at this time, in this thread."""
        self.clock.now = now
        if not thread:
            return work(*given)
        pool = self._threads.setdefault(thread, ThreadPoolExecutor(1))
        return pool.submit(work, *given).result(100)

    def phase(self, name: str, begun: int, ended: int, thread: str = "") -> None:
        """Run a phase."""
        self.at(begun, begin_phase, name, thread=thread)
        self.at(ended, end_phase, name, thread=thread)

    def begin(self, now: int, thread: str = "", **given: Any) -> Step:
        """Begin a request."""
        step = Step(kind=given.pop("kind", "request"), **given)
        self.at(now, step.__enter__, thread=thread)
        return step

    def end(self, step: Step, now: int, thread: str = "", error: Any = None) -> None:
        """End it."""
        self.at(now, step.__exit__, error, None, None, thread=thread)

    def close(self) -> None:
        """End the threads."""
        for pool in self._threads.values():
            pool.shutdown()

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Index, begin, duration and interval of each request."""
        return ring_times(self.recorder)

    def phases(self, number: int = -1) -> dict[str, tuple[int, int]]:
        """Return time and count of each phase of a request."""
        return ring_phases(self.recorder, number)


@pytest.fixture
def server(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    clock = ManualClock()
    clock.replace_in(monkeypatch, recorder_module, state, overlapping)
    server = Server(recorded, clock)
    yield server
    server.close()


def test_a_request_has_its_own_phases_and_begins_with_those_before_it(server: Server) -> None:
    server.phase("wait", 50, 60)
    server.phase("read", 65, 70)
    step = server.begin(100, tokens=3, samples=1)
    server.at(110, begin_phase, "prefill")
    server.phase("attention", 120, 125)
    server.phase("attention", 130, 140)
    server.at(150, end_phase, "prefill")
    server.end(step, 200)
    again = server.begin(300)
    server.phase("prefill", 310, 320)
    server.end(again, 330)
    assert server.rows == [(0, 50, 150, -1), (1, 300, 30, 250)]
    assert server.phases(0) == {"wait": (10, 1), "read": (5, 1), "prefill": (40, 1), "prefill/attention": (15, 2)}
    assert server.phases(1) == {"prefill": (10, 1)}
    assert [row[4:6] for row in server.recorder.ring.rows[:2]] == [(3, 1), (None, None)]
    assert server.recorder.left_out == {}


def test_the_earliest_phase_before_a_request_is_its_begin_and_none_within_it_is(server: Server) -> None:
    server.at(10, begin_phase, "outer")
    server.phase("inner", 20, 30)
    server.at(40, end_phase, "outer")
    step = server.begin(50)
    server.phase("late", 60, 70)
    server.end(step, 80)
    server.end(server.begin(90), 95)
    assert server.rows == [(0, 10, 70, -1), (1, 90, 5, 80)]


def test_requests_of_two_threads_overlap_and_an_interval_is_never_negative(server: Server) -> None:
    first = server.begin(100, thread="a")
    second = server.begin(150, thread="b")
    server.phase("prefill", 160, 170, thread="b")
    server.phase("prefill", 180, 195, thread="a")
    server.end(second, 200, thread="b")
    server.end(first, 300, thread="a")
    server.end(server.begin(350, thread="b"), 360, thread="b")
    assert server.rows == [(0, 150, 50, -1), (1, 100, 200, -1), (2, 350, 10, 250)]
    assert [server.phases(number) for number in range(3)] == [{"prefill": (10, 1)}, {"prefill": (15, 1)}, {}]


def test_requests_that_begin_at_one_instant_have_an_interval_of_0(server: Server) -> None:
    first, second = server.begin(100, thread="a"), server.begin(100, thread="b")
    server.end(first, 110, thread="a")
    server.end(second, 120, thread="b")
    assert server.rows == [(0, 100, 10, -1), (1, 100, 20, 0)]


def test_a_request_may_end_in_another_thread(server: Server) -> None:
    step = server.begin(10, thread="a")
    server.end(step, 30, thread="b")
    server.end(step, 40, thread="a")  # it has ended
    assert server.rows == [(0, 10, 20, -1)]


def test_a_request_within_a_request_is_part_of_the_outer_one(server: Server) -> None:
    outer = server.begin(10)
    inner = server.begin(20)
    assert server.recorder.tracks is not None
    assert server.recorder.tracks.open_step() is outer
    server.end(inner, 30)
    server.end(outer, 40)
    assert server.recorder.tracks.open_step() is None
    assert server.rows == [(0, 10, 30, -1)]


def test_a_step_of_another_kind_is_left_out(server: Server) -> None:
    server.end(server.begin(10, kind="step"), 20)
    assert server.rows == []
    assert server.recorder.left_out == {"steps of another kind than 'request'": 1}


def test_a_request_left_by_an_exception_is_no_row_and_leaves_nothing_for_the_next(server: Server) -> None:
    step = server.begin(10)
    server.phase("prefill", 12, 15)
    server.end(step, 20, error=KeyError)
    server.end(server.begin(30), 40)
    assert server.rows == [(0, 30, 10, -1)]
    assert server.phases() == {}
    assert server.recorder.left_out == {"steps left by an exception": 1}


def test_open_phases_at_either_boundary_of_a_request_are_left_out(server: Server) -> None:
    server.at(0, begin_phase, "serve")
    step = server.begin(10)
    server.at(20, begin_phase, "decode")
    server.end(step, 30)
    server.at(40, end_phase, "decode")
    server.at(50, end_phase, "serve")
    assert server.rows == [(0, 10, 20, -1)]
    assert server.phases() == {}
    assert server.recorder.left_out == {ENCLOSING: 2}


def test_phases_that_overlap_are_left_out_and_those_around_them_are_counted(server: Server) -> None:
    step = server.begin(0)
    for now, name in ((1, "around"), (2, "a"), (3, "b")):
        server.at(now, begin_phase, name)
    server.at(10, end_phase, "a")
    server.at(12, end_phase, "b")
    server.at(20, end_phase, "around")
    server.end(step, 30)
    assert server.phases() == {"around": (19, 1)}
    assert server.recorder.left_out == {"overlapping phases": 1}


def test_a_phase_within_itself_is_counted_once_and_what_is_in_it_too(server: Server) -> None:
    step = server.begin(0)
    for now, name in ((1, "a"), (2, "b"), (3, "a")):
        server.at(now, begin_phase, name)
    for now, name in ((10, "a"), (11, "b"), (12, "a")):
        server.at(now, end_phase, name)
    server.end(step, 30)
    assert server.phases() == {"a": (11, 1), "a/b": (9, 1)}


@pytest.mark.parametrize(("levels", "counted"), [(16, 16), (17, 16), (18, 16)])
def test_phases_have_16_levels(levels: int, counted: int, server: Server) -> None:
    step = server.begin(0)
    for number in range(levels):
        server.at(1, begin_phase, str(number))
    for number in reversed(range(levels)):
        server.at(3, end_phase, str(number))
    server.end(step, 30)
    assert set(server.phases().values()) == {(2, 1)}
    assert len(server.phases()) == counted


def test_long_names_are_cut_to_64_characters_at_each_level(server: Server) -> None:
    step = server.begin(0)
    server.at(1, begin_phase, "x" * 65)
    server.phase("y" * 64, 2, 3)
    server.at(4, end_phase, "x" * 65)
    server.end(step, 30)
    assert server.phases() == {"x" * 64: (3, 1), f"{'x' * 64}/{'y' * 64}": (1, 1)}


def test_names_over_the_limit_are_left_out(server: Server) -> None:
    step = server.begin(0)
    for number in range(131):
        server.phase(f"p{number}", 1, 2)
    server.end(step, 30)
    assert server.phases() == {f"p{number}": (1, 1) for number in range(128)}
    assert server.recorder.left_out == {"phases over the limit of names or too deeply nested": 2}


def test_the_times_of_a_track_have_128_paths_one_to_see_that_there_are_more_and_the_rest() -> None:
    track = Track((0, None))
    for number in range(140):
        track.add(str(number), 5, 10)
    track.add("0", 7, 10)
    assert len(track.times) == 130
    assert (track.times["0"], track.times["128"], track.times[""]) == ([12, 2], [5, 1], [55, 11])


def test_only_the_innermost_phase_can_be_cancelled(server: Server) -> None:
    step = server.begin(0)
    server.at(1, begin_phase, "a")
    server.at(2, begin_phase, "b")
    server.at(3, server.recorder.cancel_phase, "a")
    server.at(3, server.recorder.cancel_phase, "b", thread="other")
    server.at(4, server.recorder.cancel_phase, "b")
    server.at(5, end_phase, "b")
    server.at(9, end_phase, "a")
    server.at(9, server.recorder.cancel_phase, "a")
    server.end(step, 30)
    assert server.phases() == {"a": (8, 1)}


def test_a_task_within_a_request_is_not_the_request_s_own(server: Server) -> None:
    async def child() -> None:
        server.phase("sample", 20, 25)

    async def request() -> None:
        step = server.begin(10)
        await asyncio.create_task(child())
        server.phase("decode", 30, 37)
        server.end(step, 40)

    asyncio.run(request())
    assert server.rows == [(0, 10, 30, -1)]
    assert server.phases() == {"decode": (7, 1)}
    assert server.recorder.left_out == {"phases of other threads and tasks": 1}


def test_two_tasks_of_a_thread_have_requests_of_their_own(server: Server) -> None:
    async def request(begun: int) -> None:
        step = server.begin(begun)
        server.at(begun + 1, begin_phase, "decode")
        await asyncio.sleep(0)  # the other task's turn
        server.at(begun + 41, end_phase, "decode")
        server.end(step, begun + 50)

    async def serve() -> None:
        await asyncio.gather(request(10), request(20))

    asyncio.run(serve())
    assert server.rows == [(0, 10, 50, -1), (1, 20, 50, 10)]
    assert [server.phases(number) for number in (0, 1)] == [{"decode": (40, 1)}] * 2


def test_periodic_work_and_hooks_run_in_the_thread_of_the_first_request_alone(server: Server) -> None:
    done: list[str] = []
    server.recorder.run_periodic = lambda index, now: done.append(f"{index} at {now}") or 2  # type: ignore[func-returns-value]
    for number, thread in enumerate("abaabab"):
        step = server.begin(10 * number, thread=thread)
        server.end(step, 10 * number + 5, thread=thread)
    assert done == ["0 at 5", "2 at 25", "5 at 55"]
    hooked: list[int] = []
    server.recorder.periodic_in = 1000
    server.recorder.boundary_hook = hooked.append
    for number, thread in enumerate("ab"):
        step = server.begin(100 + 10 * number, thread=thread)
        server.end(step, 105 + 10 * number, thread=thread)
    server.recorder.boundary_hook = None
    server.recorder.op_ranges = hooked.append
    server.end(server.begin(200, thread="a"), 205, thread="a")
    assert hooked == [7, 9]


def test_the_index_goes_on_from_the_one_that_is_given(server: Server) -> None:
    for index in (None, 7, None):
        server.end(server.begin(0, index=index), 1)
    assert [row[0] for row in server.rows] == [0, 7, 8]


class Ranges:
    """Stands for the ranges of nvtx."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.seen: list[str] = []

    def start(self, name: str) -> str:
        self.open.append(name)
        self.seen.append(name)
        return name

    def end(self, handle: str) -> None:
        self.open.remove(handle)


def test_each_phase_and_request_is_a_range_that_is_closed_whatever_becomes_of_it(server: Server) -> None:
    ranges = Ranges()
    server.recorder.tracks = Tracks(server.recorder, ranges)  # type: ignore[arg-type]
    server.at(0, begin_phase, "serve")
    step = server.begin(1)
    assert ranges.open == ["step"]
    for now, name in ((2, "a"), (3, "b"), (4, "c"), (5, "d")):
        server.at(now, begin_phase, name)
    server.at(6, server.recorder.cancel_phase, "d")
    assert ranges.open == ["step", "a", "b", "c"]
    server.at(7, end_phase, "b")
    assert ranges.open == ["step", "a"]
    server.end(step, 9)
    assert ranges.open == []
    assert ranges.seen == ["serve", "step", "a", "b", "c", "d"]


def test_an_end_without_a_begin_is_nothing(server: Server) -> None:
    server.at(1, end_phase, "a")
    step = server.begin(2)
    server.at(3, end_phase, "a")
    server.end(Step(kind="request"), 4)
    server.end(step, 5)
    assert server.rows == [(0, 2, 3, -1)]
    assert server.phases() == {}
    assert server.recorder.left_out == {}


def test_a_phase_is_a_sign_of_work(server: Server) -> None:
    server.at(77, begin_phase, "decode")
    assert server.recorder.worked == 77
