"""Each device against itself: which is which, what has no partner, and what NCCL does on each."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from llmtop.analysis.analyze import analyze_trace
from llmtop.compare.compare import Comparison, compare_reports
from llmtop.report.model import Device, Report
from llmtop.trace.files.open import open_trace
from tests.support import written
from tests.support.traces import Capture, write_sqlite


def _rank(device: int, busy: float, steps: int = 9, period: float = 10_000, nccl: float = 0.0) -> Capture:
    """One rank whose GPU computes for `busy` µs of each step, then waits `nccl` µs in a collective."""
    capture = Capture(pid=100 + device, device=device)
    for step in range(steps):
        begin = step * period
        capture.range("step", begin, begin + period)
        capture.range("forward", begin, begin + 100 + 1_000 * device)
        capture.kernel(begin + 100, begin + 100 + busy, launched=begin + 10)
        if nccl:
            end = begin + 100 + busy
            capture.kernel(end, end + nccl, launched=begin + 30, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    return capture


def _report(folder: Path, *ranks: Capture) -> Report:
    return analyze_trace(open_trace(write_sqlite(folder / "made.sqlite", list(ranks))))


def _with(report: Report, **fields: list[object]) -> Report:
    """The same report with other values for its devices, one for each."""
    devices = tuple(
        structs.replace(device, **{name: values[place] for name, values in fields.items()})
        for place, device in enumerate(report.devices)
    )
    return structs.replace(report, devices=devices)


def _idle(comparison: Comparison) -> list[tuple[str, float | None, float | None]]:
    found = []
    for device in comparison.devices:
        row = next(row for row in device.figures if row.name == "GPU idle")
        found.append((device.name, row.before and round(row.before), row.after and round(row.after)))
    return found


def test_each_gpu_is_set_against_itself_whichever_is_judged(tmp_path: Path) -> None:
    before = _report(tmp_path, _rank(0, 8_000), _rank(1, 9_000))
    after = _report(tmp_path, _rank(0, 9_000), _rank(1, 8_900))
    assert [device.judged for device in before.devices] == [True, False], "the one that loses most"
    assert [device.judged for device in after.devices] == [False, True]
    found = compare_reports(before, after)
    assert _idle(found) == [("GPU 0", 20, 10), ("GPU 1", 10, 11)]
    leading = {row.name: row for row in found.figures}
    assert (leading["GPU idle"].before, leading["GPU idle"].after) == (pytest.approx(20), pytest.approx(10))
    assert any("about GPU 0 before and GPU 1 after" in note for note in found.notes)
    assert "Devices, each against itself" in written.comparison(found)


def test_a_gpu_without_a_partner_is_said_and_its_neighbour_is_compared(tmp_path: Path) -> None:
    both, one = _report(tmp_path, _rank(0, 8_000), _rank(1, 9_000)), _report(tmp_path, _rank(1, 9_500))
    for before, after, word in ((both, one, "first"), (one, both, "second")):
        found = compare_reports(before, after)
        assert found.unpaired == (f"GPU 0 is in the {word} only: it is in no figure here",)
        assert {row[0] for row in _idle(found)} == {"GPU 1"}
        assert {round(row, 1) for _, *values in _idle(found) for row in values if row is not None} == {10, 5}
        assert found.step is not None
        assert f"note: {found.unpaired[0]}" in written.comparison(found)
        assert not found.same
    # What is in one capture only is in no figure of a step either: GPU 1 ran as many kernels as before.
    assert [(row.state, row.count_before, row.count_after) for row in found.kernels] == [("faster", 1, 1)]


def test_uuids_tell_gpus_whose_numbers_changed(tmp_path: Path) -> None:
    before = _with(_report(tmp_path, _rank(0, 8_000), _rank(1, 9_000)), uuid=["A", "B"])
    after = _with(_report(tmp_path, _rank(0, 9_000), _rank(1, 8_000)), uuid=["B", "A"])
    found = compare_reports(before, after)
    assert _idle(found) == [("GPU 0 / 1", 20, 20), ("GPU 1 / 0", 10, 10)]
    assert {device.paired_by for device in found.devices} == {"uuid"}


def test_ranks_tell_gpus_that_each_call_their_own_0(tmp_path: Path) -> None:
    before = _with(_report(tmp_path, _rank(0, 8_000), _rank(1, 9_000)), device=[0, 0], rank=[1, 0])
    after = _with(_report(tmp_path, _rank(0, 9_000), _rank(1, 8_000)), device=[0, 0], rank=[0, 1])
    found = compare_reports(before, after)
    assert _idle(found) == [("GPU 0, rank 1", 20, 20), ("GPU 0, rank 0", 10, 10)]
    assert {device.paired_by for device in found.devices} == {"rank"}


def test_the_only_gpus_are_compared_whatever_they_are_called(tmp_path: Path) -> None:
    found = compare_reports(_report(tmp_path, _rank(3, 8_000)), _report(tmp_path, _rank(1, 9_000)))
    assert _idle(found) == [("GPU 3 / 1", 20, 10)]
    assert any("neither capture has another" in note for note in found.notes)


def test_phases_are_means_of_the_devices_on_both_sides(tmp_path: Path) -> None:
    both, one = _report(tmp_path, _rank(0, 8_000), _rank(1, 9_000)), _report(tmp_path, _rank(1, 9_000))
    forward = next(row for row in compare_reports(both, one).phases if row.name == "forward, host")
    assert (forward.before, forward.after) == (pytest.approx(1.1e-3), pytest.approx(1.1e-3))
    assert not forward.moved


def test_collectives_are_compared_by_device(tmp_path: Path) -> None:
    before = _report(tmp_path, _rank(0, 6_000, nccl=3_000), _rank(1, 8_000, nccl=1_000))
    after = _report(tmp_path, _rank(0, 6_000, nccl=1_000), _rank(1, 8_000, nccl=1_000))
    rows = {row.device: row for row in compare_reports(before, after).collectives}
    assert (rows["GPU 0"].name, rows["GPU 0"].state) == ("AllReduce", "faster")
    assert (rows["GPU 0"].seconds_before, rows["GPU 0"].seconds_after) == (
        pytest.approx(3e-3, rel=0.01),
        pytest.approx(1e-3, rel=0.01),
    )
    assert rows["GPU 0"].exposed_seconds_before == pytest.approx(3e-3, rel=0.01)
    assert rows["GPU 1"].state == "same"
    gone = compare_reports(before, _report(tmp_path, _rank(0, 6_000), _rank(1, 8_000, nccl=1_000)))
    assert {row.device: row.state for row in gone.collectives} == {"GPU 0": "gone", "GPU 1": "same"}
    assert "gone  AllReduce, GPU 0" in written.comparison(gone)


def test_a_report_without_work_by_step_says_what_it_cannot_say(tmp_path: Path) -> None:
    new = _report(tmp_path, _rank(0, 8_000))
    old = structs.replace(new, kernels=tuple(structs.replace(row, per_step=()) for row in new.kernels))
    found = compare_reports(old, new)
    assert any("first does not contain the kernels of each step" in note for note in found.notes)
    assert [(row.state, row.worth_seconds) for row in found.kernels] == [("same", None)]
    assert found.step is not None
    assert not found.step.moved


def test_devices_are_named_as_their_reports_name_them(tmp_path: Path) -> None:
    report = _report(tmp_path, _rank(2, 8_000))
    (device,) = compare_reports(report, report).devices
    own: Device = report.devices[0]
    assert (device.before.device, device.before.pid, device.before.judged) == (own.device, own.pid, True)
