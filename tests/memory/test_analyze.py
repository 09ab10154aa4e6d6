"""Memory snapshots: who holds what, when most was held, what grows. A model of the allocator makes them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from llmtop.memory.analyze import build_report
from llmtop.memory.leaks import find_growth
from llmtop.memory.model import LeakReport, MemoryReport
from llmtop.memory.snapshot import MemorySnapshot, load
from tests.support.memory_allocator import (
    FORWARD,
    LOSS,
    MIB,
    STEP,
    Allocator,
    Training,
)


def _loaded(allocator: Allocator, folder: Path, name: str = "one") -> MemorySnapshot:
    return load(allocator.write(folder / f"{name}.pickle"))


def _report(allocator: Allocator, folder: Path) -> MemoryReport:
    return build_report([_loaded(allocator, folder)])


def _peaks(report: MemoryReport) -> dict[str, int | None]:
    return {held.name: held.peak_bytes for held in report.devices[0].holders}


def _now(report: MemoryReport) -> dict[str, int]:
    return {held.name: held.bytes for held in report.devices[0].holders if held.bytes}


def test_each_holder_has_what_it_allocated(tmp_path: Path) -> None:
    allocator = Allocator()
    Training(allocator, layers=4, weight=8 * MIB, activation=16 * MIB).steps(3)
    report = _report(allocator, tmp_path)
    assert _now(report) == {"parameters": 32 * MIB, "optimizer": 64 * MIB}
    peaks = _peaks(report)
    # At the peak the backward pass has begun: all activations, its first gradient and its first short tensor.
    assert peaks["activations"] == 4 * 16 * MIB + 4
    assert peaks["gradients"] == 8 * MIB
    assert peaks["temporaries"] == 16 * MIB
    peak = report.devices[0].peak
    assert peak is not None
    assert peak.phase == "backward"
    assert peak.bytes == sum(bytes_ or 0 for bytes_ in peaks.values())


def test_without_phases_the_frames_tell_most(tmp_path: Path) -> None:
    allocator = Allocator()
    training = Training(allocator)
    training.steps(3)
    allocator.annotations.clear()
    report = _report(allocator, tmp_path)
    assert _now(report) == {"parameters": 32 * MIB, "optimizer": 64 * MIB}
    assert _peaks(report)["gradients"] == 8 * MIB
    assert report.devices[0].phases == ()


def test_the_peak_and_the_growth_of_each_phase(tmp_path: Path) -> None:
    allocator = Allocator()
    Training(allocator).steps(3)
    phases = {phase.name: phase for phase in _report(allocator, tmp_path).devices[0].phases}
    assert [phase.count for phase in phases.values()] == [3, 3, 3]
    assert phases["forward"].median_growth_bytes == 4 * 16 * MIB + 4
    assert phases["backward"].peak_bytes > phases["forward"].peak_bytes > phases["optimizer"].peak_bytes


def test_lines_and_modules_are_those_of_the_script(tmp_path: Path) -> None:
    allocator = Allocator()
    Training(allocator).steps(3)
    device = _report(allocator, tmp_path).devices[0]
    lines = {line.name: line for line in device.lines}
    assert lines["model.py:12 __init__"].bytes == 32 * MIB
    assert lines["train.py:46 step"].bytes == 64 * MIB
    assert lines["model.py:31 forward"].peak_bytes == 64 * MIB
    assert device.modules[0].name == "model.py:31 forward > linear"
    assert lines["model.py:31 forward"].stack[:2] == ("linear.py:125 forward", "module.py:1780 _call_impl")


def test_the_timeline_has_the_peak_and_ends_at_what_is_held(tmp_path: Path) -> None:
    allocator = Allocator()
    Training(allocator).steps(4)
    device = _report(allocator, tmp_path).devices[0]
    timeline, peak = device.timeline, device.peak
    assert timeline is not None
    assert peak is not None
    assert max(timeline.allocated_bytes) == peak.bytes
    assert max(timeline.reserved_bytes) == device.reserved_bytes
    assert timeline.reserved_bytes[-1] == device.reserved_bytes
    assert all(one <= two for one, two in zip(timeline.allocated_bytes, timeline.reserved_bytes, strict=True))


def test_free_memory_is_split_or_releasable(tmp_path: Path) -> None:
    allocator = Allocator()
    kept = [allocator.alloc(4 * MIB, STEP) for _ in range(5)]  # one segment of 20 MiB
    whole = allocator.alloc(30 * MIB, STEP)
    for address in (kept[1], kept[3], whole):
        allocator.free(address)
    device = _report(allocator, tmp_path).devices[0]
    spare = device.fragmentation
    assert device.reserved_bytes - device.allocated_bytes == spare.free_bytes == 38 * MIB
    assert spare.split_bytes == 8 * MIB
    assert spare.releasable_bytes == spare.largest_free_bytes == 30 * MIB


def test_fragmentation_is_found_where_the_peak_left_much_unused(tmp_path: Path) -> None:
    allocator = Allocator()
    pieces = [allocator.alloc(30 * MIB, STEP) for _ in range(8)]
    for address in pieces:
        allocator.free(address)
        allocator.alloc(16 * MIB, STEP)  # lies in the place of 30 MiB, and 14 MiB beside it fit nothing
    allocator.alloc(200 * MIB, STEP)
    ids = [finding.id for finding in _report(allocator, tmp_path).findings]
    assert "fragmentation" in ids
    healthy = Allocator()
    Training(healthy).steps(3)
    assert "fragmentation" not in [finding.id for finding in _report(healthy, tmp_path).findings]


@pytest.mark.parametrize("scattered", [True, False])
def test_an_out_of_memory_error_is_told_with_its_line_and_its_cause(tmp_path: Path, scattered: bool) -> None:
    allocator = Allocator(capacity=240 * MIB)
    held = [allocator.alloc(10 * MIB, FORWARD) for _ in range(20)]
    if scattered:
        for address in held:
            allocator.free(address)
            allocator.alloc(5 * MIB, FORWARD)
    with pytest.raises(MemoryError):
        allocator.alloc(50 * MIB, LOSS)
    found = {finding.id: finding for finding in _report(allocator, tmp_path).findings}["out_of_memory"]
    assert found.severity == "critical"
    assert "could not give 50.0 MiB at train.py:42 step" in found.summary
    assert found.evidence["fragmented"] is scattered
    assert ("expandable_segments" in found.fix) is scattered


def test_a_request_beyond_any_memory_is_told_as_it_was(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.alloc(MIB, STEP)
    with pytest.raises(MemoryError):
        allocator.alloc(1 << 50, STEP)
    device = _report(allocator, tmp_path).devices[0]
    assert device.out_of_memory[0].wanted_bytes == 1 << 50
    assert device.peak is not None
    assert device.peak.bytes == MIB


def _window(folder: Path, name: str = "one", before: int = 3, **options: object) -> MemorySnapshot:
    """A capture of six steps in a training under way."""
    allocator = Allocator()
    training = Training(allocator, **options)  # type: ignore[arg-type]
    training.steps(before)
    allocator.forget_history()
    training.steps(6)
    return _loaded(allocator, folder, name)


def test_a_loss_that_each_step_keeps_is_a_leak_with_its_line(tmp_path: Path) -> None:
    report = build_report([_window(tmp_path, leak=LOSS)])
    (growing,) = report.devices[0].growing
    assert growing.line == "train.py:42 step"
    assert (growing.bytes_per_step, growing.steps) == (4, 5)
    assert report.findings[0].id == "memory_leak"


@pytest.mark.parametrize("queue", [0, 1, 10])
def test_a_queue_of_the_last_losses_is_none(tmp_path: Path, queue: int) -> None:
    report = build_report([_window(tmp_path, before=20, queue=queue)])
    assert report.devices[0].growing == ()
    assert "memory_leak" not in [finding.id for finding in report.findings]


def test_without_known_steps_one_snapshot_says_nothing_of_a_leak(tmp_path: Path) -> None:
    allocator = Allocator()
    Training(allocator, leak=LOSS).steps(6)
    allocator.steps_us.clear()
    assert _report(allocator, tmp_path).devices[0].growing == ()


def _compared(folder: Path, first: dict[str, object], second: dict[str, object]) -> LeakReport:
    return find_growth([(_window(folder, "first", **first), _window(folder, "second", **second))])  # type: ignore[arg-type]


def test_two_windows_name_the_line_of_a_leak_whose_blocks_have_no_stack(tmp_path: Path) -> None:
    found = _compared(tmp_path, {"leak": LOSS, "before": 3}, {"leak": LOSS, "before": 60})
    assert found.verdict == "leak"
    (grown,) = found.devices[0].grown
    assert (grown.name, grown.blocks, grown.bytes, grown.by_size) == ("train.py:42 step", 57, 4 * 57, True)


def test_two_windows_of_a_steady_training_are_the_same(tmp_path: Path) -> None:
    found = _compared(tmp_path, {"before": 3}, {"before": 60})
    assert found.verdict == "same"
    assert found.devices[0].grown == ()


def test_what_grew_without_a_line_is_unknown(tmp_path: Path) -> None:
    first, second = Allocator(), Allocator()
    for allocator, count in ((first, 1), (second, 9)):
        for _ in range(count):
            allocator.alloc(3 * MIB, STEP)
        allocator.forget_history()
    found = find_growth([(_loaded(first, tmp_path, "a"), _loaded(second, tmp_path, "b"))])
    assert found.verdict == "unknown"
    assert "leak" not in found.summary
    assert found.devices[0].grown[0].name == "blocks of 3.00 MiB (3,145,728 B)"


def test_what_grew_at_a_line_once_is_no_leak(tmp_path: Path) -> None:
    first, second = Allocator(), Allocator()
    for allocator, count in ((first, 1), (second, 9)):
        for _ in range(count):
            allocator.alloc(3 * MIB, STEP)
    found = find_growth([(_loaded(first, tmp_path, "a"), _loaded(second, tmp_path, "b"))])
    assert found.verdict == "grown"
    assert "train.py:44 step" in found.summary


def test_without_a_history_there_are_sizes_and_segments_only(tmp_path: Path) -> None:
    allocator = Allocator(recording=False)
    Training(allocator).steps(3)
    allocator.annotations.clear()
    report = _report(allocator, tmp_path)
    device = report.devices[0]
    assert (device.peak, device.timeline, device.phases, device.events) == (None, None, (), 0)
    assert [held.name for held in device.holders] == ["unknown"]
    assert device.holders[0].peak_bytes is None
    assert device.sizes[0].blocks == 12
    assert "--memory-history" in report.notes[0]


def test_a_history_that_ended_before_the_snapshot_gives_no_peak(tmp_path: Path) -> None:
    allocator = Allocator()
    held = [allocator.alloc(8 * MIB, STEP) for _ in range(4)]
    allocator.recording = False
    for address in held:
        allocator.free(address)
    allocator.alloc(MIB, STEP)
    report = _report(allocator, tmp_path)
    assert report.devices[0].peak is None
    assert any("does not reach to the snapshot" in note for note in report.notes)


def test_what_the_training_says_of_its_tensors_goes_before_guesses(tmp_path: Path) -> None:
    allocator = Allocator()
    training = Training(allocator)
    training.steps(2)
    allocator.forget_history()
    training.steps(4)
    data = allocator.snapshot()
    weights = [
        block["address"] for segment in data["segments"] for block in segment["blocks"] if block["requested_size"]
    ]
    data["llmtop"]["owners"] = {"parameters": weights[:4], "optimizer": weights[4:]}
    path = tmp_path / "owned.pickle"
    path.write_bytes(pickle.dumps(data))
    held = _now(build_report([load(path)]))
    assert held["parameters"] == 4 * 8 * MIB
    assert held["optimizer"] == 8 * 8 * MIB
    assert "unknown" not in held
