"""Which period a capture's steps have: enclosing ranges, layers and rare ranges do not decide it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.analysis.steps.step_finder import find_steps
from llmtop.trace import model
from llmtop.trace.files.open import open_trace
from tests.support.labelled import SETS, unpacked_set
from tests.support.traces import MAIN, Capture

LAYERS, PASSES = 12, 5
LAYER, HEAD = 2_500.0, 4_000.0
"""µs of a layer, and of what comes once in a pass: embedding, loss, optimizer."""
PASS = LAYERS * LAYER + HEAD


def _kernels(capture: Capture, begin: float, names: list[str], apart: float = 100) -> None:
    for number, name in enumerate(names):
        at = begin + number * apart
        capture.kernel(at + 10, at + apart - 10, launched=at, name=name)


_LAYER = [
    "norm",
    "qkv_gemm",
    "rope",
    "flash_fwd_kernel",
    "out_gemm",
    "add",
    "norm",
    "up_gemm",
    "gelu",
    "down_gemm",
]


def _pass(capture: Capture, begin: float, mark: str | None = "attention", layers: int = LAYERS) -> None:
    """One pass of a training, with a range in each layer."""
    _kernels(capture, begin, ["embedding", "dropout"])
    for layer in range(layers):
        at = begin + HEAD / 2 + layer * LAYER
        if mark is not None:
            capture.range(mark.format(layer), at + 300, at + 600)
        _kernels(capture, at, _LAYER)
    end = begin + HEAD / 2 + layers * LAYER
    _kernels(capture, end, ["head_gemm", "nll_loss_forward", "multi_tensor_apply_adam", "multi_tensor_apply_adam"])


def _training(mark: str | None = "attention", passes: int = PASSES) -> Capture:
    capture = Capture()
    for number in range(passes):
        _pass(capture, number * PASS, mark)
    return capture


def _seconds(capture: Capture, folder: Path) -> list[float]:
    return find_steps(capture.trace(folder), MAIN).seconds


def test_a_range_in_each_layer_is_a_part_of_a_step(tmp_path: Path) -> None:
    seconds = _seconds(_training(), tmp_path)
    assert len(seconds) == PASSES
    assert seconds[:-1] == pytest.approx([PASS / 1e6] * (PASSES - 1))
    assert seconds[-1] == pytest.approx(PASS / 1e6, rel=0.15), "the last pass ends with its last launch"
    assert analyze_trace(_training().trace(tmp_path)).steps.count == PASSES


@pytest.mark.parametrize("mark", ["layer {}", "block", "mlp"])
def test_other_names_of_layers_too(tmp_path: Path, mark: str) -> None:
    seconds = _seconds(_training(mark), tmp_path)
    assert len(seconds) in (PASSES - 1, PASSES)
    assert np.median(seconds) == pytest.approx(PASS / 1e6)


@pytest.mark.parametrize("around", ["everything", "main", "data", "train", "step", "batch"])
def test_a_range_around_everything_hides_no_steps(tmp_path: Path, around: str) -> None:
    capture = _training(mark=None)
    for number in range(PASSES):
        capture.range("train_step", number * PASS, (number + 1) * PASS)
    plain = _seconds(capture, tmp_path)
    capture.range(around, -50, PASSES * PASS + 50)
    assert len(plain) == PASSES
    assert _seconds(capture, tmp_path) == plain


def test_nor_those_that_the_most_regular_range_marks(tmp_path: Path) -> None:
    capture = _training(mark=None)
    for number in range(PASSES):
        capture.range("one_pass", number * PASS, (number + 1) * PASS - 10)
    plain = _seconds(capture, tmp_path)
    capture.range("everything", -50, PASSES * PASS + 50)
    assert len(plain) == PASSES - 1
    assert _seconds(capture, tmp_path) == plain


@pytest.mark.parametrize("rare", ["prefetch", "load_data", "evaluate", "data"])
def test_a_range_in_every_second_step_does_not_double_them(tmp_path: Path, rare: str) -> None:
    capture = _training(mark=None, passes=12)
    for number in range(0, 12, 2):
        capture.range(rare, number * PASS, number * PASS + 90)
    assert np.median(_seconds(capture, tmp_path)) == pytest.approx(PASS / 1e6)


def test_a_range_of_the_model_renamed_to_prefetch_is_no_input(tmp_path: Path) -> None:
    capture = Capture()
    for number in range(PASSES):
        _pass(capture, number * PASS, None)
        capture.range("prefetch", number * PASS + HEAD / 2, number * PASS + HEAD / 2 + LAYERS * LAYER)
    report = analyze_trace(capture.trace(tmp_path))
    assert report.steps.seconds_p50 == pytest.approx(PASS / 1e6)
    assert "input" not in {row.cause for row in report.gaps}


def test_numbered_passes_are_steps_though_the_first_takes_longer(tmp_path: Path) -> None:
    capture = Capture()
    begin = 0.0
    for number in range(8):
        capture.range(f"token_{number}_done", begin, begin + PASS)
        _pass(capture, begin, None)
        begin += PASS * (20 if number == 0 else 1)
    assert np.median(_seconds(capture, tmp_path)) == pytest.approx(PASS / 1e6)


def _forward(mark: str | None, attention: str = "flash_fwd_kernel", layers: int = 12) -> Capture:
    capture = Capture()
    _kernels(capture, 0, ["index_select_kernel", "copy_kernel"])
    for layer in range(layers):
        at = 1000 + layer * LAYER
        if mark is not None:
            capture.range(mark.format(layer), at, at + LAYER - 100)
        _kernels(capture, at, [attention if name.startswith("flash") else name for name in _LAYER])
    _kernels(capture, 1000 + layers * LAYER, ["head_gemm"])
    return capture


def _middle_of_a_forward() -> Capture:
    capture = Capture()
    for layer in range(20):
        _kernels(capture, layer * LAYER, _LAYER)
    return capture


def _construction() -> Capture:
    capture = Capture()
    for number in range(60):
        at = number * 1000.0
        capture.copy(at + 20, at + 500, 4096 * (number + 1), launched=at)
        capture.kernel(at + 600, at + 700, launched=at + 590, name=f"normal_init_{number % 7}_{number}")
    return capture


def _ranges(*names: str, kernels: bool = True) -> Capture:
    capture = Capture()
    for number, name in enumerate(names):
        capture.range(name, number * 1000, number * 1000 + 900)
        if kernels:
            _kernels(capture, number * 1000, [f"kernel_{number}_{part}" for part in range(8)])
    return capture


def _one_step() -> Capture:
    capture = Capture()
    _pass(capture, 0, "attention")
    return capture


def _same_kernel(count: int = 500) -> Capture:
    capture = Capture()
    _kernels(capture, 0, ["gemm_kernel"] * count)
    return capture


def _solver(mark: str | None = None, sweeps: int = 40, residual: bool = True) -> Capture:
    """A solver's loop: one kernel, sweep after sweep, and now and then the residual, as textbooks have it."""
    capture = Capture()
    for solve in range(12):
        at = solve * (sweeps + 1) * 100.0
        if mark is not None:
            capture.range(mark, at, at + sweeps * 100)
        _kernels(capture, at, ["jacobi_sweep"] * sweeps + ["residual_norm"] * residual)
    return capture


def _server() -> Capture:
    """A server's host: each of eight threads has ranges for its own requests, at about even distances."""
    capture = Capture()
    for thread in range(8):
        for request in range(12):
            at = request * 10_000.0 + thread * 1_300 + (request * 37 + thread * 11) % 9 * 150
            capture.range("copy to the device", at, at + 20, tid=200 + thread)
            for number in range(15):
                name = f"aten::{('view', 'sum', 'copy_', 'narrow')[(number + thread + request) % 4]}"
                capture.operator(name, at + 100 + number * 40, at + 120 + number * 40, tid=200 + thread)
    return capture


def _on_the_cpu(passes: int = 6) -> Capture:
    """A training on the CPU: forward and optimizer on its own thread, backward on autograd's, which has more."""
    capture = Capture()
    for number in range(passes):
        at = number * PASS
        capture.range("forward", at, at + PASS / 3)
        for place in range(20):
            capture.operator(f"aten::op_{place}", at + place * 100, at + place * 100 + 90)
        for place in range(40):
            capture.operator(
                f"aten::op_{place}_backward",
                at + PASS / 3 + place * 100,
                at + PASS / 3 + place * 100 + 90,
                tid=300,
            )
    return capture


def _inside(capture: Capture) -> Capture:
    capture.range("everything", -100, 1e6)
    return capture


_WEIGHTS = tuple(f"prefetch_layer_{number % 3}" for number in range(9))
WITHOUT_STEPS: dict[str, Callable[[], Capture]] = {
    "a forward pass": lambda: _forward(None),
    "a forward pass of 40 layers": lambda: _forward(None, layers=40),
    "a forward pass with a softmax": lambda: _forward(None, "softmax_warp_forward"),
    "a forward pass with a softmax by hand": lambda: _forward(None, "vectorized_elementwise<exp_kernel_cuda>"),
    "a forward pass with ranges": lambda: _forward("attention"),
    "a forward pass with numbered ranges": lambda: _forward("block {}"),
    "a forward pass with ranges in one": lambda: _inside(_forward("transformer layer")),
    "a forward pass that loads its weights": lambda: _forward("prefetch_weights"),
    "compiled pieces of a model": lambda: _inside(_forward("## Call CompiledFxGraph fb3en3pmdtsn2 ##")),
    "the middle of a forward pass": _middle_of_a_forward,
    "one training step": _one_step,
    "one training step in a range": lambda: _inside(_one_step()),
    "construction": _construction,
    "construction in a range": lambda: _inside(_construction()),
    "a kernel over and over": _same_kernel,
    "a kernel over and over in a range": lambda: _inside(_same_kernel()),
    "a solver's loop": _solver,
    "a solver's loop in ranges of a library": lambda: _solver("Solver::solve"),
    "one kernel over and over in regular ranges": lambda: _solver("benchmark", residual=False),
    "weights of layers": lambda: _ranges(*_WEIGHTS),
    "inputs of a library": lambda: _ranges(*["executor_utils::bindInputs"] * 3, kernels=False),
    "three chunks": lambda: _ranges("compute chunk 0", "compute chunk 1", "compute chunk 2"),
    "warm-ups": lambda: _ranges("warmup", "warmup", "warmup", "warmup"),
    "one-off work": lambda: _ranges("setup", "allocate", "convert", "teardown"),
    "layers' gradients": lambda: _inside(_ranges(*(f"all_reduce grad [layers.{n}.w]" for n in range(11, -1, -1)))),
}


@pytest.mark.parametrize("what", WITHOUT_STEPS)
def test_where_there_is_no_step_none_is_found(tmp_path: Path, what: str) -> None:
    steps = find_steps(WITHOUT_STEPS[what]().trace(tmp_path), MAIN)
    assert not len(steps), steps.found_by


def test_a_server_without_kernels_has_no_steps_though_its_threads_have_regular_ranges(tmp_path: Path) -> None:
    steps = find_steps(_server().chrome_trace(tmp_path), MAIN)
    assert not len(steps), steps.found_by


def test_a_training_on_the_cpu_has_its_steps(tmp_path: Path) -> None:
    steps = find_steps(_on_the_cpu().chrome_trace(tmp_path), MAIN)
    assert np.median(steps.seconds) == pytest.approx(PASS / 1e6), steps.found_by


def test_a_solver_whose_script_marks_each_solve_has_these_steps(tmp_path: Path) -> None:
    assert len(find_steps(_solver("solve").trace(tmp_path), MAIN)) == 11


def _with_range(trace: model.Trace, name: str) -> model.Trace:
    """The trace with one range more on each thread that has ranges, around everything."""
    low, high = trace.window
    own = model.pairs(trace.ranges.process, trace.ranges.thread)
    number = len(trace.names)
    count = len(own)
    more = model.build(
        model.Ranges,
        {"start": np.full(count, low - 1000), "end": np.full(count, high + 1000), "process": own[:, 0]}
        | {"thread": own[:, 1], "name": np.full(count, number), "style": np.full(count, model.PUSH_POP)},
    )
    return dataclasses.replace(
        trace, names=[*trace.names, name], ranges=model.joined([trace.ranges, more]), _kept={}
    )


@pytest.mark.slow("a later set of captures; the set of tuning stands for both", kept=("tuning",))
@pytest.mark.parametrize("packed", SETS, ids=lambda path: str(path.name.partition(".")[0]))
def test_one_range_around_a_labelled_capture_changes_nothing(packed: Path, tmp_path: Path) -> None:
    changed = []
    seen = 0
    for index, (name, _, path) in enumerate(unpacked_set(packed, tmp_path)):
        if index % 6:
            continue
        trace = open_trace(path)
        before = analyze_trace(trace)
        if not len(trace.ranges):
            continue
        seen += 1
        after = analyze_trace(_with_range(open_trace(path), "everything"))
        same = (before.verdict, before.steps.count, [one.lost_pct for one in before.devices])
        if same != (after.verdict, after.steps.count, [one.lost_pct for one in after.devices]):
            changed.append((name, same, after.verdict, after.steps.count))
    assert seen >= 3
    assert changed == []
