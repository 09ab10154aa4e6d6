"""What the recorder holds beside steps: metrics, what cannot be seen, observers, its owner and its start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import llmtop
from llmtop.instrument.record import state
from llmtop.instrument.record.recorder import Recorder, get
from llmtop.instrument.record.state import loop_runs
from tests.support.manual_clock import ManualClock
from tests.support.phases import begin_phase, end_phase
from tests.support.recorded import Recorded

SECOND_THREAD = "steps of a second thread"


@pytest.fixture
def recorder(recorded: Recorded) -> Recorder:
    return recorded.recorder


def _in_thread(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(100)


def _step() -> None:
    with llmtop.step():
        pass


class Server:
    """Counts how often it is woken."""

    def __init__(self, recorder: Recorder) -> None:
        self.woken = 0
        recorder.server, recorder.waiting = self, True  # type: ignore[assignment]

    def wake(self) -> None:
        self.woken += 1


def test_a_number_is_kept_under_its_name_and_its_steps_if_it_tells_how_the_training_learns(
    recorder: Recorder,
) -> None:
    recorder.log_other("loss", 2)
    recorder.log_other("accuracy", 0.5)
    _step()
    recorder.log_other("loss", 1.5)
    assert recorder.metrics == {"loss": 1.5, "accuracy": 0.5}
    assert recorder.logged.read(0)[1] == [(0, "loss", 2.0), (0, "loss", 1.5)]


def test_64_names_of_metrics_are_kept_and_known_ones_go_on(recorder: Recorder) -> None:
    for number in range(66):
        recorder.log_other(f"m{number}", float(number))
    recorder.log_other("m0", 7.0)
    assert list(recorder.metrics) == [f"m{number}" for number in range(64)]
    assert recorder.metrics["m0"] == 7.0
    assert recorder.left_out == {"metrics over the limit of 64 names": 2}


@pytest.mark.parametrize(
    ("value", "kept", "left_out"),
    [
        (3, {"m": 3.0}, []),
        (True, {"m": 1.0}, []),
        (10**400, {}, ["metrics too large for a float"]),
        ("text", {}, []),
        (None, {}, []),
    ],
)
def test_only_numbers_are_metrics(
    value: object, kept: dict[str, float], left_out: list[str], recorder: Recorder
) -> None:
    recorder.log_other("m", value)
    assert recorder.metrics == kept
    assert list(recorder.left_out) == left_out


def test_a_value_on_a_gpu_is_taken_in_the_thread_of_the_steps_alone(recorder: Recorder) -> None:
    value = SimpleNamespace(is_cuda=True)
    recorder.log_other("loss", value)
    taken: list[tuple[Any, ...]] = []
    recorder.gpu_metrics = SimpleNamespace(take=lambda *given: taken.append(given))  # type: ignore[assignment]
    _step()
    _step()
    recorder.log_other("loss", value)
    recorder.log_other("accuracy", value)
    _in_thread(lambda: recorder.log_other("loss", value))
    assert taken == [("loss", value, 1), ("accuracy", value, None)]
    assert recorder.metrics == {}


def test_a_gpu_that_fails_is_asked_for_no_more_values(recorder: Recorder) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    recorder.gpu_metrics = SimpleNamespace(take=fail)  # type: ignore[assignment]
    recorder.log_other("loss", SimpleNamespace(is_cuda=True))
    assert recorder.gpu_metrics is None


def test_the_index_is_that_of_the_open_step_or_of_the_last_one(recorder: Recorder) -> None:
    assert recorder.current_index() == 0
    with llmtop.step():
        assert recorder.current_index() == 0
    assert recorder.current_index() == 0
    recorder.begin_step(index=7)
    assert recorder.current_index() == 7
    recorder.end_step()
    assert recorder.current_index() == 7
    with llmtop.step():
        assert recorder.current_index() == 8
    recorder.begin_step(index="9")  # type: ignore[arg-type]
    assert recorder.current_index() == 9
    recorder.end_step()


def test_only_the_first_of_a_reason_is_a_new_fact(recorder: Recorder) -> None:
    server, before = Server(recorder), recorder.facts.version
    recorder.count_left_out("a")
    assert (recorder.facts.version, server.woken) == (before + 1, 1)
    recorder.waiting = True
    recorder.count_left_out("a")
    assert (recorder.facts.version, server.woken, recorder.left_out) == (before + 1, 1, {"a": 2})
    recorder.count_left_out("b")
    assert (recorder.facts.version, server.woken, recorder.left_out) == (before + 2, 2, {"a": 2, "b": 1})


def test_what_cannot_be_seen_is_said_once_and_taken_back_once(recorder: Recorder) -> None:
    server, before = Server(recorder), recorder.facts.version
    recorder.cannot_see("GPU times", "no events")
    assert (recorder.blind, recorder.facts.version, server.woken) == ({"GPU times": "no events"}, before + 1, 1)
    recorder.waiting = True
    recorder.cannot_see("GPU times", "another reason")
    assert (recorder.blind, recorder.facts.version, server.woken) == ({"GPU times": "no events"}, before + 1, 1)
    recorder.can_see("steps")
    assert (recorder.facts.version, server.woken) == (before + 1, 1)
    recorder.can_see("GPU times")
    assert (recorder.blind, recorder.facts.version, server.woken) == ({}, before + 2, 2)


def test_a_server_that_is_at_work_is_not_woken(recorder: Recorder) -> None:
    server = Server(recorder)
    recorder.wake_server()
    recorder.wake_server()
    assert (server.woken, recorder.waiting) == (1, False)
    recorder.server, recorder.waiting = None, True
    recorder.wake_server()
    assert recorder.waiting is False


@pytest.mark.parametrize(
    ("part", "watch", "place"),
    [
        ("clock", "time_next_step", "clock"),
        ("arrivals", "sample_next_step", "arrival"),
        ("cpu_waits", "separate_waits", "waits"),
    ],
)
def test_an_observer_is_there_for_the_steps_that_it_is_set_for(
    part: str, watch: str, place: str, recorder: Recorder
) -> None:
    observer = SimpleNamespace()
    setattr(recorder, part, observer)
    assert recorder.watch is None
    getattr(recorder, watch)(True)
    assert getattr(recorder.watch, place) is observer
    getattr(recorder, watch)(False)
    assert recorder.watch is None


def test_memory_and_annotations_are_observers_as_well(recorder: Recorder) -> None:
    observer: Any = SimpleNamespace()
    for set_to in (recorder.watch_memory, recorder.annotate_with):
        set_to(observer)
        assert recorder.watch is not None
        set_to(None)
        assert recorder.watch is None


def test_a_step_of_another_thread_makes_it_the_owner_if_none_is_open(recorder: Recorder) -> None:
    begin_phase("dataload")
    end_phase("dataload")
    _in_thread(_step)
    assert recorder.ring.count == 1
    assert set(recorder.ring.rows[0][6:]) == {0}  # the first thread's phase is not its
    begin_phase("forward")  # of no owner
    end_phase("forward")
    assert recorder.left_out == {"phases of other threads": 1}
    _step()
    assert recorder.ring.count == 2


def test_steps_of_a_second_thread_are_left_out_while_one_is_open(recorder: Recorder) -> None:
    with llmtop.step():
        _in_thread(_step)
    assert recorder.ring.count == 1
    assert recorder.left_out == {SECOND_THREAD: 1}


def test_work_beside_steps_is_stamped(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    ManualClock(77).replace_in(monkeypatch, state)
    recorder.saw_work()
    assert recorder.worked == 77


def test_going_concurrent_is_permanent_and_drops_what_is_open(recorder: Recorder) -> None:
    recorder.attach()
    server, before = Server(recorder), recorder.facts.version
    recorder.clock = SimpleNamespace(mark=lambda *_: None, unmark=lambda _: None)  # type: ignore[assignment]
    recorder.time_next_step(True)
    recorder.begin_step()
    begin_phase("forward")
    recorder.go_concurrent_next = True
    recorder.go_concurrent()
    tracks = recorder.tracks
    assert tracks is not None
    assert (recorder.clock, recorder.watch, recorder.open_step) == (None, None, None)
    assert (recorder.go_concurrent_next, recorder.thread) == (False, state.NO_THREAD)
    assert (recorder.facts.version, server.woken) == (before + 1, 1)
    assert set(recorder.cells) == {0}
    recorder.go_concurrent()
    assert recorder.tracks is tracks
    assert recorder.facts.version == before + 1


def test_steps_that_cannot_be_separated_are_not_recorded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(recorder.factories, "overlap", fail)
    recorder.go_concurrent()
    assert (recorder.off, recorder.tracks) == (True, None)
    _step()
    begin_phase("forward")
    end_phase("forward")
    assert recorder.ring.count == 0
    assert recorder.left_out == {}


def test_a_process_attaches_once_and_not_if_it_is_off(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(recorder.factories, "start", lambda one, _watch: started.append(one))
    recorder.off = True
    recorder.attach()
    assert (started, recorder.attached) == ([], False)
    recorder.off = False
    recorder.attach()
    recorder.attach()
    assert (started, recorder.attached) == ([recorder], True)
    assert recorder.tracks is None


@pytest.mark.parametrize(("error", "raises"), [(OSError, False), (KeyboardInterrupt, True)])
def test_a_start_that_fails_is_not_tried_again_and_one_that_is_interrupted_is(
    error: type[BaseException], raises: bool, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(recorder.factories, "start", fail)
    if raises:
        with pytest.raises(error):
            recorder.attach()
    else:
        recorder.attach()
    assert recorder.attached is not raises


@pytest.mark.parametrize(("auto", "separates"), [(False, True), (True, False)])
def test_steps_under_a_running_loop_may_overlap_unless_hooks_see_them(
    auto: bool, separates: bool, recorder: Recorder
) -> None:
    async def train() -> bool:
        recorder.facts.auto = auto
        recorder.attach()
        return loop_runs()

    assert loop_runs() is False
    assert asyncio.run(train()) is True
    assert (recorder.tracks is not None) is separates
    assert loop_runs() is False


@pytest.mark.parametrize(("value", "off"), [("1", True), ("", False), (None, False)])
def test_a_variable_turns_recording_off(
    value: str | None, off: bool, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("LLMTOP_OFF", raising=False)
    else:
        monkeypatch.setenv("LLMTOP_OFF", value)
    recorder.reset()
    assert recorder.off is off
    _step()
    assert recorder.ring.count == (0 if off else 1)


def test_a_reset_forgets_all_that_a_forked_child_must_not_have(recorder: Recorder) -> None:
    recorder.attach()
    _step()
    recorder.log_other("loss", 1.0)
    recorder.count_left_out("a")
    recorder.cannot_see("b", "c")
    recorder.hooks.periodic.append(lambda: None)
    recorder.begin_step()
    begin_phase("forward")
    recorder.reset()
    assert (recorder.attached, recorder.ring.count, recorder.metrics) == (False, 0, {})
    assert (recorder.left_out, recorder.blind, recorder.hooks.periodic) == ({}, {}, [])
    assert (recorder.open_step, recorder.held, recorder.node is recorder.root) == (None, None, True)
    assert (recorder.paths.has_any, recorder.cells, recorder.zeros) == (False, [0, 0], [0, 0])
    assert (recorder.previous, recorder.next_index, recorder.periodic_in) == (-1, 0, 1)
    assert (recorder.logged.read(0)[1], recorder.saved.read(), recorder.waiting) == ([], [], False)
    assert (recorder.manual_used, recorder.evaluates, recorder.worked, recorder.first_batch) == (
        False,
        False,
        0,
        0,
    )
    assert (recorder.pause.holds, recorder.go_concurrent_next, recorder.memory_version) == (False, False, 0)


def test_a_hook_s_error_ends_observers_and_an_error_of_the_script_s_in_a_pause_is_its_own(
    recorder: Recorder,
) -> None:
    recorder.attach()
    given_up: list[int] = []
    recorder.arrivals = SimpleNamespace(give_up=lambda: given_up.append(1))  # type: ignore[assignment]
    recorder.sample_next_step(True)
    recorder.run_periodic = lambda *_: 5

    def fail(_index: int) -> None:
        raise LookupError

    recorder.boundary_hook = recorder.op_ranges = fail
    recorder.after_step(0, 0)
    assert (recorder.boundary_hook, recorder.op_ranges, recorder.run_periodic) == (None, None, None)
    assert (recorder.watch, given_up) == (None, [1])
    recorder.pause.holds = True
    recorder.boundary_hook = fail
    with pytest.raises(LookupError):
        recorder.after_step(1, 0)
    assert recorder.pause.holds is False
    assert recorder.boundary_hook is fail


def test_the_waits_of_a_sampled_step_begin_when_llmtops_end_of_the_step_before_is_over(recorder: Recorder) -> None:
    order: list[str] = []
    recorder.attach()
    recorder.cpu_waits = SimpleNamespace(start=lambda: order.append("start"))  # type: ignore[assignment]
    recorder.run_periodic = lambda *_: order.append("periodic") or 7  # type: ignore[func-returns-value]
    recorder.boundary_hook = lambda _: order.append("hook")
    recorder.op_ranges = lambda _: order.append("ranges")
    recorder.periodic_in = 0
    recorder.after_step(0, 0)
    assert (order, recorder.periodic_in) == (["periodic", "hook", "ranges"], 7)
    recorder.separate_waits(True)
    order.clear()
    recorder.after_step(1, 0)
    assert order == ["hook", "ranges", "start"]
    recorder.separate_waits(False)


def test_without_periodic_work_none_is_due_again(recorder: Recorder) -> None:
    recorder.periodic_in = 0
    recorder.after_step(0, 0)
    assert recorder.periodic_in > 1 << 60


def test_there_is_one_recorder(recorder: Recorder) -> None:
    assert get() is recorder
