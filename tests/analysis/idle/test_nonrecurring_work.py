"""Work that comes once: long calls, graphs, compilers, and the start of a program."""

from __future__ import annotations

import pytest

from llmtop.analysis.idle.nonrecurring_work import longest_setup, sends_weights, setup_spans
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.trace import model
from llmtop.trace.intervals import Spans
from tests.support.tables import PID, Tables, only_timeline, steps_at

MS = 1_000_000


def _pairs(spans: Spans) -> list[tuple[int, int]]:
    return list(zip(spans.starts.tolist(), spans.ends.tolist(), strict=True))


def _training(steps: int = 4, period: int = 100 * MS) -> Tables:
    """Steps that each launch one kernel at their begin, and the begin of one more."""
    made = Tables()
    for number in range(steps + 1):
        at = number * period
        made.launched(number, at, at + 10, at + period - 10, "fused_kernel")
    return made


def _timeline(made: Tables, steps: int = 4, period: int = 100 * MS) -> DeviceTimeline:
    return only_timeline(made.trace(), steps_at(*range(0, period * (steps + 1), period)))


@pytest.mark.parametrize(("took", "counts"), [(MS, True), (MS - 1, False)])
def test_a_call_of_a_millisecond_that_comes_once_sets_something_up(took: int, counts: bool) -> None:
    made = _training()
    made.call("cudaStreamCreate", 50 * MS, 50 * MS + took)
    found = setup_spans(_timeline(made))
    assert _pairs(found["one_off"]) == ([(50 * MS, 50 * MS + took)] if counts else [])
    assert all(not len(found[cause]) for cause in ("capture", "compile", "start_up"))


@pytest.mark.parametrize(
    "name",
    ["cudaStreamSynchronize", "cudaMemcpyAsync", "cudaMemcpy", "cudaGraphLaunch", "cudaLaunchHostFunc"],
)
def test_a_call_that_waits_copies_or_replays_sets_nothing_up(name: str) -> None:
    made = _training()
    made.call(name, 50 * MS, 55 * MS)
    assert not len(setup_spans(_timeline(made))["one_off"])


@pytest.mark.parametrize(
    ("in_steps", "comes_again"),
    [((0, 1, 2), True), ((0, 1), False), ((0, 0, 0), False), ((0,), False), ((0, 1, 2, 3), True)],
)
def test_a_long_call_in_more_than_half_of_four_steps_comes_again(
    in_steps: tuple[int, ...], comes_again: bool
) -> None:
    made = _training()
    for place, step in enumerate(in_steps):
        at = step * 100 * MS + (place + 1) * 10 * MS
        made.call("cudaMalloc", at, at + 2 * MS)
    assert len(setup_spans(_timeline(made))["one_off"]) == (0 if comes_again else len(in_steps))


def test_code_that_is_loaded_is_new_however_often() -> None:
    made = _training()
    for step in range(4):
        made.call("cuModuleLoadData", (100 * step + 20) * MS, (100 * step + 22) * MS)
        made.call("cuLibraryLoadData", (100 * step + 30) * MS, (100 * step + 31) * MS)
    assert len(setup_spans(_timeline(made))["one_off"]) == 8


def test_of_launches_the_kernel_must_come_again() -> None:
    """Each step has a long launch: in three of them of one kernel, in the last of another."""
    made = _training()
    for step, name in enumerate(("gemm", "gemm", "gemm", "softmax")):
        at = (100 * step + 40) * MS
        made.call("cudaLaunchKernel", at, at + 3 * MS, correlation=50 + step)
        made.op(at + 4 * MS, at + 5 * MS, name, correlation=50 + step)
    assert _pairs(setup_spans(_timeline(made))["one_off"]) == [(340 * MS, 343 * MS)]


def test_without_two_steps_the_parts_are_tenths_of_the_time() -> None:
    """A call in five of ten parts comes once, in six it comes again."""
    for parts, comes_again in ((5, False), (6, True)):
        made = Tables()
        made.launched(1, 0, 0, 1000 * MS)
        for part in range(parts):
            made.call("cudaMalloc", (100 * part + 50) * MS, (100 * part + 52) * MS)
        found = setup_spans(only_timeline(made.trace(), steps_at(0)))["one_off"]
        assert len(found) == (0 if comes_again else parts)


def test_calls_of_other_threads_and_processes_set_nothing_up_here() -> None:
    made = _training()
    made.call("cudaStreamCreate", 50 * MS, 55 * MS, thread=PID + 1)
    made.call("cudaStreamCreate", 60 * MS, 65 * MS, process=PID + 1)
    timeline = _timeline(made)
    assert not len(setup_spans(timeline)["one_off"])
    assert longest_setup(timeline) == ""


def test_the_longest_call_is_that_with_most_time_within_the_steps() -> None:
    made = _training()
    made.call("cudaLaunchKernel_v7000", 50 * MS, 56 * MS, correlation=77)
    made.op(57 * MS, 58 * MS, "softmax", full_name="softmax<float>", correlation=77)
    made.call("cudaStreamCreate_v3020", 150 * MS, 155 * MS)
    made.call("cudaEventCreate", -20 * MS, 4 * MS)  # longer, but only 4 ms within
    assert longest_setup(_timeline(made)) == "cudaLaunchKernel of softmax (6.00 ms)"
    made.call("cudaStreamCreate_v3020", 250 * MS, 257 * MS)
    assert longest_setup(_timeline(made)) == "cudaStreamCreate (7.00 ms)"


def test_a_call_outside_of_the_steps_is_not_the_longest() -> None:
    made = _training()
    made.call("cudaStreamCreate", -20 * MS, 10)  # the device begins at 10
    assert longest_setup(_timeline(made)) == ""


def test_a_graph_is_captured_from_begin_to_end_and_then_prepared() -> None:
    made = _training()
    made.call("cudaStreamEndCapture", 5 * MS, 6 * MS)  # of one that was begun before
    made.call("cudaStreamBeginCapture_v10000", 10 * MS, 11 * MS)
    made.call("cudaStreamEndCapture_v10000", 20 * MS, 21 * MS)
    made.call("cudaGraphInstantiate_v12000", 30 * MS, 33 * MS)
    made.call("cudaStreamBeginCapture_v10000", 40 * MS, 41 * MS, thread=PID + 1)
    made.call("cudaStreamBeginCapture_v10000", 90 * MS, 91 * MS)  # never ends
    found = _pairs(setup_spans(_timeline(made))["capture"])
    assert found == [(10 * MS, 21 * MS), (30 * MS, 33 * MS)]


@pytest.mark.parametrize(
    ("name", "compiles"),
    [
        ("_compile.compile_inner (dynamo_timed)", True),
        ("torch/_dynamo/convert_frame.py(1234): _compile", True),
        ("torch/_inductor/compile_fx.py(99): compile_fx", True),
        ("torch/_inductor/compile_fx.py(99): fx_codegen_and_compile", True),
        ("triton/compiler/compiler.py(200): compile", True),
        ("torch/utils/cpp_extension.py(1): load", True),
        ("re/_compiler.py(7): compile", False),
        ("forward", False),
    ],
)
def test_what_a_compiler_has_open_on_a_launching_thread_compiles(name: str, compiles: bool) -> None:
    made = _training()
    made.range(name, 10 * MS, 20 * MS)
    made.range(name, 30 * MS, int(model.OPEN))
    made.range(name, 40 * MS, 50 * MS, thread=PID + 1)
    made.host(name, 60 * MS, 70 * MS, kind=model.PYTHON)
    expected = [(10 * MS, 20 * MS), (60 * MS, 70 * MS)] if compiles else []
    assert _pairs(setup_spans(_timeline(made))["compile"]) == expected


def _program(copies: int = 2, silence: int = 2 * MS, *, direction: int = model.HOST_TO_DEVICE) -> Tables:
    """A memset, a silence after its call, copies to the device, and the first matrix product."""
    made = Tables()
    made.call("cudaMemsetAsync", 0, 1000, correlation=1)
    made.op(1000, 2000, "", kind=model.MEMSET, correlation=1)
    at = 1000 + silence
    for number in range(copies):
        made.call("cudaMemcpyAsync", at, at + 100, correlation=10 + number)
        made.op(
            at + 100,
            at + 150,
            "",
            kind=model.MEMCPY,
            direction=direction,
            source_memory=model.PAGEABLE,
            bytes=1000,
            correlation=10 + number,
        )
        at += 200
    made.call("cudaLaunchKernel", at, at + 5, correlation=99)
    made.op(at + 10, at + 5 * MS, "ampere_sgemm_128x64_nn", correlation=99)
    return made


@pytest.mark.parametrize(
    ("made", "begin_of_copies"),
    [
        (_program(), 1000 + 2 * MS),
        (_program(silence=2 * MS - 1), None),
        (_program(copies=1), None),
        (_program(copies=3, silence=7 * MS), 1000 + 7 * MS),
        (_program(direction=model.DEVICE_TO_HOST), None),
    ],
    ids=["two", "too short", "one copy", "three", "to the host"],
)
def test_a_silence_before_copies_and_the_first_product_is_a_start(
    made: Tables, begin_of_copies: int | None
) -> None:
    found = setup_spans(only_timeline(made.trace(), steps_at(0)))["start_up"]
    assert _pairs(found) == ([] if begin_of_copies is None else [(1000, begin_of_copies)])


def test_broadcasts_of_weights_are_sent_as_copies_are() -> None:
    made = Tables()
    made.call("cudaMemsetAsync", 0, 1000, correlation=1)
    made.op(1000, 2000, "", kind=model.MEMSET, correlation=1)
    for number in (2, 3):
        at = 5 * MS + 1000 * number
        made.call("cudaLaunchKernel", at, at + 1000, correlation=number)
        made.op(at + 5, at + 20, "ncclDevKernel_Broadcast_RING_LL", correlation=number)
    made.launched(9, 6 * MS, 6 * MS + 10, 9 * MS, "ampere_sgemm_128x64_nn")
    found = setup_spans(only_timeline(made.trace(), steps_at(0)))["start_up"]
    assert _pairs(found) == [(1000, 5 * MS + 2000)]


def test_nothing_starts_within_steps_or_without_a_product() -> None:
    steps = _program()
    for number, at in ((200, 6 * MS), (201, 9 * MS)):
        steps.launched(number, at, at + 10, at + MS)
    timeline = only_timeline(steps.trace(), steps_at(0, 6 * MS, 9 * MS))
    assert timeline.counted == 2
    assert not len(setup_spans(timeline)["start_up"])
    made = Tables()
    made.call("cudaMemcpyAsync", 0, 10, correlation=1)
    made.op(10, 20, "", kind=model.MEMCPY, correlation=1)
    assert not len(setup_spans(only_timeline(made.trace(), steps_at(0)))["start_up"])


@pytest.mark.parametrize(
    ("copies", "later_bytes", "weights"),
    [(10, 0, True), (9, 0, False), (10, 9_999, True), (10, 10_000, False), (30, 1, True)],
)
def test_ten_copies_of_most_bytes_before_the_first_product_are_weights(
    copies: int, later_bytes: int, weights: bool
) -> None:
    made = _program(copies)
    if later_bytes:
        made.op(
            90 * MS,
            91 * MS,
            "",
            kind=model.MEMCPY,
            source_memory=model.PAGEABLE,
            bytes=later_bytes,
            correlation=-1,
        )
    made.op(92 * MS, 93 * MS, "", kind=model.MEMCPY, source_memory=model.PINNED, bytes=10**9, correlation=-1)
    assert sends_weights(only_timeline(made.trace(), steps_at(0))) == weights
