"""Snapshots as others record them: after the start, one forward pass, under autocast, with own classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.memory.analyze import build_report
from llmtop.memory.model import MemoryReport
from llmtop.memory.snapshot import load
from tests.support.memory_allocator import CALL, FORWARD, MAIN, MIB, OPTIMIZER_SHORT, TORCH, Allocator, frame

WEIGHT, ACTIVATION, LAYERS = 8 * MIB, 6 * MIB, 6
CAST = [frame("??", 0, "at::autocast::cached_cast(c10::ScalarType, at::Tensor const&, c10::DeviceType)"), *FORWARD]
CLEARS = [frame("??", 0, "at::autocast::clear_cache()"), MAIN]


def _report(allocator: Allocator, folder: Path) -> MemoryReport:
    return build_report([load(allocator.write(folder / "one.pickle"))])


def _at_peak(report: MemoryReport) -> dict[str, int | None]:
    return {held.name: held.peak_bytes for held in report.devices[0].holders if held.peak_bytes}


def _weights(allocator: Allocator) -> None:
    for _ in range(LAYERS):
        allocator.alloc(WEIGHT, [MAIN])
    allocator.forget_history()


@pytest.mark.parametrize("is_freed", [True, False], ids=["freed by autocast", "kept to the end"])
def test_copies_of_weights_that_autocast_keeps_are_no_activations(is_freed: bool, tmp_path: Path) -> None:
    allocator = Allocator()
    _weights(allocator)
    # Half as large as a weight where nothing tells who freed it; of any size where autocast did.
    size = WEIGHT // 2 if not is_freed else 3 * MIB
    copies = []
    for _ in range(LAYERS):
        copies.append(allocator.alloc(size, CAST))
        short = allocator.alloc(5 * MIB, CAST)
        allocator.free(short)
    for address in copies if is_freed else ():
        allocator.free(address, CLEARS)
    report = _report(allocator, tmp_path)
    held = _at_peak(report)
    assert held["autocast"] == LAYERS * size
    assert held["unknown"] == LAYERS * WEIGHT
    found = {one.id: one for one in report.findings}
    assert "model.to(torch.bfloat16)" in found["autocast_copies"].fix
    assert not {"no_grad", "micro_batch", "checkpointing"} & set(found)
    assert "48.0 MiB from before the recording" in report.summary


def test_a_pass_that_frees_layer_by_layer_is_told_of_no_gradients(tmp_path: Path) -> None:
    allocator = Allocator()
    _weights(allocator)
    for _ in range(LAYERS):
        first, second = allocator.alloc(WEIGHT, FORWARD), allocator.alloc(WEIGHT, FORWARD)
        allocator.free(first)
        allocator.free(second)
    report = _report(allocator, tmp_path)
    assert _at_peak(report)["activations"] == 2 * WEIGHT
    assert "no_grad" not in {one.id for one in report.findings}


def test_results_of_the_pass_before_are_activations_as_well(tmp_path: Path) -> None:
    allocator = Allocator()
    _weights(allocator)
    before = [allocator.alloc(ACTIVATION, FORWARD) for _ in range(LAYERS)]
    allocator.forget_history()
    for _ in range(LAYERS):
        allocator.alloc(ACTIVATION, FORWARD)
    for address in before:
        allocator.free(address)
    held = _at_peak(_report(allocator, tmp_path))
    assert held == {"activations": 2 * LAYERS * ACTIVATION, "unknown": LAYERS * WEIGHT}


def test_other_sizes_from_before_the_recording_stay_unknown(tmp_path: Path) -> None:
    allocator = Allocator()
    before = [allocator.alloc(ACTIVATION + MIB, FORWARD) for _ in range(LAYERS)]
    allocator.forget_history()
    for _ in range(LAYERS):
        allocator.alloc(ACTIVATION, FORWARD)
    for address in before:
        allocator.free(address)
    assert _at_peak(_report(allocator, tmp_path))["unknown"] == LAYERS * (ACTIVATION + MIB)


def test_temporaries_of_the_optimizer_are_not_saved_by_a_smaller_batch(tmp_path: Path) -> None:
    allocator = Allocator()
    _weights(allocator)
    for address in [allocator.alloc(WEIGHT, OPTIMIZER_SHORT) for _ in range(LAYERS)]:
        allocator.free(address, OPTIMIZER_SHORT)
    found = {one.id: one for one in _report(allocator, tmp_path).findings}
    assert found["optimizer_temporaries"].saves_at_most_bytes == LAYERS * WEIGHT
    assert "fused=True" in found["optimizer_temporaries"].fix
    assert not {"micro_batch", "sharding"} & set(found)


@pytest.mark.parametrize(
    ("file", "holder"),
    [("layers.py", "parameters"), ("adam.py", "optimizer"), ("both.py", "other")],
)
def test_what_constructors_of_own_classes_make(file: str, holder: str, tmp_path: Path) -> None:
    allocator, wrapper = Allocator(), frame(f"{TORCH}/optim/optimizer.py", 493, "wrapper")
    allocator.alloc(WEIGHT, [frame(f"/home/me/{file}", 19, "__init__"), MAIN])
    for own in ("layers.py", "both.py"):
        allocator.free(allocator.alloc(MIB, [frame(f"/home/me/{own}", 36, "forward"), CALL, MAIN]))
    for own in ("adam.py", "both.py"):
        allocator.free(allocator.alloc(MIB, [frame(f"/home/me/{own}", 51, "step"), wrapper, MAIN]))
    held = {one.name: one.bytes for one in _report(allocator, tmp_path).devices[0].holders if one.bytes}
    assert held == {holder: WEIGHT}


def test_code_that_torch_compile_wrote_is_no_line_of_the_script(tmp_path: Path) -> None:
    compiled = "/tmp/torchinductor_me/or/corbnm7xeh7ytvlmkj5go6laymuykrpb4ddsmkgiavzd5kzqzssc.py"
    allocator = Allocator()
    allocator.alloc(WEIGHT, [frame(compiled, 40, "call"), frame("/home/me/model.py", 31, "forward"), CALL, MAIN])
    assert [line.name for line in _report(allocator, tmp_path).devices[0].lines] == ["model.py:31 forward"]
