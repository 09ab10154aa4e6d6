"""What the launching threads did, and where samples found them, on hand-made tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmtop.analysis.idle.host_activity import BIG_COPY_BYTES, HostActivity, host_activity
from llmtop.analysis.idle.idle_causes import attribute_idle_time
from llmtop.analysis.idle.off_cpu import off_cpu_spans
from llmtop.analysis.idle.sampled_functions import most_sampled_during, sampled_functions
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import PhaseSpans
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.intervals import Spans
from tests.support.tables import PID, Tables, gaps_of, only_timeline, steps_at

US, MS = 1000, 1_000_000


def _pairs(spans: Spans) -> list[tuple[int, int]]:
    return list(zip(spans.starts.tolist(), spans.ends.tolist(), strict=True))


def _program(launches: int = 2, period: int = 10 * MS) -> Tables:
    """Kernels of 1 ms, each launched at the begin of a period."""
    made = Tables()
    for number in range(launches):
        made.launched(number, number * period, number * period + 10, number * period + MS)
    return made


def _activity(made: Tables, *edges: int, phases: list[PhaseSpans] | None = None) -> HostActivity:
    return host_activity(only_timeline(made.trace(), steps_at(*(edges or (0,)))), phases or [])


def _phase(path: str, start: int, end: int) -> PhaseSpans:
    return PhaseSpans(path, iv.union(np.array([start]), np.array([end])), np.array([start]))


@pytest.mark.parametrize(
    ("size", "direction", "cause"),
    [
        (BIG_COPY_BYTES, model.HOST_TO_DEVICE, "copy"),
        (BIG_COPY_BYTES - 1, model.HOST_TO_DEVICE, None),
        (BIG_COPY_BYTES, model.DEVICE_TO_HOST, "copy"),
        (BIG_COPY_BYTES - 1, model.DEVICE_TO_HOST, "sync"),  # reads a value back
        (BIG_COPY_BYTES, model.DEVICE_TO_DEVICE, None),
        (4, model.DEVICE_TO_DEVICE, None),
    ],
)
def test_a_call_that_copies_is_known_by_its_size_and_direction(
    size: int, direction: int, cause: str | None
) -> None:
    made = _program()
    made.call("cudaMemcpyAsync", 3 * MS, 4 * MS, correlation=50)
    made.op(4 * MS, 5 * MS, "", kind=model.MEMCPY, bytes=size, direction=direction, correlation=50)
    found = _activity(made)
    expected = [(3 * MS, 4 * MS)]
    assert _pairs(found.copy) == (expected if cause == "copy" else [])
    assert _pairs(found.sync) == (expected if cause == "sync" else [])
    assert _pairs(found.blocked) == (expected if cause == "sync" else [])
    assert expected[0] in _pairs(found.calls)


def test_calls_that_wait_free_or_allocate() -> None:
    made = _program()
    made.call("cudaStreamSynchronize", 2 * MS, 3 * MS)
    made.call("cudaFree_v3020", 4 * MS, 5 * MS)
    made.call("cudaMalloc", 5 * MS, 6 * MS)
    made.call("cudaFreeAsync", 7 * MS, 8 * MS)
    made.call("cudaDeviceSynchronize", 2 * MS, 9 * MS, thread=8)  # launches nothing
    found = _activity(made)
    assert _pairs(found.sync) == [(2 * MS, 3 * MS)]
    assert _pairs(found.blocked) == [(2 * MS, 3 * MS), (4 * MS, 5 * MS)], "a free waits for the device as well"
    assert _pairs(found.allocation) == [(4 * MS, 6 * MS), (7 * MS, 8 * MS)]
    assert found.seen


@pytest.mark.parametrize(
    ("name", "with_call", "waits"),
    [
        ("aten::item", True, True),
        ("aten::_local_scalar_dense", True, True),
        ("aten::is_nonzero", True, True),
        ("aten::item", False, False),  # of a tensor on the host
        ("aten::items", True, False),
        ("aten::mm", True, False),
    ],
)
def test_an_operator_that_reads_a_value_back_waits(name: str, with_call: bool, waits: bool) -> None:
    made = _program()
    made.host(name, 2 * MS, 4 * MS)
    made.host("aten::item", 5 * MS, 6 * MS, thread=8)
    if with_call:
        made.call("cudaGetDevice", 3 * MS, 3 * MS + 10)
    assert _pairs(_activity(made).sync) == ([(2 * MS, 4 * MS)] if waits else [])


@pytest.mark.parametrize(("quiet", "long"), [(2 * MS, True), (2 * MS - 1, False)])
def test_two_milliseconds_without_a_call_are_other_work(quiet: int, long: bool) -> None:
    made = Tables()
    made.launched(1, 0, 0, 6)
    made.launched(2, 5 + quiet, 6 + quiet, 20 + quiet)
    assert _pairs(_activity(made).long_quiet) == ([(5, 5 + quiet)] if long else [])


@pytest.mark.parametrize(
    ("quiet", "phase", "long"),
    [
        (3 * MS, "forward", False),
        (3 * MS, "evaluate", True),
        (5 * MS, "forward", True),
        (5 * MS - 1, "forward", False),
        (3 * MS, "forward/inner", False),
    ],
)
def test_in_a_phase_that_launches_the_host_may_take_five(quiet: int, phase: str, long: bool) -> None:
    made = Tables()
    made.launched(1, 0, 0, 6)
    made.launched(2, 5 + quiet, 6 + quiet, 20 + quiet)
    found = _activity(made, phases=[_phase(phase, 0, 100 * MS)])
    assert bool(len(found.long_quiet)) == long


def test_a_quiet_stretch_half_of_which_lies_in_such_a_phase_is_the_host_s_own() -> None:
    for end, long in ((5 + 3 * MS // 2, False), (4 + 3 * MS // 2, True)):
        made = Tables()
        made.launched(1, 0, 0, 6)
        made.launched(2, 5 + 3 * MS, 6 + 3 * MS, 20 + 3 * MS)
        assert bool(len(_activity(made, phases=[_phase("forward", 0, end)]).long_quiet)) == long


def _input(quiet: int, size: int, *, steps: int = 4, with_copy: int = 4) -> HostActivity:
    """Steps of 10 ms: a quiet stretch, then a copy of input in so many of them, else a kernel; then a kernel."""
    made = Tables()
    number = 0
    for step in range(steps + 1):
        at = step * 10 * MS
        if step < with_copy:
            made.call("cudaMemcpyAsync", at, at + 10, correlation=number)
            made.op(at + 20, at + 30, "", kind=model.MEMCPY, bytes=size, direction=1, correlation=number)
        else:
            made.launched(number, at, at + 20, at + 30)
        last = at + 10 * MS - quiet
        made.launched(number + 1, last - 5, at + 40, at + MS)
        number += 2
    return _activity(made, *(step * 10 * MS for step in range(steps + 1)))


@pytest.mark.parametrize(
    ("quiet", "size", "with_copy", "found"),
    [
        (300 * US, 256, 5, 4),
        (299 * US, 256, 5, 0),
        (300 * US, 255, 5, 0),
        (300 * US, 256, 3, 2),  # in half of the four steps
        (300 * US, 256, 2, 0),
    ],
)
def test_quiet_before_copies_of_input_in_half_of_the_steps_is_a_wait_for_input(
    quiet: int, size: int, with_copy: int, found: int
) -> None:
    """The stretch before the first copy lies outside of the steps."""
    assert len(_input(quiet, size, with_copy=with_copy).inferred_input) == found


def test_of_long_steps_a_fiftieth_must_be_quiet() -> None:
    for quiet, found in ((400 * US, 1), (399 * US, 0)):
        made = Tables()
        for step in range(3):
            at = step * 20 * MS
            made.call("cudaMemcpyAsync", at, at + 10, correlation=2 * step)
            made.op(at + 20, at + 30, "", kind=model.MEMCPY, bytes=256, direction=1, correlation=2 * step)
            made.launched(2 * step + 1, at + 20 * MS - quiet - 5, at + 40, at + MS)
        assert bool(len(_activity(made, 0, 20 * MS, 40 * MS).inferred_input)) == bool(found)


def _with_samples(
    made: Tables, *rows: tuple[int, str, str], kind: int = model.PYTHON_SAMPLE, thread: int = PID
) -> model.Trace:
    """Samples as (instant, innermost, caller)."""
    for _, name, caller in rows:
        made.range(name, -10, -9, process=99)
        made.range(caller, -10, -9, process=99)
    trace = made.trace()
    number = {name: place for place, name in enumerate(trace.names)}
    columns: dict[str, Any] = {
        "start": [at for at, _, _ in rows],
        "name": [number[name] for _, name, _ in rows],
        "caller": [number[caller] for _, _, caller in rows],
        "process": [PID] * len(rows),
        "thread": [thread] * len(rows),
        "kind": [kind] * len(rows),
    }
    trace.samples = model.build(model.StackSamples, columns | {"end": columns["start"]})
    return trace


@pytest.mark.parametrize(("samples", "known"), [(20, True), (19, False)])
@pytest.mark.parametrize("kind", [model.PYTHON_SAMPLE, model.CPU_SAMPLE])
def test_twenty_samples_in_idle_time_tell_where_the_host_was(samples: int, known: bool, kind: int) -> None:
    rows = [(2 * MS + number, "read" if number < 15 else "parse", "load.py") for number in range(samples)]
    rows += [(500, "elsewhere", "x")] * 30  # the GPU works
    timeline = only_timeline(_with_samples(_program(), *rows, kind=kind), steps_at(0))
    found = most_sampled_during(timeline, gaps_of(timeline, host=1.0), ["host"])
    if not known:
        assert found is None
    elif kind == model.PYTHON_SAMPLE:
        assert found == ("load.py", 100.0), "of Python the innermost frame that is no library's"
    else:
        assert found == ("read", pytest.approx(75.0))


@pytest.mark.parametrize(("part", "looked_at"), [(0.5, True), (0.49, False)])
def test_gaps_are_looked_at_where_the_causes_take_half(part: float, looked_at: bool) -> None:
    rows = [(2 * MS + number, "read", "") for number in range(20)]
    timeline = only_timeline(_with_samples(_program(), *rows), steps_at(0))
    gaps = gaps_of(timeline, host=part)
    assert (most_sampled_during(timeline, gaps, ["host", "os_wait"]) is not None) == looked_at


def test_functions_without_a_name_or_of_other_threads_are_no_answer() -> None:
    rows = [(2 * MS + number, "(libfoo.so)" if number < 15 else "parse", "") for number in range(20)]
    trace = _with_samples(_program(), *rows, kind=model.CPU_SAMPLE)
    timeline = only_timeline(trace, steps_at(0))
    gaps = gaps_of(timeline, host=1.0)
    assert most_sampled_during(timeline, gaps, ["host"]) == ("parse", pytest.approx(25.0))
    unnamed = only_timeline(_with_samples(_program(), *rows[:15], *rows[:15], kind=model.CPU_SAMPLE), steps_at(0))
    assert most_sampled_during(unnamed, gaps_of(unnamed, host=1.0), ["host"]) is None
    other = only_timeline(_with_samples(_program(), *rows, thread=8), steps_at(0))
    assert most_sampled_during(other, gaps_of(other, host=1.0), ["host"]) is None


def test_sampled_functions_are_those_of_idle_time_first() -> None:
    rows = [(500 + n, "work", "a") for n in range(5)] + [(2 * MS + n, "read", "b" if n else "c") for n in range(3)]
    rows += [(10 * MS + 2, "launch", "launch"), (3 * MS, "launch", "launch")]
    trace = _with_samples(_program(), *rows)
    timeline = only_timeline(trace, steps_at(0))
    found = sampled_functions(trace, [timeline], [gaps_of(timeline)])
    assert [(one.name, one.caller, one.samples, one.idle_samples, one.call_samples) for one in found] == [
        ("read", "b", 3, 3, 0),
        ("launch", "", 2, 2, 1),
        ("work", "a", 5, 0, 0),
    ]
    assert [one.share_pct for one in found] == pytest.approx([30, 20, 50])
    assert [one.idle_pct for one in found] == pytest.approx([60, 40, 0])
    assert {(one.pid, one.kind) for one in found} == {(PID, "Python")}


def test_samples_of_a_process_without_device_work_are_those_of_its_threads_with_ranges() -> None:
    made = Tables()
    made.range("step", 0, 10, thread=8)
    made.range("step", 0, 10, process=9, thread=PID)
    trace = _with_samples(made, (1, "a", "x"), (2, "a", "x"))
    mixed = [trace.samples.start, np.array([PID, 8])]
    columns = {key: getattr(trace.samples, key) for key in ("end", "process", "kind", "name", "caller")}
    trace.samples = model.build(model.StackSamples, columns | {"start": mixed[0], "thread": mixed[1]})
    (found,) = sampled_functions(trace, [], [])
    assert (found.samples, found.share_pct) == (1, 100.0)
    assert (found.idle_samples, found.idle_pct, found.call_samples) == (None, None, None)
    trace.samples = model.build(model.StackSamples, columns | {"start": mixed[0], "thread": [PID, PID]})
    (found,) = sampled_functions(trace, [], [])
    assert found.samples == 2, "all of them, where no such thread has any"


def _off(timeline_of: Tables, *rows: tuple[int, int, int, int]) -> DeviceTimeline:
    """Stretches off the CPU as (thread, start, end, why)."""
    trace = timeline_of.trace()
    names = ("thread", "start", "end", "why")
    columns: dict[str, Any] = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    trace.off_cpu = model.build(model.OffCpu, columns | {"process": [PID] * len(rows)})
    return only_timeline(trace, steps_at(0))


def test_all_launching_threads_must_be_off_the_cpu() -> None:
    made = _program()
    made.call("cudaLaunchKernel", 5 * MS, 5 * MS + 5, correlation=50, thread=8)
    made.op(6 * MS, 7 * MS, correlation=50)
    rows = (
        (PID, 100, 200, model.WAITING),
        (8, 150, 300, model.PREEMPTED),
        (PID, 250, 280, 0),
        (PID, 400, 500, model.SLEEPING),
        (9, 100, 500, model.SLEEPING),
    )
    found = off_cpu_spans(_off(made, *rows))
    assert {cause: _pairs(spans) for cause, spans in found.items()} == {
        "preempted": [(150, 200), (250, 280)],
        "sleeping": [],
        "waiting": [(150, 200)],
        "off_cpu": [(250, 280)],
    }
    assert off_cpu_spans(_off(made, rows[0])) == {}
    alone = off_cpu_spans(_off(_program(), *rows))
    assert {cause: _pairs(spans) for cause, spans in alone.items() if len(spans)} == {
        "waiting": [(100, 200)],
        "sleeping": [(400, 500)],
        "off_cpu": [(250, 280)],
    }


def _causes(made: Tables, others: Spans = iv.EMPTY) -> dict[str, int]:
    timeline = only_timeline(made.trace(), steps_at(0))
    gaps = attribute_idle_time(timeline, others, [])
    found = {cause: gaps.total(cause) for cause in gaps.by_cause}
    assert sum(found.values()) == timeline.idle.total
    return {cause: ns for cause, ns in found.items() if ns}


@pytest.mark.parametrize(
    ("gap", "returned", "causes"),
    [
        (50 * US, -10, {"queued": 50 * US}),
        (50 * US + 1, -10, {"dependency": 50 * US + 1}),
        (50 * US, 0, {"queued": 50 * US}),
        (80 * US, 20 * US, {"dependency": 60 * US, "launch": 20 * US}),
        (60 * US, 20 * US, {"launch": 60 * US}),  # launched late, and started within 50 us
        (20 * US, 20 * US, {"launch": 20 * US}),
    ],
)
def test_work_that_was_launched_in_time_is_queued_or_waits_for_something(
    gap: int, returned: int, causes: dict[str, int]
) -> None:
    """The call returns so many ns after the gap begins."""
    made = Tables()
    made.launched(1, 0, 10, MS)
    end = MS + returned
    made.call("cudaLaunchKernel", end - 5, end, correlation=2)
    made.op(MS + gap, 2 * MS, correlation=2)
    assert _causes(made) == causes


def test_what_another_process_ran_is_its_own() -> None:
    made = Tables()
    made.launched(1, 0, 10, MS)
    made.launched(2, 900, MS + 40 * US, 2 * MS)
    others = iv.union(np.array([MS + 10 * US]), np.array([MS + 25 * US]))
    assert _causes(made, others) == {"other_process": 15 * US, "queued": 25 * US}


def test_without_calls_nothing_is_known_of_the_host() -> None:
    made = Tables()
    made.op(0, MS)
    made.op(2 * MS, 3 * MS)
    assert _causes(made) == {"unknown": MS}


def test_work_without_a_launch_in_a_gap_that_the_host_waited_through_had_been_launched() -> None:
    made = Tables()
    made.launched(1, 0, 10, MS)
    made.call("cudaDeviceSynchronize", MS // 2, 3 * MS)
    made.op(MS + 40 * US, 2 * MS)
    assert _causes(made) == {"queued": 40 * US}
