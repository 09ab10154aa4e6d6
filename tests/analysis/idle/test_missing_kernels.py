"""Launches whose kernels are not in the capture: which count, and from how many on."""

from __future__ import annotations

import pytest

from llmtop.analysis.idle.missing_kernels import UnrecordedKernels, unrecorded_kernels
from tests.support.tables import PID, Tables


def _launches(made: Tables, recorded: int, missing: int, name: str = "cudaLaunchKernel", **columns: int) -> None:
    """Launches in turns of 100 ns, those without a kernel first; each kernel ends 50 ns after its launch."""
    for number in range(missing + recorded):
        at = 100 * number
        made.call(name, at, at + 5, correlation=number, **columns)
        if number >= missing:
            process = {key: value for key, value in columns.items() if key == "process"}
            made.op(at + 10, at + 50, correlation=number, **process)


def _found(made: Tables) -> dict[int, UnrecordedKernels]:
    return unrecorded_kernels(made.trace())


@pytest.mark.parametrize(
    ("recorded", "missing", "reported"),
    [(10, 20, True), (10, 19, False), (980, 20, True), (981, 20, False), (0, 40, False), (30, 0, False)],
    ids=["20", "19", "2 %", "less than 2 %", "no wait", "none"],
)
def test_twenty_kernels_that_are_two_percent_are_missing(recorded: int, missing: int, reported: bool) -> None:
    made = Tables()
    _launches(made, recorded, missing)
    found = _found(made)
    assert list(found) == ([PID] if reported else [])
    for row in found.values():
        assert (row.process, row.launched, row.missing) == (PID, recorded + missing, missing)
        assert row.threads == (PID,)
        assert row.missing_pct == pytest.approx(100 * missing / (recorded + missing))


def test_without_any_kernel_those_before_the_last_wait_are_missing() -> None:
    made = Tables()
    _launches(made, 0, 40)  # from 0 to 3900
    made.call("cudaDeviceSynchronize", 2500, 2900)
    made.call("cudaStreamSynchronize", 2000, 2400)
    made.call("cudaStreamSynchronize", 9000, 9900, process=7)
    (row,) = _found(made).values()
    assert (row.launched, row.missing) == (25, 25), "those at 0 to 2400; the one at 2500 may not have run"


def test_launches_of_the_last_moment_may_not_have_run() -> None:
    """A kernel may take 1000 ns from its launch to its end: none launched less before the last end is missing."""
    made = Tables()
    made.call("cudaLaunchKernel", 0, 5, correlation=1)
    made.op(900, 1000, correlation=1)
    made.call("cudaLaunchKernel", 5000, 5005, correlation=2)
    made.op(5400, 5600, correlation=2)
    for number in range(30):  # the last instant at which a kernel has certainly run is 5600 - 1000
        made.call("cudaLaunchKernel", 4571 + number, 4572 + number, correlation=100 + number)
    (row,) = _found(made).values()
    assert (row.launched, row.missing) == (31, 30)
    made.call("cudaLaunchKernel", 4601, 4602, correlation=200)
    assert _found(made) == {PID: row}


def test_a_runtime_call_and_the_driver_s_within_it_are_one_launch() -> None:
    made = Tables()
    _launches(made, 10, 19)
    _launches(made, 0, 19, "cuLaunchKernel")
    assert _found(made) == {}


def test_a_file_that_joins_no_kernel_with_its_launch_lacks_none() -> None:
    made = Tables()
    _launches(made, 0, 40)
    made.op(0, 100)
    made.call("cudaDeviceSynchronize", 8000, 8100)
    assert _found(made) == {}
    assert _found(Tables()) == {}


@pytest.mark.parametrize(
    ("name", "launches"),
    [
        ("cudaLaunchKernel_v7000", True),
        ("cudaLaunchKernelExC_v11060", True),
        ("cuLaunchKernel", True),
        ("hipModuleLaunchKernel", True),
        ("cudaLaunchCooperativeKernel", True),
        ("hipExtLaunchKernel", True),
        ("cudaLaunchCooperativeKernelMultiDevice", False),
        ("cudaGraphLaunch", False),
        ("cudaLaunchHostFunc", False),
        ("cudaMemsetAsync", False),
    ],
)
def test_a_call_that_launches_one_kernel_is_expected_to_have_it(name: str, launches: bool) -> None:
    made = Tables()
    _launches(made, 0, 30, name)
    made.call("cudaDeviceSynchronize", 8000, 8100)
    assert (PID in _found(made)) == launches


def test_each_process_has_its_own_kernels_and_ids() -> None:
    made = Tables()
    _launches(made, 30, 0, process=1, thread=1)
    _launches(made, 25, 25, process=2, thread=2)
    (row,) = _found(made).values()
    assert (row.process, row.launched, row.missing) == (2, 50, 25)


def test_threads_are_in_order_of_the_kernels_that_they_lack() -> None:
    made = Tables()
    for number in range(60):
        made.call("cudaLaunchKernel", number, number + 1, correlation=number, thread=(5, 9, 9)[number % 3])
    made.call("cudaDeviceSynchronize", 8000, 8100)
    (row,) = _found(made).values()
    assert row.threads == (9, 5)


@pytest.mark.parametrize(
    ("begins", "ends", "missing"),
    [
        ((), (), 60),
        ((1950,), (4050,), 39),  # launches 20 to 40 went into the graph
        ((2000,), (4000,), 39),  # both edges inclusive
        ((2001,), (3999,), 41),
        ((), (1950,), 40),  # begun before the capture
        ((3950,), (), 40),  # ended after it
        ((950, 3950), (1950, 4950), 40),
        ((3950,), (1950, 4950), 30),
    ],
)
def test_launches_into_a_graph_run_nothing(begins: tuple[int, ...], ends: tuple[int, ...], missing: int) -> None:
    made = Tables()
    _launches(made, 0, 60)
    made.call("cudaDeviceSynchronize", 8000, 8100)
    for name, instants in (("cudaStreamBeginCapture_v10000", begins), ("cudaStreamEndCapture_v10000", ends)):
        for at in instants:
            made.call(name, at, at + 3)
            made.call(name, at, at + 3, process=7)
    (row,) = _found(made).values()
    assert (row.process, row.missing) == (PID, missing)
