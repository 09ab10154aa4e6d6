"""What the script does and what is recorded, in one thread."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmtop
from llmtop.instrument import loader as loader_module
from llmtop.instrument.record import recorder as recorder_module
from llmtop.instrument.record import state
from llmtop.instrument.record.recorder import get
from llmtop.instrument.steps.phase_tree import MAX_PATHS
from tests.support.examples import EXAMPLES
from tests.support.manual_clock import ManualClock
from tests.support.phases import begin_phase, end_phase
from tests.support.recorded import Recorded, names, steps_of, top_level_ns


def test_a_step_has_its_phases_in_the_order_of_their_first_appearance(recorded: Recorded) -> None:
    for _ in range(2):
        with llmtop.step(tokens=4096, samples=8):
            with llmtop.phase("forward"):
                time.sleep(0.002)
            with llmtop.phase("backward"):
                pass
    first, second = recorded.steps
    assert names(first) == names(second) == ["forward", "backward"]
    assert (first.index, second.index) == (0, 1)
    assert (first.tokens, first.samples) == (4096, 8)
    assert first.phases[0].host_ns >= 2_000_000
    assert first.interval_ns is None
    assert second.interval_ns == second.started_unix_ns - first.started_unix_ns
    assert abs(first.started_unix_ns - time.time_ns()) < 60e9


def test_nested_phases_carry_the_path_and_lie_within_their_parent(recorded: Recorded) -> None:
    with llmtop.step():
        with llmtop.phase("forward"), llmtop.phase("attention"), llmtop.phase("softmax"):
            pass
        with llmtop.phase("attention"):
            pass
    step = recorded.step
    assert names(step) == ["forward", "forward/attention", "forward/attention/softmax", "attention"]
    by_name = {phase.name: phase.host_ns for phase in step.phases}
    assert by_name["forward"] >= by_name["forward/attention"] >= by_name["forward/attention/softmax"]


def test_a_phase_entered_often_in_a_step_is_one_with_the_sum_and_the_count(recorded: Recorded) -> None:
    with llmtop.step():
        for _ in range(3):
            with llmtop.phase("forward"):
                time.sleep(0.001)
    (phase,) = recorded.step.phases
    assert (phase.name, phase.count) == ("forward", 3)
    assert phase.host_ns >= 3_000_000


def test_recursion_is_counted_once_by_its_outermost_call(recorded: Recorded) -> None:
    @llmtop.phase("tree")
    def visit(depth: int) -> int:
        with llmtop.phase("leaf"):
            pass
        return depth and visit(depth - 1)

    with llmtop.step():
        visit(10)
    step = recorded.step
    assert names(step) == ["tree", "tree/leaf"]
    assert step.phases[0].count == 1
    assert step.phases[1].count == 11
    assert step.phases[1].host_ns <= step.phases[0].host_ns <= step.host_ns


def test_the_wait_for_a_batch_belongs_to_the_step_that_follows(recorded: Recorded) -> None:
    def batches() -> object:
        for batch in range(3):
            time.sleep(0.005)
            yield batch

    seen = []
    for batch in llmtop.loader(batches()):
        seen.append(batch)
        with llmtop.step(), llmtop.phase("forward"):
            pass
    assert seen == [0, 1, 2]
    assert len(recorded.steps) == 3
    for step in recorded.steps:
        assert names(step) == ["dataload", "forward"]
        assert step.phases[0].count == 1
        assert step.phases[0].host_ns >= 5_000_000
        assert top_level_ns(step) <= step.host_ns


def test_the_wait_that_finds_the_end_of_the_data_is_nobodys(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_000_000)
    clock.per_call = 1000
    clock.replace_in(monkeypatch, recorder_module, state, loader_module)

    def batches() -> object:
        yield 1
        clock.now += 50_000_000

    for _ in range(2):
        for _ in llmtop.loader(batches()):
            with llmtop.step():
                pass
    assert [step.phases[0].count for step in recorded.steps] == [1, 1]
    assert all(step.host_ns < 50_000_000 for step in recorded.steps)


def test_a_loader_passes_on_what_its_iterable_is(recorded: Recorded) -> None:
    class Data:
        batch_size = 4

        def __len__(self) -> int:
            return 2

        def __iter__(self) -> object:
            return iter("ab")

    loader = llmtop.loader(Data())
    assert len(loader) == 2
    assert loader.batch_size == 4
    assert list(loader) == list(loader) == ["a", "b"]
    with pytest.raises(AttributeError):
        _ = loader.sampler
    with pytest.raises(TypeError):
        len(llmtop.loader(iter("ab")))


def test_an_error_of_the_data_comes_through_and_leaves_no_phase_open(recorded: Recorded) -> None:
    def batches() -> object:
        yield 1
        raise ConnectionError("shard 7")

    loader = iter(llmtop.loader(batches()))
    next(loader)
    with llmtop.step():
        pass
    with pytest.raises(ConnectionError, match="shard 7"):
        next(loader)
    with llmtop.step(), llmtop.phase("forward"):
        pass
    assert names(recorded.steps[1]) == ["forward"]


def test_a_phase_between_steps_counts_for_the_next_one_whose_time_begins_with_it(recorded: Recorded) -> None:
    with llmtop.step():
        pass
    with llmtop.phase("checkpoint"), llmtop.phase("serialise"):
        time.sleep(0.01)
    with llmtop.step(), llmtop.phase("forward"):
        pass
    first, second = recorded.steps
    assert names(first) == []
    assert names(second) == ["checkpoint", "checkpoint/serialise", "forward"]
    assert second.host_ns >= top_level_ns(second) >= 10_000_000


def test_a_phase_around_the_whole_loop_is_left_out_and_said(recorded: Recorded) -> None:
    with llmtop.phase("epoch"):
        with llmtop.phase("shuffle"):
            pass
        for _ in llmtop.loader(range(2)):
            with llmtop.step(), llmtop.phase("forward"):
                pass
    with llmtop.step():
        pass
    assert [sorted(names(step)) for step in recorded.steps] == [
        ["dataload", "forward", "shuffle"],
        ["dataload", "forward"],
        [],
    ]
    assert all(top_level_ns(step) <= step.host_ns for step in recorded.steps)
    assert "phases that enclose a step or were not ended within it" in recorded.left_out


def test_an_exception_inside_a_phase_ends_it_where_it_left(recorded: Recorded) -> None:
    with llmtop.step():
        with pytest.raises(ValueError, match="nan"), llmtop.phase("forward"), llmtop.phase("loss"):
            raise ValueError("nan")
        with llmtop.phase("backward"):
            pass
    assert names(recorded.step) == ["forward", "forward/loss", "backward"]


def test_a_step_that_an_exception_leaves_is_not_counted_and_spoils_nothing(recorded: Recorded) -> None:
    with pytest.raises(MemoryError), llmtop.step(), llmtop.phase("forward"):
        raise MemoryError
    with llmtop.step(), llmtop.phase("backward"):
        pass
    assert names(recorded.step) == ["backward"]
    assert recorded.step.index == 0
    assert recorded.left_out == ["steps left by an exception"]


def test_phases_that_overlap_are_left_out_and_said(recorded: Recorded) -> None:
    left, right = llmtop.phase("left"), llmtop.phase("right")
    with llmtop.step():
        left.__enter__()
        right.__enter__()
        left.__exit__(None, None, None)
        right.__exit__(None, None, None)
        with llmtop.phase("after"):
            pass
    assert names(recorded.step) == ["after"]
    assert recorded.left_out == ["overlapping phases"]


def test_a_step_within_a_step_is_ignored(recorded: Recorded) -> None:
    with llmtop.step(tokens=1), llmtop.step(tokens=2), llmtop.phase("forward"):
        pass
    assert (recorded.step.tokens, names(recorded.step)) == (1, ["forward"])


def test_the_scripts_own_index_is_kept_and_counted_on(recorded: Recorded) -> None:
    for index in (5000, None, 5010):
        with llmtop.step(index=index):
            pass
    assert [step.index for step in recorded.steps] == [5000, 5001, 5010]


@pytest.mark.parametrize("odd", ["many", object(), 10**400, float("nan"), [1]])
def test_a_script_may_pass_anything_for_a_number(recorded: Recorded, odd: object) -> None:
    with llmtop.step(tokens=odd, index=odd) as step:  # type: ignore[arg-type]
        step.samples = odd  # type: ignore[assignment]
    llmtop.log(loss=odd)
    assert recorded.step.index == 0
    assert recorded.step.tokens is None or recorded.step.tokens != recorded.step.tokens


@pytest.mark.parametrize("odd", [3, None, "", ["a"], "\x1b[31m", "a/b"])
def test_a_phase_may_have_any_name_and_is_shown_printable(recorded: Recorded, odd: object) -> None:
    with llmtop.step(), llmtop.phase(odd):  # type: ignore[arg-type]
        pass
    (name,) = names(recorded.step)
    assert name
    assert name.isprintable()
    assert "/" not in name


def test_tokens_may_be_known_only_at_the_end(recorded: Recorded) -> None:
    with llmtop.step() as step:
        step.tokens = 17
    assert recorded.step.tokens == 17


def test_names_made_from_data_do_not_fill_the_memory(recorded: Recorded) -> None:
    for number in range(3 * MAX_PATHS):
        with llmtop.step(), llmtop.phase(f"layer {number}"), llmtop.phase("inner"):
            pass
    with llmtop.step(), llmtop.phase("layer 0"):
        pass
    assert len(recorded.recorder.paths.names) <= MAX_PATHS + 1
    assert names(recorded.steps[-1]) == ["layer 0"]
    assert names(recorded.steps[-2]) == []
    assert any("over the limit" in reason for reason in recorded.left_out)


def test_hooks_can_open_and_close_without_a_with(recorded: Recorded) -> None:
    recorder = recorded.recorder
    recorder.begin_step(tokens=7)
    begin_phase("forward")
    begin_phase("attention")
    end_phase("attention")
    end_phase("forward")
    end_phase("forward")  # none is open
    begin_phase("backward")  # never ended: an exception left it
    recorder.end_step()
    recorder.end_step()
    assert names(recorded.step) == ["forward", "forward/attention"]
    assert recorder.manual_used is False
    with llmtop.phase("by hand"):
        pass
    list(llmtop.loader([1]))
    assert recorder.manual_used is False, "phases lie within the steps that hooks see"
    with llmtop.step():
        pass
    assert recorder.manual_used is True


def test_a_boundary_hook_runs_after_each_step_and_its_failure_ends_only_itself(recorded: Recorded) -> None:
    seen = []

    def hook(index: int) -> None:
        seen.append((index, len(recorded.steps)))
        if index == 1:
            raise RuntimeError("a capture broke")

    recorded.recorder.boundary_hook = hook
    for _ in range(4):
        with llmtop.step():
            pass
    assert seen == [(0, 1), (1, 2)]
    assert len(recorded.steps) == 4


operations = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from("abc")),
        st.tuples(st.just("exit"), st.sampled_from("abc")),
        st.tuples(st.just("step"), st.just("")),
        st.tuples(st.just("end"), st.just("")),
        st.tuples(st.just("fail"), st.just("")),
        st.tuples(st.just("batch"), st.just("")),
        st.tuples(st.just("cancel"), st.sampled_from("abc")),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=3 * EXAMPLES)
@given(operations)
def test_whatever_the_order_phases_never_add_up_to_more_than_their_step(script: list[tuple[str, str]]) -> None:
    recorder = get()
    recorder.reset()
    recorder.attached = True
    batches = iter(llmtop.loader(iter(range(1000))))
    for what, name in script:
        if what == "enter":
            begin_phase(name)
        elif what == "exit":
            end_phase(name)
        elif what == "cancel":
            recorder.cancel_phase(name)
        elif what == "step":
            recorder.begin_step()
        elif what == "end":
            recorder.end_step()
        elif what == "fail" and recorder.open_step is not None:
            recorder.open_step.__exit__(ValueError, ValueError(), None)
        elif what == "batch":
            next(batches)
    recorder.end_step()
    steps = steps_of(recorder)
    recorder.reset()
    for before, step in zip([None, *steps], steps, strict=False):
        assert top_level_ns(step) <= step.host_ns
        assert all(0 <= phase.host_ns <= step.host_ns and phase.count > 0 for phase in step.phases)
        if before is not None:
            # Steps do not overlap.
            assert before.started_unix_ns + before.host_ns <= step.started_unix_ns
