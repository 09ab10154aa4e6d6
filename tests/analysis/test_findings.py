"""Which findings a capture has, from which threshold on, and with which numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmtop.analysis.findings import Measurements, findings, launch_evidence
from llmtop.analysis.idle.missing_kernels import UnrecordedKernels
from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.verdict import judge
from llmtop.analysis.work.collectives import Straggler
from llmtop.report.device_time import DeviceTimePart, TimeBreakdown
from llmtop.report.host_work import CallPlace
from llmtop.report.model import (
    ApiTime,
    CopyTime,
    Finding,
    KernelTime,
    KernelVariant,
    PhaseMean,
    StepsJudged,
    WaitPlace,
)
from llmtop.trace import model
from tests.support.tables import PID, Tables, gaps_of, losing_timeline, only_timeline, steps_at

US = 1000


def _measured(
    timeline: DeviceTimeline | None = None, causes: dict[str, float] | None = None, **more: Any
) -> Measurements:
    """Measurements of one device, all else empty."""
    own = losing_timeline() if timeline is None else timeline
    gaps = [gaps_of(own, **(causes or {}))]
    fields: dict[str, Any] = {
        "judgement": judge([own], gaps),
        "timelines": [own],
        "gaps": gaps,
        "uneven": None,
        "phases": [],
        "waits": (),
        "kernels": (),
        "copies": (),
        "api": (),
        "steps": StepsJudged(found_by="made"),
        "command": "python train.py",
        "tool": "nsys",
    }
    return Measurements(**fields | more)


def _found(*args: Any, **more: Any) -> dict[str, Finding]:
    return {one.id: one for one in findings(_measured(*args, **more))}


@pytest.mark.parametrize(
    ("lost_us", "severity"),
    [(29, None), (30, "info"), (99, "info"), (119, "info"), (121, "warning"), (399, "warning"), (400, "critical")],
)
def test_a_loss_is_reported_from_three_percent_on_and_critical_from_forty(
    lost_us: int, severity: str | None
) -> None:
    """It is a warning where more than the threshold of 10 % and the two points around it are lost."""
    found = _found(losing_timeline(lost_us * US), {"launch": 1.0})
    assert (found["launch_bound"].severity if "launch_bound" in found else None) == severity
    if severity is not None:
        one = found["launch_bound"]
        assert one.share_pct == pytest.approx(lost_us / 10)
        assert one.saves_at_most_ms == pytest.approx(lost_us / 1000)
        assert one.evidence["idle_launch_pct"] == pytest.approx(lost_us / 10)
        assert (one.evidence["device"], one.evidence["pid"]) == (0, PID)
        assert f"{lost_us / 10:.1f} % of the step, {lost_us:.0f}" in one.summary.replace(".0 µs", "")


@pytest.mark.parametrize(("part", "severity"), [(0.4, "warning"), (0.33, "info"), (0.33334, "warning")])
def test_a_second_loss_is_a_warning_from_a_tenth_on(part: float, severity: str) -> None:
    """Of 30 % lost."""
    found = _found(losing_timeline(300 * US), {"launch": 1 - part, "sync": part})
    assert found["launch_bound"].severity == "warning"
    assert found["sync_bound"].severity == severity


def test_findings_are_in_order_of_severity_and_share() -> None:
    found = _found(losing_timeline(700 * US), {"launch": 0.1, "sync": 0.6, "input": 0.25})
    assert [(name, one.severity) for name, one in found.items()][:3] == [
        ("sync_bound", "critical"),
        ("input_bound", "warning"),
        ("launch_bound", "info"),
    ]


def test_numbers_of_a_loss_to_launching_are_those_of_calls_and_kernels() -> None:
    """Kernels of 8, 9, 10 and 30 us; the device's two steps hold three of them."""
    made = Tables()
    for number, (start, took) in enumerate(((0, 8), (100, 9), (200, 10), (400, 30))):
        made.launched(number, start * US, start * US, (start + took) * US)
    timeline = only_timeline(made.trace(), steps_at(0, 200 * US, 400 * US))
    assert timeline.counted == 2
    found = launch_evidence(timeline)
    assert found["launch_api_ms"] == pytest.approx(4 * 5 / 1e6)
    assert found["kernel_ms"] == pytest.approx((8 + 9 + 10 + 30) / 1e3)
    assert (found["kernels"], found["kernels_under_10us_pct"]) == (4, 50.0)
    assert found["kernel_median_us"] == pytest.approx(9.5)
    assert found["kernels_per_step"] == pytest.approx(1.5)


def test_kernels_within_whole_graphs_are_not_counted() -> None:
    made = Tables()
    made.launched(1, 0, 10, 20)
    made.op(100, 900, "", kind=model.GRAPH)
    found = launch_evidence(only_timeline(made.trace(), steps_at(0)))
    assert set(found) == {"launch_api_ms"}


def test_a_device_without_kernels_has_no_median() -> None:
    made = Tables()
    made.op(0, 10, "", kind=model.MEMCPY)
    found = launch_evidence(only_timeline(made.trace(), steps_at(0)))
    assert (found["kernels"], found["kernels_under_10us_pct"], found["kernel_median_us"]) == (0, None, None)
    assert found["kernels_per_step"] is None


@pytest.mark.parametrize(
    ("kernels", "short", "reported"), [(100, 60, True), (99, 99, False), (100, 59, False), (200, 200, True)]
)
def test_small_kernels_are_reported_from_a_hundred_of_which_sixty_percent_are_short(
    kernels: int, short: int, reported: bool
) -> None:
    made = Tables()
    for number in range(kernels):
        begin = number * 20 * US
        made.launched(number, begin, begin, begin + (9_999 if number < short else 10_000))
    found = _found(only_timeline(made.trace(), steps_at(0)), {"launch": 1.0})
    assert ("small_kernels" in found) == reported
    if reported:
        share = 100.0 * short / kernels
        assert found["small_kernels"].summary.startswith(
            f"{share:.1f} % of {kernels} kernels are shorter than 10 µs"
        )


@pytest.mark.parametrize(("a_step", "reported"), [(100, True), (99, False)])
def test_small_kernels_are_counted_by_step_where_there_are_steps(a_step: int, reported: bool) -> None:
    made = Tables()
    for number in range(2 * a_step + 1):
        begin = number * 20 * US
        made.launched(number, begin, begin, begin + 9_000)
    edges = (0, a_step * 20 * US, 2 * a_step * 20 * US)
    found = _found(only_timeline(made.trace(), steps_at(*edges)), {"launch": 1.0})
    assert ("small_kernels" in found) == reported
    if reported:
        assert found["small_kernels"].summary.endswith("(median 9.00 µs), 100 per step.")


def test_a_wait_is_reported_with_its_places_and_calls() -> None:
    waits = (
        WaitPlace(pid=PID, call="cudaStreamSynchronize", phase="optimizer", operator="aten::item",
                  calls_per_step=120, host_ms_per_step=1.0),
        WaitPlace(pid=PID, call="cudaMemcpy", calls_per_step=2.5, host_ms_per_step=1.0),
        WaitPlace(pid=PID, call="a", phase="p", calls_per_step=1, host_ms_per_step=1.0),
        WaitPlace(pid=PID, call="b", operator="o", calls_per_step=1, host_ms_per_step=1.0),
    )  # fmt: skip
    places = tuple(
        CallPlace(pid=PID, call=call, kind=kind, place=place, count=1, seconds=1.0, max_us=1.0)
        for call, kind, place in (("x", "launch", "a.py:1"), ("y", "sync", "b.py:2"), ("z", "sync", "c.py:3"))
    )
    phases = [_phase("forward", 0.001), _phase("step", 0.002), _phase("step/optimizer", 0.002)]
    found = _found(losing_timeline(300 * US), {"sync": 1.0}, waits=waits, call_places=places, phases=phases)[
        "sync_bound"
    ]
    assert found.evidence["waiting_calls_per_step"] == pytest.approx(124.5, rel=0.01)
    assert found.evidence["where"].startswith("120 cudaStreamSynchronize in optimizer by aten::item; ")
    assert found.evidence["where"].endswith("; 1 a in p")
    assert found.evidence["most_idle_phase"] == "step/optimizer"
    assert found.evidence["place"] == "b.py:2 (y)"


def _phase(name: str, idle: float | None, *, pid: int = PID, host: float = 0.004, device: int = 0) -> PhaseMean:
    return PhaseMean(
        name=name,
        pid=pid,
        host_seconds=host,
        gpu_seconds=0.0,
        share_pct=0.0,
        gpu_share_pct=None,
        gpu_idle_seconds=idle,
        count_per_step=1.0,
        device=device,
    )


def test_the_phase_of_input_is_that_of_this_device_with_most_idle_time() -> None:
    phases = [
        _phase("dataload", 0.1, pid=9),
        _phase("dataload", 0.1, device=1),
        _phase("forward", 0.2),
        _phase("dataload", 0.003, host=0.004),
        _phase("next_batch", None),
    ]
    found = _found(losing_timeline(300 * US), {"input": 1.0}, phases=phases)["input_bound"]
    assert found.evidence["phase"] == "dataload"
    assert found.evidence["phase_host_ms"] == pytest.approx(4.0)
    assert found.evidence["gpu_idle_in_phase_ms"] == pytest.approx(3.0)
    assert "phase" not in _found(losing_timeline(300 * US), {"input": 1.0})["input_bound"].evidence


def _copy(direction: str, source: str, target: str, size: int, seconds: float = 1.0, **more: Any) -> CopyTime:
    fields: dict[str, Any] = {"largest_bytes": size, "gb_per_s": 12.5, "count": 3} | more
    return CopyTime(
        direction=direction, source_memory=source, target_memory=target, bytes=size, seconds=seconds, **fields
    )


def test_a_loss_to_copies_is_reported_with_the_longest_copy_between_host_and_device() -> None:
    copies = (
        _copy("device-to-device", "device", "device", 1 << 30, 9.0),
        _copy("host-to-device", "pinned", "device", 1 << 20, 1.0),
        _copy("device-to-host", "device", "pinned", 1 << 20, 2.0, gb_per_s=7.5),
    )
    timeline = losing_timeline(200 * US, copied=200 * US)
    found = _found(timeline, {"copy": 1.0}, copies=copies)["h2d_bound"]
    assert found.share_pct == pytest.approx(40.0)
    assert found.severity == "critical"
    assert found.evidence["idle_copy_pct"] == pytest.approx(20.0)
    assert found.evidence["only_copies_pct"] == pytest.approx(20.0)
    assert (found.evidence["direction"], found.evidence["gb_per_s"]) == ("device-to-host", 7.5)
    assert found.evidence["from"] == "device"


def test_exposed_communication_is_reported_beside_all_of_it() -> None:
    found = _found(losing_timeline(exposed=300 * US))["communication_bound"]
    assert found.share_pct == pytest.approx(30.0)
    assert found.evidence["nccl_pct"] == pytest.approx(30.0)
    assert found.evidence["exposed_pct"] == pytest.approx(30.0)
    assert found.evidence["overlapped_pct_of_nccl"] == pytest.approx(0.0)
    assert found.evidence["most_in"] == "AllReduce"
    assert "most of it AllReduce" in found.summary


@pytest.mark.parametrize(
    ("idle_pct", "calls", "name", "severity"),
    [
        (3.0, 1.0, "cudaMalloc", "warning"),
        (2.9, 1.0, "cudaMalloc", "info"),
        (3.0, 0.99, "cudaMalloc", None),
        (3.0, 1.0, "cudaMallocAsync", None),
        (3.0, 1.0, "cudaFreeHost", None),
        (3.0, 1.0, "cudaFree", "warning"),
    ],
)
def test_allocations_of_each_step_are_reported(
    idle_pct: float, calls: float, name: str, severity: str | None
) -> None:
    def call(name: str, kind: str, calls: float, seconds: float) -> ApiTime:
        return ApiTime(
            name=name, kind=kind, count=3, seconds=seconds, mean_us=1.0, max_us=1.0, calls_per_step=calls
        )

    api = (
        call("cudaLaunchKernel", "launch", 50.0, 1.0),
        call(name, "allocation", calls, 0.002),
        call("cudaMalloc", "allocation", 0.5, 0.004),
    )
    found = _found(losing_timeline(300 * US), {"allocation": idle_pct / 30, "launch": 0.5}, api=api)
    assert (found["allocations"].severity if severity else found.get("allocations")) == severity
    if severity:
        evidence = found["allocations"].evidence
        assert evidence["calls_per_step"] == pytest.approx(calls)
        assert evidence["host_ms"] == pytest.approx(2.0)
        assert evidence["idle_pct"] == pytest.approx(idle_pct, rel=0.02)
        assert name in found["allocations"].summary


@pytest.mark.parametrize(
    ("kernels", "calls", "reported"), [(100, 100, True), (99, 200, False), (100, 99, False), (100, 250, True)]
)
def test_allocations_without_steps_come_with_the_kernels(kernels: int, calls: int, reported: bool) -> None:
    made = Tables()
    for number in range(kernels):
        made.launched(number, 1000 * number, 1000 * number, 1000 * number + 900)
    rows = (
        ApiTime(name="cudaMalloc", kind="allocation", count=calls - 10, seconds=0.001, mean_us=2.0, max_us=3.0),
        ApiTime(name="cudaFree", kind="allocation", count=10, seconds=0.003, mean_us=300.0, max_us=900.0),
    )
    found = _found(only_timeline(made.trace(), steps_at(0)), {"launch": 1.0}, api=rows)
    assert ("allocations" in found) == reported
    if reported:
        one = found["allocations"]
        assert one.severity == "warning"
        assert one.evidence["calls_per_kernel"] == pytest.approx(calls / kernels)
        assert one.evidence["host_ms"] == pytest.approx(4.0)
        assert "cudaFree takes longest, 300 µs on average" in one.summary


@pytest.mark.parametrize(
    ("largest", "copied_us", "reported"),
    [(1 << 20, 10, True), ((1 << 20) - 1, 10, False), (1 << 20, 9, False), (1 << 30, 200, True)],
)
def test_pageable_copies_are_reported_from_a_mebibyte_and_a_percent_on(
    largest: int, copied_us: int, reported: bool
) -> None:
    rows = (
        _copy("host-to-device", "pageable", "device", largest, largest_bytes=largest),
        _copy("device-to-host", "device", "pageable", 7),
        _copy("host-to-device", "pinned", "device", 1 << 40),
    )
    found = _found(losing_timeline(copied=copied_us * US), copies=rows)
    assert ("pageable_copies" in found) == reported
    if reported:
        one = found["pageable_copies"]
        assert one.severity == "info"
        assert one.summary == "3 copies host-to-device from pageable memory, 12.5 GB/s."
        assert one.evidence["copies_pct"] == pytest.approx(copied_us / 10)
        assert (one.evidence["count"], one.evidence["bytes"]) == (3, largest)


@pytest.mark.parametrize(
    ("direction", "way"),
    [("device-to-host", "to"), ("host-to-device", "from"), ("device-to-device", "from or to")],
)
def test_results_that_go_to_pageable_memory_have_another_fix(direction: str, way: str) -> None:
    rows = (_copy(direction, "pageable", "device", 1 << 20, count=1, gb_per_s=None),)
    found = _found(losing_timeline(copied=200 * US), copies=rows)["pageable_copies"]
    assert found.summary == f"1 copy {direction} {way} pageable memory."
    assert ("Copy results" in found.fix) == (direction == "device-to-host")


@pytest.mark.parametrize(
    ("outliers", "count", "reported"), [((3,), 5, True), ((3,), 4, False), ((), 9, False), ((1, 2), 9, True)]
)
def test_uneven_steps_are_reported_from_five_on(outliers: tuple[int, ...], count: int, reported: bool) -> None:
    steps = StepsJudged(
        found_by="made", count=count, seconds_p50=0.1, seconds_max=0.3, spread_pct=12.0, outliers=outliers
    )
    found = _found(steps=steps)
    assert ("unsteady_steps" in found) == reported
    if reported:
        one = found["unsteady_steps"]
        assert one.summary.startswith(
            f"{len(outliers)} of {count} steps took more than 1.5 times the median of 100"
        )
        assert (one.evidence["median_ms"], one.evidence["slowest_ms"]) == (pytest.approx(100), pytest.approx(300))
        assert one.evidence["spread_pct"] == 12.0


@pytest.mark.parametrize(("waiting", "severity"), [(27.0, "critical"), (26.9, "warning")])
def test_a_straggler_is_critical_where_it_is_twenty_points_apart(waiting: float, severity: str) -> None:
    culprit, other = losing_timeline(), replace(losing_timeline(), process=7, device=1)
    found = _found(uneven=Straggler(culprit, other, 7.0, waiting), ranks={PID: 3})["straggler"]
    assert found.severity == severity
    assert found.share_pct == pytest.approx(waiting - 7.0)
    assert found.saves_at_most_ms == pytest.approx((waiting - 7) / 100, rel=1e-3)
    evidence = found.evidence
    assert (evidence["culprit_device"], evidence["culprit_pid"], evidence["culprit_rank"]) == (0, PID, 3)
    assert (evidence["culprit_exposed_pct"], evidence["waiting_exposed_pct"]) == (7.0, waiting)
    assert evidence["waiting_device"] == 1
    assert found.summary.startswith("rank 3 (GPU 0) holds the others up: it waits for communication for 7.0 %")
    assert "GPU 1 (pid 7)" in found.summary


def _lost(process: int, missing: int, launched: int, *threads: int) -> dict[int, UnrecordedKernels]:
    return {process: UnrecordedKernels(process, launched, missing, threads)}


def test_kernels_that_were_not_recorded_come_before_all_findings() -> None:
    found = _measured(losing_timeline(300 * US), {"launch": 1.0}, missing=_lost(PID, 50, 200, 1, 2, 3, 4))
    first = findings(found)[0]
    assert (first.id, first.severity, first.share_pct) == ("records_lost", "critical", None)
    assert (
        "nsys did not record 50 of the 200 kernels that pid 100 launched (25.0 %): GPU 0 looks idle"
        in first.summary
    )
    assert first.evidence == {"pid": PID, "launched": 200, "missing": 50, "launched_by_threads": "1, 2, 3"}


def test_kernels_of_another_process_that_were_not_recorded_are_a_warning() -> None:
    first = findings(_measured(missing=_lost(7, 50, 200)))[0]
    assert first.severity == "warning"
    assert "recorded nothing of the GPU, although pid 7 launched 200 kernels" in first.summary


@pytest.mark.parametrize(("capture", "reported"), [(0.1, True), (0.099, False)])
def test_one_off_work_is_reported_from_three_percent_on(capture: float, reported: bool) -> None:
    """Of 300 us idle a step, a tenth is 3 %."""
    found = _found(losing_timeline(300 * US), {"capture": capture, "launch": 1 - capture})
    assert ("one_off" in found) == reported
    if reported:
        assert found["one_off"].severity == "info"
        assert found["one_off"].evidence["capture_pct"] == pytest.approx(3.0, rel=0.01)
        assert found["one_off"].summary.endswith("3.0 % of the capture, not counted in the shares.")


def test_a_capture_without_a_verdict_says_why_and_has_no_losses() -> None:
    found = _found(losing_timeline(300 * US), {"capture": 0.9, "launch": 0.1})
    assert "launch_bound" not in found
    unknown = found["unknown"]
    assert (unknown.severity, unknown.share_pct) == ("warning", None)
    assert unknown.summary.startswith("No verdict: 27.0 % of 3 whole steps is one-off work")
    assert unknown.evidence["one_off_pct"] == pytest.approx(27.0, rel=0.01)
    assert unknown.confirm == "the next report has whole steps that take the same time each"


@pytest.mark.parametrize(
    ("fp32", "elementwise", "busy_us", "reported"),
    [(0.0, 50.0, 100, True), (0.0, 50.0, 50, False), (0.0, 39.0, 900, False)],
)
def test_without_a_verdict_work_is_reported_by_its_share_of_the_time(
    fp32: float, elementwise: float, busy_us: int, reported: bool
) -> None:
    """Half of the work of a GPU that is busy for a twentieth is 2.5 % of the time, of a tenth 5 %."""
    made = TimeBreakdown(elementwise_pct=elementwise, fp32_matrix_pct=fp32)
    timeline = losing_timeline((1000 - busy_us) * US)
    found = _found(timeline, {"capture": 1.0}, time_breakdown=made)
    assert "unknown" in found
    assert ("elementwise" in found) == reported
    if reported:
        assert (found["elementwise"].severity, found["elementwise"].saves_at_most_ms) == ("info", None)


def _kernel(kind: str = "elementwise", count: int = 1, **more: Any) -> KernelTime:
    fields: dict[str, Any] = {"share_pct": 50.0, "variants": ()} | more
    return KernelTime(
        name="k",
        short_name="k",
        kind=kind,
        count=count,
        seconds=1.0,
        mean_us=20.0,
        min_us=1.0,
        max_us=1.0,
        **fields,
    )


@pytest.mark.parametrize(
    ("share", "kind", "reported"), [(5.0, "reduction", True), (4.9, "reduction", False), (90.0, "NCCL", False)]
)
def test_the_hottest_kernel_has_a_twentieth_of_kernel_time(share: float, kind: str, reported: bool) -> None:
    found = _found(kernels=(_kernel(kind, 7, share_pct=share, operator="aten::sum"),))
    assert ("hot_kernel" in found) == reported
    if reported:
        one = found["hot_kernel"]
        assert (
            one.summary
            == f"k (reduction) by aten::sum takes {share:.1f} % of kernel time: 7 launches of 20.0 µs on average."
        )
        assert (one.evidence["kernel_time_pct"], one.evidence["count"], one.evidence["mean_us"]) == (
            share,
            7,
            20.0,
        )
        assert one.severity == "info"


def test_a_kernel_that_ran_once_has_no_average() -> None:
    one = _found(kernels=(_kernel(),))["hot_kernel"]
    assert one.summary == "k (elementwise) takes 50.0 % of kernel time: 1 launch of 20.0 µs."


@pytest.mark.parametrize(
    ("name", "made", "words"),
    [
        ("my_gemm_kernel", TimeBreakdown(), "compare it with cuBLAS, which uses the tensor cores."),
        ("my_gemm_kernel", TimeBreakdown(vendor="AMD"), "compare it with hipBLASLt, which uses the matrix cores."),
        ("my_gemm_bf16_kernel", TimeBreakdown(), "compare it with cuBLAS."),
        ("ampere_sgemm_128x64_nn", TimeBreakdown(), None),
        ("my_gemm_kernel", TimeBreakdown(framework="JAX"), None),
    ],
)
def test_a_product_of_the_program_s_own_is_compared_with_the_library(
    name: str, made: TimeBreakdown, words: str | None
) -> None:
    row = _kernel("GEMM", variants=(KernelVariant(name=name, count=1, seconds=1.0),))
    found = _found(kernels=(row,), time_breakdown=made)["hot_kernel"]
    assert found.summary.endswith(words) if words else "own" not in found.summary


@pytest.mark.parametrize(
    ("softmax", "unfused", "severity"),
    [(3.0, 10.0, "info"), (2.9, 50.0, None), (3.0, 9.9, None), (10.0, 30.0, "warning"), (10.0, 29.9, "info")],
)
def test_attention_that_is_not_fused(softmax: float, unfused: float, severity: str | None) -> None:
    made = TimeBreakdown(softmax_pct=softmax, unfused_attention_pct=unfused)
    found = _found(time_breakdown=made).get("unfused_attention")
    assert (found and found.severity) == severity
    if found is not None:
        assert found.share_pct == unfused
        assert f"{softmax:.1f} % of device time is a softmax of its own, {unfused:.1f} % with the" in found.summary


@pytest.mark.parametrize(("unfused", "beside"), [(12.9, False), (13.0, True)])
def test_products_around_a_softmax_are_named_from_a_point_on(unfused: float, beside: bool) -> None:
    made = TimeBreakdown(softmax_pct=12.0, unfused_attention_pct=unfused)
    assert ("batched products" in _found(time_breakdown=made)["unfused_attention"].summary) == beside


@pytest.mark.parametrize(
    ("share", "lost_us", "reported"), [(40.0, 0, True), (39.9, 0, False), (40.0, 300, False), (None, 0, False)]
)
def test_elementwise_kernels_of_a_busy_gpu(share: float | None, lost_us: int, reported: bool) -> None:
    made = TimeBreakdown(elementwise_pct=share)
    found = _found(losing_timeline(lost_us * US), {"launch": 1.0}, time_breakdown=made)
    assert ("elementwise" in found) == reported


@pytest.mark.parametrize(("share", "reported"), [(10.0, True), (9.9, False), (None, False)])
def test_copies_within_the_device_are_reported_from_a_tenth_on(share: float | None, reported: bool) -> None:
    found = _found(time_breakdown=TimeBreakdown(copy_cast_pct=share))
    assert ("copies_casts" in found) == reported
    if reported:
        # Of steps of 1 ms that the GPU works throughout.
        assert found["copies_casts"].saves_at_most_ms == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("forward", "backward", "evidence", "reported"),
    [
        (60.0, 40.0, "operators of autograd's backward pass", True),
        (60.0, 40.2, "operators of autograd's backward pass", True),  # 0.67 times
        (60.0, 40.3, "operators of autograd's backward pass", False),
        (60.0, 9.9, "operators of autograd's backward pass", False),
        (60.0, 10.0, "operators of autograd's backward pass", True),
        (60.0, 40.0, "the optimizer's range", False),
    ],
)
def test_a_forward_pass_that_takes_longer_than_backward(
    forward: float, backward: float, evidence: str, reported: bool
) -> None:
    passes = tuple(
        DeviceTimePart(name=name, seconds=1.0, share_pct=share)
        for name, share in (("forward", forward), ("backward", backward))
    )
    found = _found(time_breakdown=TimeBreakdown(passes=passes, told_by=evidence))
    assert ("slow_forward" in found) == reported
    if reported:
        one = found["slow_forward"]
        assert (one.share_pct, one.evidence["forward_pct"], one.evidence["backward_pct"]) == (
            forward,
            forward,
            backward,
        )
        assert one.evidence["backward_to_forward"] == pytest.approx(backward / forward, rel=0.01)


@pytest.mark.parametrize(
    ("copies", "pinned"),
    [
        ([("host-to-device", "pinned", "device", 6), ("host-to-device", "pageable", "device", 5)], True),
        ([("host-to-device", "pinned", "device", 5), ("device-to-host", "device", "pageable", 5)], False),
        ([("device-to-host", "device", "pinned", 1), ("device-to-device", "device", "device", 9)], True),
        ([], False),
    ],
)
def test_most_bytes_between_host_and_device_decide_whether_it_pins(
    copies: list[tuple[str, str, str, int]], pinned: bool
) -> None:
    rows = tuple(_copy(*row) for row in copies)
    assert _measured(copies=rows, time_breakdown=TimeBreakdown()).situation.pinned == pinned


@pytest.mark.parametrize(("exposed_us", "devices", "alone"), [(30, 1, True), (29, 1, False), (30, 2, False)])
def test_one_rank_is_alone_where_it_waits_for_communication(exposed_us: int, devices: int, alone: bool) -> None:
    timeline = losing_timeline(exposed=exposed_us * US)
    measured = _measured(timeline, timelines=[timeline] * devices, time_breakdown=TimeBreakdown())
    assert measured.is_one_rank == alone
    assert measured.situation.one_rank == alone


@pytest.mark.parametrize(
    ("plain", "python", "counts", "once"),
    [
        (True, False, (1, 1), True),
        (True, False, (1, 2), False),
        (True, True, (1, 1), False),
        (True, None, (1, 1), False),
        (False, False, (1, 1), False),
    ],
)
def test_a_program_runs_once_whose_kernels_each_ran_once(
    plain: bool, python: bool | None, counts: tuple[int, ...], once: bool
) -> None:
    rows = tuple(_kernel(count=count) for count in counts)
    made = TimeBreakdown(plain_program=plain)
    assert _measured(kernels=rows, time_breakdown=made, runs_python=python).runs_once == once


def test_the_situation_is_that_of_the_parts_of_device_time() -> None:
    made = TimeBreakdown(
        vendor="AMD",
        workload="inference",
        graph_launches=1,
        language_model=True,
        compiled=True,
        wrappers=("FSDP",),
        told_by="kernels that keep a cache of keys and values",
    )
    found = _measured(time_breakdown=made, kernels=(_kernel("convolution"),)).situation
    assert (found.vendor, found.workload, found.graphs, found.language) == ("AMD", "inference", True, True)
    assert (found.serves, found.compiled, found.wrappers, found.convolutions) == (True, True, ("FSDP",), True)
    assert found.python
    other = _measured(time_breakdown=TimeBreakdown(told_by="x"), kernels=(_kernel(),)).situation
    assert (other.graphs, other.serves, other.convolutions) == (False, False, False)
    not_language = TimeBreakdown(language_model=False, told_by=made.told_by)
    assert not _measured(time_breakdown=not_language).situation.serves
    assert _measured().situation.vendor is None
