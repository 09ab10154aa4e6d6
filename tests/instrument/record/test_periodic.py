"""Periodic work between steps: when each part is due, and after how many steps it is called again."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from llmtop.instrument import arrival, pytorch
from llmtop.instrument.record import periodic
from llmtop.instrument.record.periodic import PeriodicTasks
from llmtop.protocol.wire import JobStore
from tests.support.recorded import Recorded

MS = 1_000_000
PERIOD = 250 * MS
"""What is due is done four times a second."""


class Rig:
    """Periodic tasks of a recorder whose steps the test counts."""

    def __init__(self, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorder = recorded.recorder
        self.calls: list[Any] = []
        self.cuda: Any = None
        self.group_is_known = True
        monkeypatch.setattr(periodic.gpu_events, "initialised_cuda", lambda: self.cuda)
        monkeypatch.setattr(periodic.process_group, "learn", lambda _facts: self.group_is_known)
        self.tasks = PeriodicTasks(self.recorder, lambda facts: self.calls.append(("listen", facts)))

    def after(self, count: int, now: int, index: int = 0) -> int:
        """Call the tasks after so many steps."""
        self.recorder.ring.count = count
        return self.tasks(index, now)

    def take(self) -> list[Any]:
        """Return what was called since the last time."""
        calls, self.calls[:] = list(self.calls), []
        return calls


@pytest.fixture
def rig(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(recorded, monkeypatch)


def test_it_is_called_again_after_the_steps_of_a_quarter_of_a_second_and_at_most_1024(rig: Rig) -> None:
    assert rig.after(1, 0) == 1  # the pace is unknown
    assert rig.after(2, 10 * MS) == 25
    assert rig.after(2, 20 * MS) == 25  # no step since
    assert rig.after(12, 120 * MS) == 25
    assert rig.after(112, 220 * MS) == 250
    assert rig.after(1112, 470 * MS) == 1000
    assert rig.after(3112, 870 * MS) == 1024
    assert rig.after(3113, 1120 * MS) == 1
    assert rig.after(3114, 9120 * MS) == 1
    assert rig.after(3116, 9121 * MS) == 500


def test_steps_that_take_no_time_are_as_of_a_nanosecond(rig: Rig) -> None:
    rig.after(1, 5)
    assert rig.after(2, 5) == 1024


def test_callbacks_of_the_hooks_are_due_every_quarter_of_a_second(rig: Rig) -> None:
    rig.recorder.hooks.periodic.append(lambda: rig.calls.append("first"))
    rig.recorder.hooks.periodic.append(lambda: rig.calls.append("second"))
    for count, (now, is_due) in enumerate(
        [(7, True), (7 + PERIOD - 1, False), (7 + PERIOD, True), (7 + PERIOD, False), (7 + 3 * PERIOD, True)], 1
    ):
        rig.after(count, now)
        assert rig.take() == ["first", "second"] * is_due


@pytest.mark.parametrize(("local_rank", "listens"), [(None, True), (0, True), (1, False)])
def test_one_process_of_each_node_listens_to_the_store_once_the_group_is_known(
    local_rank: int | None, listens: bool, rig: Rig
) -> None:
    facts = rig.recorder.facts
    facts.store, facts.local_rank = JobStore(address="a:1", prefix="p"), local_rank
    rig.group_is_known = False
    rig.after(1, 0)
    rig.take()
    rig.group_is_known = True
    rig.after(2, PERIOD)
    assert rig.take() == [("listen", facts)] * listens
    rig.after(3, 2 * PERIOD)
    assert rig.take() == []


def test_without_a_store_nobody_listens(rig: Rig) -> None:
    rig.after(1, 0)
    assert rig.take() == []


class Clock:
    """Stands for the GPU clock."""

    def __init__(self, calls: list[Any]) -> None:
        self._calls = calls
        self.every = 10
        self.is_full = self.is_waiting = False

    def steps_between(self, step_ns: float) -> int:
        assert step_ns > 0
        return self.every

    def begin(self) -> None:
        self._calls.append("begin")

    def end(self, index: int, begun_ns: int) -> None:
        self._calls.append(("end", index, begun_ns))

    def read(self) -> None:
        self._calls.append("read")


def test_the_gpu_clock_times_every_so_many_steps(rig: Rig) -> None:
    clock = rig.recorder.clock = Clock(rig.calls)  # type: ignore[assignment]
    rig.recorder.previous = 4711
    assert rig.after(100, 0) == 1
    assert rig.take() == ["read", "begin"]
    assert rig.recorder.watch is not None
    assert rig.after(101, 1 * MS, index=77) == 9
    assert rig.take() == [("end", 77, 4711), "read"]
    assert rig.recorder.watch is None
    clock.is_waiting = True  # type: ignore[misc]
    assert rig.after(102, 2 * MS) == 4  # events are waited for
    assert rig.after(107, 7 * MS) == 3
    clock.is_waiting = False  # type: ignore[misc]
    assert rig.after(108, 8 * MS) == 2
    assert rig.after(109, 9 * MS) == 1
    rig.take()
    assert rig.after(110, 10 * MS) == 1
    assert rig.take() == ["read", "begin"]
    assert rig.after(111, 11 * MS, index=78) == 9
    assert rig.take() == [("end", 78, 4711), "read"]


def test_a_full_gpu_clock_times_no_step_until_its_events_are_read(rig: Rig) -> None:
    clock = rig.recorder.clock = Clock(rig.calls)  # type: ignore[assignment]
    clock.every, clock.is_full = 1, True  # type: ignore[misc,attr-defined]
    rig.after(1, 0)
    assert rig.after(2, MS) == 4
    assert rig.take() == ["read"] * 2
    clock.is_full = False  # type: ignore[misc]
    assert rig.after(3, 2 * MS) == 1
    assert rig.take() == ["read", "begin"]


class Sampler:
    """Stands for the sampler of arrivals."""

    def __init__(self, calls: list[Any]) -> None:
        self._calls = calls
        self.is_lost = self.is_waiting = False
        self.due, self.left = False, 7

    def begin_if_due(self, index: int, step_ns: float) -> bool:
        self._calls.append(("due?", index, step_ns))
        return self.due

    def rest(self, index: int) -> int:
        return self.left

    def read(self) -> None:
        self._calls.append("read")

    def end_sample(self, index: int) -> None:
        self._calls.append(("end", index))


def test_arrivals_are_sampled_in_the_step_after_the_one_at_which_they_are_due(rig: Rig) -> None:
    sampler = Sampler(rig.calls)
    rig.recorder.arrivals = sampler  # type: ignore[assignment]
    rig.after(1, 0)
    rig.take()
    assert rig.after(2, 10 * MS, index=5) == 7
    assert rig.take() == ["read", ("due?", 5, 10.0 * MS)]
    sampler.is_waiting = True
    assert rig.after(3, 20 * MS) == 4
    sampler.left = 3
    assert rig.after(4, 30 * MS) == 3
    sampler.due = True
    assert rig.after(5, 40 * MS) == 1
    assert rig.recorder.watch is not None
    sampler.due = sampler.is_waiting = False
    sampler.left = 100
    rig.take()
    assert rig.after(6, 50 * MS, index=9) == 25  # the pace asks for it earlier
    assert rig.take() == [("end", 9), "read", ("due?", 9, 10.0 * MS)]
    assert rig.recorder.watch is None
    rig.after(7, 60 * MS)
    assert ("end", 0) not in rig.take()
    sampler.is_lost = True
    rig.after(8, 70 * MS)
    assert rig.recorder.arrivals is None


class Costs:
    """Stands for the measured costs."""

    def __init__(self, calls: list[Any]) -> None:
        self._calls = calls
        self.periodic_ns = 0

    def sample(self, recorder: object, now: int) -> None:
        self._calls.append(("sample", now))


def test_costs_are_sampled_after_three_steps_and_the_work_is_counted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = iter([100, 130, 200, 205, 300, 301, 400, 440])
    monkeypatch.setattr(periodic, "thread_time_ns", lambda: next(spent))
    monkeypatch.setattr(periodic, "perf_counter_ns", lambda: 99)
    costs = rig.recorder.costs = Costs(rig.calls)  # type: ignore[assignment]
    rig.after(2, 0)
    assert (rig.take(), costs.periodic_ns) == ([], 30)
    rig.after(3, 1)
    assert (rig.take(), costs.periodic_ns) == ([("sample", 99)], 35)
    rig.after(4, 2)
    assert (rig.take(), costs.periodic_ns) == ([("sample", 99)], 36)
    rig.recorder.tracks = SimpleNamespace()  # type: ignore[assignment]
    rig.after(5, 3)
    assert (rig.take(), costs.periodic_ns) == ([], 76)


class Waits:
    """Stands for the observer of waits for a CPU."""

    is_wanted = True


@pytest.mark.parametrize(
    ("count", "is_due", "is_wanted", "overlap", "separates"),
    [
        (3, True, True, False, True),
        (2, True, True, False, False),
        (3, False, True, False, False),
        (3, True, False, False, False),
        (3, True, True, True, False),
    ],
)
def test_waits_for_a_cpu_are_separated_in_one_step_of_each_period(
    count: int, is_due: bool, is_wanted: bool, overlap: bool, separates: bool, rig: Rig
) -> None:
    waits = rig.recorder.cpu_waits = Waits()  # type: ignore[assignment]
    waits.is_wanted = is_wanted  # type: ignore[misc]
    rig.recorder.tracks = SimpleNamespace() if overlap else None  # type: ignore[assignment]
    rig.after(1, 0)
    rig.after(2, 10 * MS)
    rig.after(count, PERIOD if is_due else 20 * MS)
    assert (rig.recorder.watch is not None) is separates
    rig.after(count + 1, PERIOD + 10 * MS)
    assert (rig.recorder.watch is not None) is (count == 3 and not is_due and not overlap and is_wanted)


def test_the_step_after_one_whose_waits_are_separated_is_the_next_call(rig: Rig) -> None:
    rig.recorder.cpu_waits = Waits()  # type: ignore[assignment]
    rig.after(1, 0)
    assert rig.after(11, 100 * MS) == 25
    assert rig.after(36, 350 * MS) == 1
    assert rig.after(37, 360 * MS) == 25


class Kept:
    """Stands for the observer of allocations."""

    def __init__(self, cuda: Any) -> None:
        self._rig: Rig = cuda.rig
        self._rig.kept = self  # type: ignore[attr-defined]
        self.is_sampling = self.is_followed = False
        self.readings: list[int] = []

    def after_step(self, now: int, *, may_begin: bool) -> bool:
        self._rig.calls.append(("memory", now, may_begin))
        return self.is_followed

    def add_reading(self, allocated_bytes: int) -> None:
        self.readings.append(allocated_bytes)

    def kept_bytes(self) -> dict[str, int]:
        return {"forward": len(self.readings)}


class Gpu:
    """The rig with a GPU."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = rig
        self.captures_graph = False
        self.reading: Any = periodic.torch_allocator.Reading(100, 200, 150, 1, 0)
        self.collected = 0
        events = periodic.gpu_events
        monkeypatch.setattr(events, "uuid", lambda _: "GPU-1")
        monkeypatch.setattr(events, "model", lambda _: "H200")
        monkeypatch.setattr(events, "CudaEvents", lambda _: None)
        monkeypatch.setattr(periodic, "GpuMetrics", lambda _: SimpleNamespace(collect=self._collect))
        monkeypatch.setattr(periodic, "GpuClock", lambda _: self._clock())
        monkeypatch.setattr(periodic, "KeptMemory", Kept)
        monkeypatch.setattr(periodic.torch_allocator, "read", lambda _: self.reading)
        rig.cuda = SimpleNamespace(rig=rig, is_current_stream_capturing=lambda: self.captures_graph)

    def _clock(self) -> Clock:
        clock = Clock([])
        clock.every = 10_000
        return clock

    def _collect(self, metrics: object, add: object) -> None:
        self.collected += 1


@pytest.fixture
def gpu(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(rig, monkeypatch)


def test_the_first_use_of_a_gpu_is_a_new_fact_and_its_memory_is_read_from_then_on(gpu: Gpu, rig: Rig) -> None:
    recorder, cuda, rig.cuda = rig.recorder, rig.cuda, None
    rig.after(1, 0)
    assert (recorder.facts.gpu_uuid, recorder.clock, recorder.memory) == (None, None, None)
    rig.cuda = cuda
    version = recorder.facts.version
    rig.after(2, PERIOD)
    assert (recorder.facts.gpu_uuid, recorder.facts.gpu_model) == ("GPU-1", "H200")
    assert recorder.facts.version > version
    assert recorder.clock is not None
    assert recorder.memory is not None
    assert (recorder.memory.allocated_bytes, recorder.memory.kept_bytes) == (100, {"forward": 1})
    assert (recorder.memory_version, gpu.collected) == (1, 1)


def test_memory_is_read_at_its_own_interval_and_never_during_the_capture_of_a_graph(gpu: Gpu, rig: Rig) -> None:
    every = periodic.torch_allocator.EVERY_NS
    times = (0, every - PERIOD, every, every + PERIOD, 2 * every - 1, 2 * every - 1 + PERIOD)
    versions = []
    for count, now in enumerate(times, 1):
        rig.after(count, now)
        versions.append(rig.recorder.memory_version)
    assert versions == [1, 1, 2, 2, 2, 3]
    before = gpu.collected
    gpu.captures_graph = True
    rig.after(7, 5 * every)
    assert (rig.recorder.memory_version, gpu.collected) == (3, before)
    gpu.captures_graph, gpu.reading = False, None
    rig.after(8, 7 * every)
    assert (rig.recorder.memory_version, rig.recorder.memory) == (4, None)


def test_the_gpu_times_of_steps_that_overlap_are_not_taken(gpu: Gpu, rig: Rig) -> None:
    rig.recorder.tracks = SimpleNamespace()  # type: ignore[assignment]
    rig.after(1, 0)
    assert rig.recorder.clock is None
    assert rig.recorder.memory == gpu.reading


def test_a_sample_of_memory_has_its_step_alone(gpu: Gpu, rig: Rig) -> None:
    rig.after(1, 0)
    rig.recorder.cpu_waits = Waits()  # type: ignore[assignment]
    kept: Kept = rig.kept  # type: ignore[attr-defined]
    rig.take()
    assert rig.after(10, 90 * MS) == 25
    assert rig.take() == [("memory", 90 * MS, True)]
    assert rig.recorder.watch is None
    kept.is_followed = True
    assert rig.after(20, 190 * MS) == 1
    assert rig.recorder.watch is None
    kept.is_sampling = True
    assert rig.after(30, PERIOD + 40 * MS) == 1  # the waits for a CPU are due as well
    watch: Any = rig.recorder.watch
    assert (watch.memory, watch.waits) == (kept, None)
    kept.is_sampling = kept.is_followed = False
    rig.after(40, PERIOD + 140 * MS)
    assert rig.recorder.watch is None


def _search(rig: Rig, monkeypatch: pytest.MonkeyPatch, roots: list[object], replica: object) -> None:
    """Let a search find these modules, and this be what they train with other ranks."""

    def find_modules() -> SimpleNamespace:
        rig.calls.append("search")
        return SimpleNamespace(roots=list(roots))

    def find(modules: list[object]) -> object:
        rig.calls.append(("find", len(modules)))
        return replica

    search = SimpleNamespace(find_modules=find_modules)
    replicas = SimpleNamespace(find=find, mesh_roles=lambda _: {})
    for package, name, stand_in in ((pytorch, "search", search), (arrival, "replicas", replicas)):
        monkeypatch.setitem(sys.modules, f"{package.__name__}.{name}", stand_in)  # type: ignore[arg-type]
        monkeypatch.setattr(package, name, stand_in, raising=False)
    monkeypatch.setattr(periodic.roles, "note", lambda _: None)
    rig.recorder.facts.world_size = 2


def _take_periods(rig: Rig, count: int, periods: int) -> list[Any]:
    for number in range(periods):
        rig.after(count + number, (count + number) * PERIOD)
    return rig.take()


def test_modules_that_no_hook_knows_are_searched_for_three_times(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _search(rig, monkeypatch, [], None)
    assert _take_periods(rig, 1, 2) == []  # the first two steps are no usual ones
    assert _take_periods(rig, 3, 9) == ["search"] * 3


@pytest.mark.parametrize(("world_size", "overlap"), [(1, False), (None, False), (2, True)])
def test_what_trains_alone_or_overlaps_is_not_searched(
    world_size: int | None, overlap: bool, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _search(rig, monkeypatch, [object()], None)
    rig.recorder.facts.world_size = world_size
    rig.recorder.tracks = SimpleNamespace() if overlap else None  # type: ignore[assignment]
    assert _take_periods(rig, 3, 3) == []


def test_the_same_modules_are_looked_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _search(rig, monkeypatch, [], None)
    roots = [object()]
    rig.recorder.hooks.roots = lambda: roots
    try:
        assert _take_periods(rig, 3, 3) == [("find", 1)]
        roots.append(object())
        assert _take_periods(rig, 10, 3) == [("find", 2)]
    finally:
        rig.recorder.hooks.roots = None


def test_what_is_trained_with_other_ranks_is_sampled(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = SimpleNamespace(gathers=False)
    _search(rig, monkeypatch, [object()], replica)
    made: list[Any] = []

    def make(*given: Any) -> Sampler:
        made.append(given)
        return Sampler([])

    monkeypatch.setattr(periodic, "Sampler", make)
    version = rig.recorder.facts.version
    assert _take_periods(rig, 3, 5) == ["search", ("find", 1)]
    assert made == [(replica, None, None)]
    assert isinstance(rig.recorder.arrivals, Sampler)
    assert rig.recorder.facts.version > version


@pytest.mark.parametrize("gathers", [False, True])
def test_waits_of_the_stream_are_sampled_where_parameters_are_gathered(
    gathers: bool, gpu: Gpu, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = SimpleNamespace(gathers=gathers)
    _search(rig, monkeypatch, [object()], replica)
    monkeypatch.setattr(periodic.gpu_events, "CudaEvents", lambda _: "events")
    monkeypatch.setattr(periodic, "StreamWaits", lambda *_: "waits")
    made: list[Any] = []

    def make(*given: Any) -> Sampler:
        made.append(given)
        return Sampler([])

    monkeypatch.setattr(periodic, "Sampler", make)
    _take_periods(rig, 3, 1)
    assert made == [(replica, "events", "waits" if gathers else None)]
