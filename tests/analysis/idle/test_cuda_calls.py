"""What CUDA's and HIP's functions are for, by their documentation, and what calls of them cost."""

from __future__ import annotations

import numpy as np
import pytest

from llmtop.analysis.idle.call_places import call_places
from llmtop.analysis.idle.cuda_calls import (
    ALLOCATION,
    COPY,
    KIND_NAMES,
    LAUNCH,
    OTHER,
    SYNC,
    api_times,
    call_kind,
    unversioned_name,
)
from llmtop.analysis.idle.launches import launch_calls, launches_per_step
from llmtop.analysis.idle.sync_calls import wait_places
from llmtop.analysis.steps.device_timeline import device_timelines
from llmtop.analysis.steps.step_finder import PhaseSpans
from llmtop.trace import intervals as iv
from tests.support.tables import PID, Tables, only_timeline, steps_at

KINDS = {
    LAUNCH: (
        *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "hipLaunchKernel", "hipModuleLaunchKernel"),
        *("cudaLaunchCooperativeKernel", "cudaGraphLaunch", "cuGraphLaunch", "cudaMemsetAsync", "cudaMemset"),
    ),
    SYNC: (
        *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuCtxSynchronize"),
        *("cudaThreadSynchronize", "hipStreamSynchronize", "hipDeviceSynchronize", "cudaMemcpy", "hipMemcpy"),
        *("cudaMemcpyToSymbol", "cudaMemcpy2D", "cuMemcpyDtoH", "hipMemcpyDtoH", "hipMemcpyWithStream"),
        "block_until_ready",
    ),
    COPY: (
        *("cudaMemcpyAsync", "cuMemcpyHtoDAsync", "hipMemcpyAsync", "cudaMemcpyPeerAsync", "cudaMemcpy2DAsync"),
        *("cudaMemPrefetchAsync", "hipMemcpyDtoHAsync"),
    ),
    ALLOCATION: (
        *("cudaMalloc", "cudaFree", "cudaMallocAsync", "cudaFreeHost", "cudaHostAlloc", "cudaMallocHost"),
        *("cudaHostRegister", "cuMemAlloc", "cuMemFree", "cuMemCreate", "cuMemMap", "cuMemUnmap", "hipMalloc"),
        *("hipFree", "cuMemSetAccess", "cuMemAddressReserve", "cuMemRelease"),
    ),
    OTHER: (
        *("cudaGetDevice", "cudaEventRecord", "cudaStreamWaitEvent", "cudaLaunchHostFunc", "cudaEventQuery"),
        *("cudaStreamIsCapturing", "cudaFuncGetAttributes", "cudaStreamCreate", "cudaPeekAtLastError"),
    ),
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, names in KINDS.items() for name in names])
def test_a_function_is_for_what_its_documentation_says(name: str, kind: int) -> None:
    assert call_kind(name) == kind
    assert call_kind(f"{name}_v3020") == kind, "nsys keeps a version"


def test_the_names_of_kinds_are_in_their_order() -> None:
    assert [KIND_NAMES[kind] for kind in (LAUNCH, SYNC, COPY, ALLOCATION, OTHER)] == [
        "launch",
        "sync",
        "copy",
        "allocation",
        "other",
    ]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel_ptsz"),
        ("cudaMemcpyAsync_v3020_ptsz", "cudaMemcpyAsync"),
        ("cuMemAlloc_v2", "cuMemAlloc"),
        ("cudaMalloc", "cudaMalloc"),
        ("cudaMalloc_vx", "cudaMalloc_vx"),
    ],
)
def test_a_name_without_its_version(name: str, plain: str) -> None:
    assert unversioned_name(name) == plain


def _calls() -> Tables:
    """Two steps, from 1000 to 2000 and to 3000, with launches at all edges."""
    made = Tables()
    for number, at in enumerate((900, 1000, 1500, 2000, 2999, 3000)):
        made.call("cudaLaunchKernel", at, at + 10 + number, correlation=number)
        made.op(at + 20, at + 60, correlation=number)
    made.call("cudaStreamSynchronize_v3020", 2100, 2700)
    made.call("cudaStreamSynchronize", 2800, 2900)
    return made


def test_figures_of_calls_are_sums_over_the_file_and_counts_of_whole_steps() -> None:
    trace = _calls().trace()
    sync, launch = api_times(trace, [only_timeline(trace, steps_at(1000, 2000, 3000))])
    assert (sync.name, sync.kind, sync.count) == ("cudaStreamSynchronize", "sync", 2)
    assert sync.seconds == pytest.approx(700e-9)
    assert (sync.mean_us, sync.max_us, sync.calls_per_step) == (pytest.approx(0.35), 0.6, 1.0)
    assert (launch.name, launch.kind, launch.count) == ("cudaLaunchKernel", "launch", 6)
    assert launch.seconds == pytest.approx((10 + 11 + 12 + 13 + 14 + 15) * 1e-9)
    assert launch.max_us == pytest.approx(0.015)
    assert launch.calls_per_step == 4 / 2, "1000, 1500, 2000 and 2999 are in the steps"


def test_calls_without_steps_have_no_figure_per_step() -> None:
    trace = _calls().trace()
    assert {row.calls_per_step for row in api_times(trace, [only_timeline(trace, steps_at(0))])} == {None}
    assert api_times(Tables().trace(), []) == ()


def test_calls_per_step_are_of_all_processes_each_by_its_own_steps() -> None:
    """Two processes. One works on two GPUs, and its calls count once."""
    made = Tables()
    for pid, calls in ((1, 3), (2, 6)):
        for number in range(calls):
            made.call("cudaLaunchKernel", 10 * number, 10 * number + 5, process=pid, correlation=number)
            made.op(10 * number + 6, 10 * number + 9, process=pid, correlation=number, device=number % pid)
    trace = made.trace()
    steps = {1: steps_at(0, 100, process=1), 2: steps_at(0, 25, 50, 100, process=2)}
    timelines = device_timelines(trace, steps)
    assert [(one.device, one.process) for one in timelines] == [(0, 1), (0, 2), (1, 2)]
    (row,) = api_times(trace, timelines)
    assert row.calls_per_step == pytest.approx(9 / 4)


def test_places_of_calls_are_those_with_a_stack_by_function_and_place() -> None:
    made = Tables()
    made.call("cudaMemcpyAsync_v3020", 0, 100, place="train.py:7")
    made.call("cudaMemcpyAsync_v3020", 200, 500, place="train.py:7")
    made.call("cudaMemcpyAsync_v3020", 600, 650, place="train.py:9")
    made.call("cudaStreamSynchronize", 700, 1700, place="train.py:9")
    made.call("cudaStreamSynchronize", 2000, 9000)
    made.call("cudaMemcpyAsync_v3020", 3000, 3001, place="train.py:7", process=7)
    found = call_places(made.trace())
    assert [(one.pid, one.call, one.kind, one.place, one.count) for one in found] == [
        (PID, "cudaStreamSynchronize", "sync", "train.py:9", 1),
        (PID, "cudaMemcpyAsync", "copy", "train.py:7", 2),
        (PID, "cudaMemcpyAsync", "copy", "train.py:9", 1),
        (7, "cudaMemcpyAsync", "copy", "train.py:7", 1),
    ]
    assert [one.seconds for one in found] == pytest.approx([1000e-9, 400e-9, 50e-9, 1e-9])
    assert [one.max_us for one in found] == [1.0, 0.3, 0.05, 0.001]


def test_calls_without_a_stack_have_no_places() -> None:
    assert call_places(_calls().trace()) == ()


def test_launches_per_step_are_those_that_the_host_made_in_whole_steps() -> None:
    timeline = only_timeline(_calls().trace(), steps_at(1000, 2000, 3000))
    assert timeline.counted == 2
    assert launches_per_step(timeline) == 4 / 2
    assert len(launch_calls(timeline)) == 6
    assert launches_per_step(only_timeline(_calls().trace(), steps_at(0))) is None


def test_a_memset_is_no_launch_of_a_kernel_and_a_graph_is() -> None:
    made = Tables()
    made.op(0, 1)
    for name in ("cudaMemsetAsync", "cudaGraphLaunch", "cudaLaunchKernel", "cudaMemcpyAsync"):
        made.call(name, 0, 1)
    made.call("cudaLaunchKernel", 0, 1, process=PID + 1)
    trace = made.trace()
    found = launch_calls(only_timeline(trace, steps_at(0)))
    assert [trace.names[name] for name in found.name.tolist()] == ["cudaGraphLaunch", "cudaLaunchKernel"]


def test_a_launch_without_device_work_is_on_the_device_of_its_thread_s_last_one() -> None:
    """Of one process: thread 1 launches on GPU 0, then 1; thread 2 on GPU 1; work of every third launch is not
    in the file. The thread's first launch without work before it is on no known GPU."""
    made = Tables()
    calls = [
        (1, 10, None),
        (1, 20, 0),
        (1, 30, None),
        (1, 40, 1),
        (1, 50, None),
        (1, 60, None),
        (2, 15, 1),
        (2, 35, None),
        (2, 55, None),
    ]
    for number, (thread, at, device) in enumerate(calls):
        made.call("cudaLaunchKernel", at, at + 1, thread=thread, correlation=number)
        if device is not None:
            made.op(at + 2, at + 4, correlation=number, device=device)
    zero, one = device_timelines(made.trace(), {PID: steps_at(0)})
    assert launch_calls(zero).start.tolist() == [20, 30]
    assert sorted(launch_calls(one).start.tolist()) == [15, 35, 40, 50, 55, 60]


def _waits() -> Tables:
    """Two steps of 1000 ns; waits of the launching thread in phases, in operators, at the edges, and elsewhere."""
    made = Tables()
    for number in range(3):
        made.launched(number, 1000 * number + 10, 1000 * number + 20, 1000 * number + 900)
    made.host("aten::item", 90, 220)
    made.host("aten::_local_scalar_dense", 95, 200)
    made.host("aten::mul", 80, 89)
    made.host("aten::nonzero", 90, 220, thread=7)
    made.call("cudaStreamSynchronize_v3020", 100, 160)
    made.call("cudaStreamSynchronize", 210, 220)  # ends with aten::item
    made.call("cudaStreamSynchronize", 1100, 1140)
    made.call("cudaStreamSynchronize", 0, 4)
    made.call("cudaStreamSynchronize", 1999, 2010)
    made.call("cudaStreamSynchronize", 2000, 2500)  # after the steps
    made.call("cudaStreamSynchronize", 400, 500, thread=8)  # launches nothing
    made.call("cudaStreamSynchronize", 400, 500, process=9)
    made.call("cudaEventQuery", 600, 700)
    return made


def _phase(path: str, *spans: tuple[int, int]) -> PhaseSpans:
    starts, ends = np.array(spans, dtype=np.int64).T
    return PhaseSpans(path, iv.union(starts, ends), starts)


def test_calls_that_wait_are_counted_by_phase_and_innermost_operator() -> None:
    phases = [_phase("step/optimizer", (90, 300)), _phase("step", (0, 300), (1100, 1200))]
    found = wait_places(only_timeline(_waits().trace(), steps_at(0, 1000, 2000)), phases)
    rows = {
        (row.call, row.phase, row.operator): (2 * row.calls_per_step, 2e6 * row.host_ms_per_step) for row in found
    }
    assert rows == {
        ("cudaStreamSynchronize", "step/optimizer", "aten::_local_scalar_dense"): (1, pytest.approx(60)),
        ("cudaStreamSynchronize", "step/optimizer", "aten::item"): (1, pytest.approx(10)),
        ("cudaStreamSynchronize", "step", ""): (2, pytest.approx(44)),
        ("cudaStreamSynchronize", "", ""): (1, pytest.approx(11)),
    }
    assert found[0].calls_per_step == 1.0, "most calls first"
    assert {row.pid for row in found} == {PID}


def test_without_steps_or_waits_there_are_no_places() -> None:
    assert wait_places(only_timeline(_waits().trace(), steps_at(0)), []) == ()
    made = Tables()
    made.launched(1, 0, 10, 20)
    made.launched(2, 30, 40, 50)
    assert wait_places(only_timeline(made.trace(), steps_at(0, 30, 60)), []) == ()
