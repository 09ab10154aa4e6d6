"""Whose memory it is: own optimizers, mixed stacks, Windows; and a replay of the events."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from llmtop.memory.analyze import build_report
from llmtop.memory.frames import AUTOGRAD, GRADIENT, StackLine, stack_of
from llmtop.memory.model import MemoryDevice, MemoryReport
from llmtop.memory.snapshot import load
from tests.support.memory_allocator import CALL, FORWARD, LOSS, MAIN, MIB, TORCH, Allocator, Training, frame

WEIGHT, ACTIVATION = 8 * MIB, 16 * MIB
UNWIND = [
    frame("??", 0, "torch::unwind::unwind()"),
    frame(
        "CUDACachingAllocator.cpp", 0, "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc"
    ),
    frame("RegisterCUDA.cpp", 0, "at::(anonymous namespace)::create_out(c10::ArrayRef<long>)"),
]
ENGINE = [*UNWIND, frame("??", 0, "torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)")]
ACCUMULATE = [*UNWIND, frame("??", 0, "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)")]
OWN_OPTIMIZER = [
    frame("/home/me/optimizers.py", 82, "step"),
    frame(f"{TORCH}/optim/optimizer.py", 493, "wrapper"),
    frame("/home/me/train.py", 46, "step"),
    MAIN,
]
PLAIN_UPDATE = [frame("/home/me/muon.py", 12, "orthogonalize"), frame("/home/me/train.py", 46, "step"), MAIN]


def _train(
    allocator: Allocator, update: list[dict[str, Any]], backward: list[dict[str, Any]], steps: int = 2
) -> None:
    """Two layers whose optimizer keeps two moments of each weight, made in its first step by `update`."""
    weights = [allocator.alloc(WEIGHT, [frame(f"{TORCH}/nn/parameter.py", 9, "__new__"), MAIN]) for _ in range(2)]
    state: list[int] = []
    for _ in range(steps):
        saved = [allocator.alloc(ACTIVATION, FORWARD) for _ in weights]
        gradients = []
        for address in reversed(saved):
            short = allocator.alloc(ACTIVATION, ENGINE)
            gradients.append(allocator.alloc(WEIGHT, backward))
            allocator.free(short)
            allocator.free(address)
        state = state or [allocator.alloc(WEIGHT, update) for _ in range(4)]
        allocator.free(allocator.alloc(WEIGHT, update))
        for address in gradients:
            allocator.free(address, [frame(f"{TORCH}/optim/optimizer.py", 990, "zero_grad"), MAIN])


def _device(allocator: Allocator, folder: Path) -> MemoryDevice:
    return _report(allocator, folder).devices[0]


def _report(allocator: Allocator, folder: Path) -> MemoryReport:
    return build_report([load(allocator.write(folder / "one.pickle"))])


def _now(device: MemoryDevice) -> dict[str, int]:
    return {held.name: held.bytes for held in device.holders if held.bytes}


@pytest.mark.parametrize(
    "update", [OWN_OPTIMIZER, PLAIN_UPDATE], ids=["a class of torch.optim", "plain functions"]
)
def test_what_outlives_the_step_is_state_of_any_optimizer(update: list[dict[str, Any]], tmp_path: Path) -> None:
    allocator = Allocator()
    _train(allocator, update, ACCUMULATE)
    device = _device(allocator, tmp_path)
    assert _now(device) == {"parameters": 2 * WEIGHT, "optimizer": 4 * WEIGHT}


def test_state_is_not_saved_by_a_smaller_micro_batch(tmp_path: Path) -> None:
    allocator = Allocator()
    _train(allocator, OWN_OPTIMIZER, ACCUMULATE, steps=3)
    report = _report(allocator, tmp_path)
    device = report.devices[0]
    found = {one.id: one for one in report.findings}["micro_batch"]
    activations = {held.name: held.peak_bytes for held in device.holders}["activations"] or 0
    assert device.batch_peak_bytes == activations + ACTIVATION
    assert found.saves_at_most_bytes == device.batch_peak_bytes // 2


def test_python_frames_that_follow_those_of_c_are_found(tmp_path: Path) -> None:
    mixed, plain = Allocator(), Allocator()
    for allocator, before in ((mixed, UNWIND), (plain, [])):
        allocator.alloc(ACTIVATION, [*before, *FORWARD])
    one, other = (_device(allocator, tmp_path) for allocator in (mixed, plain))
    assert [line.name for line in one.lines] == [line.name for line in other.lines] == ["model.py:31 forward"]
    assert one.modules[0].name == other.modules[0].name
    assert "unwind" not in str(one.lines)


def test_what_accumulate_grad_allocates_is_a_gradient_and_the_rest_is_of_backward(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.alloc(WEIGHT, ACCUMULATE)
    allocator.free(allocator.alloc(ACTIVATION, ENGINE))
    device = _device(allocator, tmp_path)
    assert _now(device) == {"gradients": WEIGHT}
    assert {line.name for line in device.lines} == {"AccumulateGrad", "autograd engine"}


def test_paths_of_windows_are_cut_and_known(tmp_path: Path) -> None:
    python = r"C:\Users\me\miniconda3\envs\train\Lib"
    own = frame(r"D:\work\project\train.py", 40, "step")
    forward = [
        frame(rf"{python}\site-packages\torch\nn\modules\linear.py", 125, "forward"),
        frame(rf"{python}\contextlib.py", 81, "inner"),
        own,
    ]
    allocator = Allocator()
    allocator.alloc(ACTIVATION, forward)
    allocator.alloc(MIB, [frame(rf"{python}\threading.py", 9, "run"), own])
    device = _device(allocator, tmp_path)
    assert {line.name for line in device.lines} == {"train.py:40 step"}
    assert _now(device)["activations"] == ACTIVATION


def test_marks_stand_where_frames_of_c_are_the_only_ones() -> None:
    assert stack_of([StackLine("a.cpp", 1, "torch::autograd::Engine::thread_main(x)")]) == (AUTOGRAD,)
    python = StackLine("a.py", 3, "f")
    assert stack_of([StackLine("??", 0, "torch::autograd::AccumulateGrad::apply()"), python]) == (GRADIENT, python)
    assert stack_of([]) == ()


def test_held_is_never_above_the_peak_whatever_is_rounded(tmp_path: Path) -> None:
    allocator = Allocator()
    for _ in range(300):
        allocator.alloc(513, FORWARD)
    report = _report(allocator, tmp_path)
    device = report.devices[0]
    assert device.peak is not None
    assert device.requested_bytes <= device.peak.bytes < device.allocated_bytes
    assert "as requested (300 KiB rounded by the allocator)" in report.summary


def test_a_forward_pass_alone_is_told_of_no_grad_and_of_attention(tmp_path: Path) -> None:
    allocator = Allocator()
    scores = [frame("/home/me/model.py", 60, "softmax"), frame("/home/me/model.py", 70, "forward"), CALL, MAIN]
    for _ in range(4):
        allocator.alloc(ACTIVATION, scores)
    found = {one.id: one for one in _report(allocator, tmp_path).findings}
    assert "inference_mode" in found["no_grad"].fix
    assert "scaled_dot_product_attention" in found["fused_attention"].fix
    assert found["fused_attention"].saves_at_most_bytes == 4 * ACTIVATION
    assert not {"checkpointing", "micro_batch"} & set(found)


def test_the_saving_without_temporaries_ends_at_the_next_peak(tmp_path: Path) -> None:
    """Forward holds three activations beside the weights, the optimizer's step five temporaries of a weight: by
    the replay the peak falls from 7 weights to 2 and the activations."""
    allocator = Allocator()
    for _ in range(2):
        allocator.alloc(WEIGHT, [frame(f"{TORCH}/nn/parameter.py", 9, "__new__"), MAIN])
    saved = [allocator.alloc(10 * MIB, FORWARD) for _ in range(3)]
    gradients = [allocator.alloc(MIB, ACCUMULATE) for _ in range(2)]
    for address in saved:
        allocator.free(address)
    temporary = [allocator.alloc(WEIGHT, OWN_OPTIMIZER) for _ in range(5)]
    for address in (*temporary, *gradients):
        allocator.free(address, OWN_OPTIMIZER)
    path = allocator.write(tmp_path / "one.pickle")
    report = build_report([load(path)])
    without = 2 * WEIGHT + 3 * 10 * MIB + 2 * MIB
    assert _replayed(path)[0] == 2 * WEIGHT + 5 * WEIGHT + 2 * MIB
    found = {one.id: one for one in report.findings}["optimizer_temporaries"]
    assert found.saves_at_most_bytes == 7 * WEIGHT + 2 * MIB - without
    assert "hold 40.0 MiB at the peak: a fused one has none, and the peak is then 48.0 MiB" in found.summary


def test_a_script_s_wrapper_of_attention_counts_too(tmp_path: Path) -> None:
    allocator = Allocator()
    wrapper = [frame("/home/me/benchmark.py", 84, "annotated_scaled_dot_product_attention"), *FORWARD]
    for name in ("softmax", "mask"):
        allocator.alloc(ACTIVATION, [frame("/home/me/nn.py", 5, name), *wrapper])
    assert _device(allocator, tmp_path).attention_peak_bytes == 2 * ACTIVATION


def test_a_loss_is_no_attention(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.alloc(ACTIVATION, [frame(f"{TORCH}/nn/functional.py", 2000, "softmax"), *LOSS])
    assert _device(allocator, tmp_path).attention_peak_bytes == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_replay_of_the_events_gives_the_same_peak_and_holders(seed: int, tmp_path: Path) -> None:
    """The events of the file alone: what lives after each, and at the highest point whose it is."""
    allocator, chance = Allocator(), random.Random(seed)
    kinds = {"activations": FORWARD, "gradients": ACCUMULATE, "optimizer": OWN_OPTIMIZER}
    living: list[int] = []
    for _ in range(400):
        if living and chance.random() < 0.45:
            allocator.free(living.pop(chance.randrange(len(living))))
        else:
            living.append(allocator.alloc(chance.randrange(1, 3 * MIB), chance.choice(list(kinds.values()))))
    path = allocator.write(tmp_path / "one.pickle")
    device = build_report([load(path)]).devices[0]
    peak, at_peak, now = _replayed(path)
    assert device.peak is not None
    assert device.peak.bytes == peak
    assert device.requested_bytes == sum(now.values())
    assert sum(held.peak_bytes or 0 for held in device.holders) == peak
    by_line = {line.name: line.peak_bytes for line in device.lines}
    assert by_line["model.py:31 forward"] == at_peak["forward"]
    assert by_line["AccumulateGrad"] == at_peak["AccumulateGrad"]
    assert by_line["optimizers.py:82 step"] == at_peak["step"]


def _replayed(path: Path) -> tuple[int, dict[str, int], dict[int, int]]:
    """Peak in bytes, what was held then by kind of stack, and what is held at the end by address."""
    held: dict[int, tuple[int, str]] = {}
    peak, at_peak = 0, {}
    for event in pickle.loads(path.read_bytes())["device_traces"][0]:
        if event["action"] == "alloc":
            names = " ".join(one["name"] for one in event["frames"])
            kind = "AccumulateGrad" if "AccumulateGrad" in names else "forward" if "forward" in names else "step"
            held[event["addr"]] = (event["size"], kind)
        elif event["action"] == "free_requested":
            del held[event["addr"]]
        total = sum(size for size, _ in held.values())
        if total > peak:
            peak = total
            at_peak = dict.fromkeys(("forward", "AccumulateGrad", "step"), 0)
            for size, kind in held.values():
                at_peak[kind] += size
    return peak, at_peak, {address: size for address, (size, _) in held.items()}


def test_a_training_of_torch_s_own_optimizer_is_as_before(tmp_path: Path) -> None:
    allocator = Allocator()
    Training(allocator).steps(3)
    assert _now(_device(allocator, tmp_path)) == {"parameters": 32 * MIB, "optimizer": 64 * MIB}
