"""What the recorder keeps of steps and phases, in ns of a clock that is moved by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

import llmtop
from llmtop.instrument.record import recorder as recorder_module
from llmtop.instrument.record import state
from llmtop.instrument.record.recorder import Step, phase_of
from tests.support.manual_clock import ManualClock
from tests.support.phases import begin_phase, end_phase
from tests.support.recorded import Recorded, ring_phases, ring_times

ENCLOSING = "phases that enclose a step or were not ended within it"


class Rig:
    """A recorder by a clock that is moved by hand."""

    def __init__(self, recorded: Recorded, clock: ManualClock) -> None:
        self.recorder, self.clock, self._recorded = recorded.recorder, clock, recorded

    def begin(self, name: str, at: int) -> None:
        """Begin a phase."""
        self.clock.now = at
        begin_phase(name)

    def end(self, name: str, at: int) -> None:
        """End it."""
        self.clock.now = at
        end_phase(name)

    def phase(self, name: str, begun: int, ended: int) -> None:
        """Run a phase."""
        self.begin(name, begun)
        self.end(name, ended)

    def begin_step(self, at: int, **given: Any) -> Step:
        """Begin a step."""
        self.clock.now = at
        return self.recorder.begin_step(**given)

    def end_step(self, at: int) -> None:
        """End it."""
        self.clock.now = at
        self.recorder.end_step()

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Index, begin, duration and interval of each step."""
        return ring_times(self.recorder)

    def phases(self, number: int = -1) -> dict[str, tuple[int, int]]:
        """Return time and count of each phase of a step."""
        return ring_phases(self.recorder, number)

    @property
    def left_out(self) -> dict[str, int]:
        """Why something is not in the numbers, and how often."""
        return self.recorder.left_out


@pytest.fixture
def rig(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> Rig:
    clock = ManualClock()
    clock.replace_in(monkeypatch, recorder_module, state)
    return Rig(recorded, clock)


def _in_thread(work: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(100)


def test_a_step_begins_with_the_first_phase_after_the_one_before(rig: Rig) -> None:
    rig.phase("dataload", 1000, 1300)
    rig.phase("copy", 1310, 1320)
    rig.begin_step(1400)
    rig.begin("forward", 1420)
    rig.phase("attention", 1440, 1450)
    rig.phase("attention", 1460, 1475)
    rig.end("forward", 1500)
    rig.end_step(1600)
    rig.begin_step(1700)
    rig.end_step(1900)
    rig.phase("copy", 1950, 1960)
    rig.begin_step(2000)
    rig.end_step(2000)
    assert rig.rows == [(0, 1000, 600, -1), (1, 1700, 200, 700), (2, 1950, 50, 250)]
    assert rig.phases(0) == {
        "dataload": (300, 1), "copy": (10, 1), "forward": (80, 1), "forward/attention": (25, 2),
    }  # fmt: skip
    assert rig.phases(1) == {}
    assert rig.phases(2) == {"copy": (10, 1)}
    assert rig.left_out == {}


def test_a_step_that_begins_at_the_instant_0_has_a_successor_with_an_interval(rig: Rig) -> None:
    for at in (0, 30):
        rig.begin_step(at)
        rig.end_step(at + 10)
    assert rig.rows == [(0, 0, 10, -1), (1, 30, 10, 30)]


def test_the_script_s_own_index_goes_on_from_there(rig: Rig) -> None:
    for index in (None, 7, None, 7, 3, None):
        rig.begin_step(0, index=index)
        rig.end_step(0)
    assert [row[0] for row in rig.rows] == [0, 7, 8, 7, 3, 4]


def test_tokens_and_samples_are_numbers_or_none(rig: Rig) -> None:
    rig.begin_step(0, tokens=5, samples=2.5)
    rig.end_step(0)
    step = rig.begin_step(0, tokens=1)
    step.tokens, step.samples = 7, 3
    rig.end_step(0)
    step = rig.begin_step(0)
    step.tokens, step.samples = Decimal("8.5"), object()  # type: ignore[assignment]
    rig.end_step(0)
    rig.begin_step(0)
    rig.end_step(0)
    values = [row[4:6] for row in rig.recorder.ring.rows[:4]]
    assert values == [(5, 2.5), (7, 3), (8.5, None), (None, None)]


def test_a_step_within_a_step_is_part_of_the_outer_one(rig: Rig) -> None:
    rig.clock.now = 10
    with llmtop.step():
        rig.clock.now = 20
        with llmtop.step():
            rig.clock.now = 30
        rig.clock.now = 40
    assert rig.rows == [(0, 10, 30, -1)]


def test_a_step_left_by_an_exception_is_counted_apart_and_the_next_begins_anew(rig: Rig) -> None:
    rig.phase("dataload", 5, 9)
    rig.clock.now = 10

    def fail() -> None:
        with llmtop.step():
            rig.phase("forward", 12, 15)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    rig.begin_step(40)
    rig.end_step(50)
    assert rig.rows == [(0, 40, 10, -1)]
    assert rig.phases() == {}
    assert rig.left_out == {"steps left by an exception": 1}


def test_an_end_without_a_step_is_nothing(rig: Rig) -> None:
    rig.end_step(10)
    assert rig.rows == []
    step = rig.begin_step(20)
    assert rig.recorder.held is step
    assert rig.recorder.begin_step() is not step
    assert rig.recorder.held is step
    rig.end_step(30)
    assert rig.recorder.held is None
    assert rig.rows == [(0, 20, 10, -1)]


@pytest.mark.parametrize(
    ("cancelled", "counted"),
    [("inner", {"outer": (30, 1)}), ("outer", {"outer": (30, 1), "outer/inner": (10, 1)})],
)
def test_only_the_innermost_phase_can_be_cancelled(
    cancelled: str, counted: dict[str, tuple[int, int]], rig: Rig
) -> None:
    rig.begin_step(0)
    rig.begin("outer", 10)
    rig.begin("inner", 20)
    rig.clock.now = 30
    rig.recorder.cancel_phase(cancelled)
    rig.end("inner", 30)
    rig.end("outer", 40)
    rig.recorder.cancel_phase("")  # the root is no phase
    rig.end_step(50)
    assert rig.phases() == counted


def test_another_thread_cancels_nothing(rig: Rig) -> None:
    rig.begin_step(0)
    rig.begin("forward", 10)
    _in_thread(lambda: rig.recorder.cancel_phase("forward"))
    rig.end("forward", 30)
    rig.end_step(50)
    assert rig.phases() == {"forward": (20, 1)}


def test_phases_before_a_step_can_be_forgotten_but_not_within_one(rig: Rig) -> None:
    rig.phase("dataload", 10, 20)
    _in_thread(rig.recorder.forget_pending)
    rig.begin_step(30)
    rig.recorder.forget_pending()
    rig.end_step(40)
    rig.phase("dataload", 50, 60)
    rig.recorder.forget_pending()
    rig.begin_step(70)
    rig.end_step(80)
    assert rig.rows == [(0, 10, 30, -1), (1, 70, 10, 60)]
    assert (rig.phases(0), rig.phases(1)) == ({"dataload": (10, 1)}, {})


def test_phases_around_a_step_of_the_hooks_are_part_of_it_up_to_its_end(rig: Rig) -> None:
    rig.begin("epoch", 100)
    rig.begin("batch", 200)
    step = Step()
    rig.clock.now = 300
    rig.recorder.begin_around(step)
    rig.phase("forward", 310, 320)
    rig.clock.now = 350
    rig.recorder.cut_open()
    step.__exit__(None, None, None)
    assert rig.rows == [(0, 100, 250, -1)]
    assert rig.phases() == {"epoch": (250, 1), "epoch/batch": (150, 1), "epoch/batch/forward": (10, 1)}
    assert rig.recorder.cut == ["batch", "epoch"]
    rig.end("batch", 400)
    rig.end("epoch", 410)
    assert rig.recorder.cut == []
    again = Step()
    rig.clock.now = 500
    rig.recorder.begin_around(again)
    rig.clock.now = 510
    again.__exit__(None, None, None)
    assert rig.rows[1] == (1, 500, 10, 400)
    assert rig.phases() == {}
    assert rig.left_out == {}


def test_a_phase_that_goes_on_after_the_step_that_it_was_cut_at_is_reported(rig: Rig) -> None:
    for begun in (100, 200):
        if begun == 100:
            rig.begin("epoch", begun)
        step = Step()
        rig.clock.now = begun
        rig.recorder.begin_around(step)
        rig.clock.now = begun + 50
        rig.recorder.cut_open()
        step.__exit__(None, None, None)
    assert rig.rows == [(0, 100, 50, -1), (1, 200, 50, 100)]
    assert rig.left_out == {ENCLOSING: 1}
    assert rig.recorder.cut == []


@pytest.mark.parametrize(
    ("name", "begun", "counted"),
    [
        ("forward", 440, 60),
        ("forward", 460, 50),
        ("forward", 300, 100),
        ("backward", 440, 50),
        ("forward", 400, 100),
    ],
)
def test_the_innermost_phase_may_have_begun_earlier_but_not_before_the_last_step(
    name: str, begun: int, counted: int, rig: Rig
) -> None:
    rig.begin_step(400)
    rig.end_step(410)
    rig.begin("forward", 450)
    rig.recorder.began_earlier(name, begun)
    _in_thread(lambda: rig.recorder.began_earlier("forward", 1))
    rig.end("forward", 500)
    rig.begin_step(500)
    rig.end_step(600)
    assert rig.phases() == {"forward": (counted, 1)}


def test_a_phase_can_be_counted_after_its_end(rig: Rig) -> None:
    rig.recorder.add_phase("dataload", 100, 30)
    rig.recorder.add_phase("dataload", 140, 20)
    _in_thread(lambda: rig.recorder.add_phase("dataload", 1, 1000))
    rig.begin_step(200)
    rig.begin("forward", 210)
    rig.recorder.add_phase("copy", 215, 7)
    rig.end("forward", 230)
    rig.end_step(240)
    assert rig.rows == [(0, 100, 140, -1)]
    assert rig.phases() == {"dataload": (50, 2), "forward": (20, 1), "forward/copy": (7, 1)}
    assert rig.recorder.root.children["dataload"].begun == 140


def test_a_step_that_failed_leaves_nothing_behind(rig: Rig) -> None:
    rig.begin_step(10)
    rig.begin("forward", 20)
    rig.recorder.step_failed(Step())  # another one
    assert rig.recorder.open_step is not None
    step = rig.recorder.open_step
    rig.recorder.step_failed(step)
    assert rig.recorder.open_step is None
    assert rig.recorder.node is rig.recorder.root
    rig.begin_step(40)
    rig.end_step(60)
    assert rig.rows == [(0, 40, 20, -1)]
    assert rig.phases() == {}


def test_phases_that_overlap_are_left_out_with_all_within_them(rig: Rig) -> None:
    rig.begin_step(0)
    rig.phase("loss", 5, 10)
    rig.phase("forward", 10, 20)
    rig.begin("forward", 20)
    rig.phase("attention", 22, 25)
    rig.begin("backward", 30)
    rig.end("forward", 40)
    rig.end("backward", 50)  # given up before
    rig.end("never begun", 60)
    rig.end_step(70)
    assert rig.phases() == {"loss": (5, 1)}
    assert rig.left_out == {"overlapping phases": 1}


def test_what_ended_within_a_phase_that_encloses_the_step_moves_up(rig: Rig) -> None:
    rig.begin("epoch", 0)
    rig.phase("shuffle", 5, 10)
    rig.begin("part", 10)
    rig.begin("dataload", 20)
    rig.phase("decode", 22, 30)
    rig.end("dataload", 40)
    rig.phase("dataload", 45, 50)
    rig.recorder.attach()
    moved: list[tuple[int, int]] = []
    given_up: list[str] = []
    rig.recorder.watch = SimpleNamespace(  # type: ignore[assignment]
        move=lambda slot, target: moved.append((slot, target)),
        give_up=lambda node: given_up.append(node.path),
        begin_step=lambda: None,
        end_step=lambda: None,
    )
    rig.begin_step(60)
    rig.end_step(80)
    assert rig.rows == [(0, 5, 75, -1)]
    assert rig.phases() == {"shuffle": (5, 1), "dataload": (25, 2), "dataload/decode": (8, 1)}
    assert rig.left_out == {ENCLOSING: 1}
    assert given_up == ["epoch/part", "epoch"]
    names = rig.recorder.paths.names
    assert {(names[slot // 2], names[target // 2]) for slot, target in moved} == {
        ("epoch/shuffle", "shuffle"),
        ("epoch/part/dataload", "dataload"),
        ("epoch/part/dataload/decode", "dataload/decode"),
    }


def test_phases_that_are_open_at_the_end_of_a_step_are_left_out(rig: Rig) -> None:
    rig.begin_step(0)
    rig.phase("forward", 10, 20)
    rig.begin("backward", 30)
    rig.end_step(40)
    rig.end("backward", 50)
    rig.begin_step(60)
    rig.end_step(70)
    assert rig.rows == [(0, 0, 40, -1), (1, 60, 10, 60)]
    assert (rig.phases(0), rig.phases(1)) == ({"forward": (10, 1)}, {})
    assert rig.left_out == {ENCLOSING: 1}


def test_names_over_the_limit_are_left_out_and_their_ends_close_them(rig: Rig) -> None:
    rig.begin_step(0)
    for number in range(130):
        rig.phase(f"p{number}", 10, 11)
    rig.end_step(20)
    assert rig.phases() == {f"p{number}": (1, 1) for number in range(128)}
    assert rig.left_out == {"phases over the limit of 128 names or 16 levels": 2}
    assert rig.recorder.node is rig.recorder.root


def test_periodic_work_is_done_after_as_many_steps_as_it_asks_for(rig: Rig) -> None:
    done: list[tuple[int, int]] = []

    def periodic(index: int, now: int) -> int:
        done.append((index, now))
        return 3

    rig.recorder.attach()
    rig.recorder.run_periodic = periodic
    for number in range(8):
        rig.begin_step(10 * number)
        rig.end_step(10 * number + 5)
    assert done == [(0, 5), (3, 35), (6, 65)]


def test_a_hook_makes_no_periodic_work_due(rig: Rig) -> None:
    done: list[int] = []

    def periodic(index: int, _now: int) -> int:
        done.append(index)
        return 3

    rig.recorder.attach()
    rig.recorder.run_periodic = periodic
    rig.recorder.boundary_hook = lambda _: None
    for number in range(8):
        rig.begin_step(10 * number)
        rig.end_step(10 * number + 5)
    assert done == [0, 3, 6]


@pytest.mark.parametrize("hook", ["boundary_hook", "op_ranges"])
def test_a_hook_is_called_after_each_step(hook: str, rig: Rig) -> None:
    called: list[int] = []
    rig.recorder.attach()
    for number in range(6):
        if number in (2, 5):
            setattr(rig.recorder, hook, called.append if number == 2 else None)
        rig.begin_step(10 * number)
        rig.end_step(10 * number + 5)
    assert called == [2, 3, 4]


def test_a_hook_that_fails_is_removed_and_the_training_goes_on(rig: Rig) -> None:
    rig.recorder.attach()
    called: list[int] = []

    def fails(index: int) -> None:
        called.append(index)
        raise OSError

    rig.recorder.boundary_hook = fails
    for number in range(3):
        rig.begin_step(10 * number)
        rig.end_step(10 * number + 5)
    assert called == [0]
    assert len(rig.rows) == 3


def test_a_server_that_waits_is_woken_once(rig: Rig) -> None:
    woken: list[int] = []
    rig.recorder.attach()
    rig.recorder.run_periodic = lambda *_: 1000
    rig.begin_step(0)
    rig.end_step(0)
    rig.recorder.server = SimpleNamespace(wake=lambda: woken.append(len(rig.rows)))  # type: ignore[assignment]
    rig.begin_step(1)
    rig.end_step(1)
    assert woken == []
    rig.recorder.waiting = True
    rig.begin_step(2)
    rig.end_step(2)
    assert (woken, rig.recorder.waiting) == ([3], False)
    rig.begin_step(3)
    rig.end_step(3)
    assert woken == [3]
    rig.recorder.server = None


def test_a_name_has_one_phase(rig: Rig) -> None:
    assert phase_of("a phase") is phase_of("a phase")
    assert phase_of("a phase") is not phase_of("another phase")
    assert phase_of("a phase").name == "a phase"


@pytest.mark.parametrize("name", [3, None, ["a"], b"a"])
def test_a_name_that_is_no_text_makes_a_phase(name: Any, rig: Rig) -> None:
    made = phase_of(name)
    assert isinstance(made.name, str)
    assert made.name


def test_a_kind_that_is_none_is_a_step(rig: Rig) -> None:
    rig.begin_step(0, kind="lap")
    rig.end_step(5)
    assert rig.rows == [(0, 0, 5, -1)]
    assert rig.recorder.facts.kind == "step"
    assert rig.recorder.tracks is None


def test_a_first_request_makes_the_process_one_that_answers_requests(rig: Rig) -> None:
    rig.recorder.attach()
    rig.begin_step(0, kind="request")
    assert rig.recorder.tracks is not None
    assert (rig.recorder.facts.kind, rig.recorder.facts.kind_since) == ("request", 0)


def test_a_request_after_steps_is_of_another_kind(rig: Rig) -> None:
    rig.begin_step(0)
    rig.end_step(5)
    assert rig.recorder.tracks is None
    rig.begin_step(10, kind="request")
    rig.end_step(20)
    assert rig.recorder.tracks is not None
    assert rig.recorder.facts.kind == "step"
    assert rig.rows == [(0, 0, 5, -1)]
    assert rig.left_out == {"steps of another kind than 'step'": 1}
