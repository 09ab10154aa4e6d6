"""Device time by operator: against torch's own way on a real capture, and on made ones of which all is known."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from llmtop.analysis.work.gemms import gemm_times, gpu_roofs
from llmtop.analysis.work.operators import GRAPH, OUTSIDE, UNKNOWN, operator_times
from llmtop.analysis.work.time_breakdown import time_breakdown
from llmtop.report.device_time import OperatorTime
from llmtop.trace.files.open import open_trace
from tests.support.data import KINETO
from tests.support.traces import Capture

H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]}
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel"
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def _by_external_id(path: Path) -> tuple[Counter[str], Counter[str]]:
    """(µs, pieces) by operator as torch.profiler counts self device time: the work whose linked id is the
    operator's own."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {e["args"]["External id"]: e["name"] for e in events if e.get("cat") == "cpu_op"}
    took: Counter[str] = Counter()
    pieces: Counter[str] = Counter()
    for event in events:
        if event.get("cat") in _DEVICE and event["args"].get("External id") in names:
            took[names[event["args"]["External id"]]] += event["dur"]
            pieces[names[event["args"]["External id"]]] += 1
    return took, pieces


def test_self_device_time_is_that_of_torch_s_own_ids() -> None:
    took, pieces = _by_external_id(KINETO)
    mine = {row.name: row for row in operator_times(open_trace(KINETO)) if row.is_operator}
    assert len(took) > 10
    assert set(mine) == set(took)
    for name, row in mine.items():
        assert row.seconds * 1e6 == pytest.approx(took[name], rel=1e-4, abs=0.01)
        assert row.launches == pieces[name]
    assert 90 < (mine["aten::mm"].backward_pct or 0) < 100, "all but the head of the model, which has no bias"
    assert mine["aten::addmm"].backward_pct == pytest.approx(0)


def _rows(capture: Capture, folder: Path) -> dict[str, OperatorTime]:
    return {row.name: row for row in operator_times(capture.chrome_trace(folder))}


def test_work_belongs_to_the_innermost_operator_that_is_open(tmp_path: Path) -> None:
    made = Capture()
    made.operator("aten::linear", 0, 100)
    made.operator("aten::t", 5, 10)
    made.operator("aten::addmm", 20, 60)
    made.kernel(200, 230, launched=30)  # in addmm, in linear
    made.kernel(230, 240, launched=70)  # in linear, after addmm
    made.operator("aten::linear", 20, 60, tid=7)  # another thread's at the same time takes nothing
    made.kernel(240, 245, launched=150)
    made.kernel(245, 252, launched=None)
    made.kernel(252, 272, launched=160, by="cudaGraphLaunch")
    rows = _rows(made, tmp_path)
    assert {name: round(row.seconds * 1e6) for name, row in rows.items()} == {
        "aten::addmm": 30,
        "aten::linear": 10,
        OUTSIDE: 5,
        UNKNOWN: 7,
        GRAPH: 20,
    }
    assert sum(row.share_pct for row in rows.values()) == pytest.approx(100)
    assert not rows[GRAPH].is_operator


def test_calls_are_those_that_launched_something(tmp_path: Path) -> None:
    made = Capture()
    for call in range(4):
        made.operator("aten::mul", call * 10, call * 10 + 8)
    for call in range(3):
        made.kernel(100 + call * 10, 104 + call * 10, launched=call * 10 + 1)
        made.kernel(105 + call * 10, 107 + call * 10, launched=call * 10 + 3)
    row = _rows(made, tmp_path)["aten::mul"]
    assert (row.calls, row.launches, row.mean_us) == (3, 6, pytest.approx(6))


def test_module_and_line_are_those_of_the_forward(tmp_path: Path) -> None:
    made = Capture()
    made.frame("train.py(10): step", 0, 400)
    made.frame("nn.Module: Decoder_0", 0, 190)
    for layer in range(2):
        begin = layer * 90
        made.frame(f"nn.Module: Linear_{layer}", begin + 1, begin + 80)
        made.frame("torch/nn/modules/linear.py(130): forward", begin + 2, begin + 79)
        made.operator("aten::addmm", begin + 10, begin + 50, **{"Sequence number": layer})
        made.kernel(500 + begin, 520 + begin, launched=begin + 20)
    for layer in (1, 0):
        begin = 300 - layer * 40
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        made.operator(name, begin, begin + 30, tid=9, **{"Sequence number": layer, "Fwd thread id": 1})
        made.operator("AddmmBackward0", begin + 1, begin + 29, tid=9, **{"Sequence number": layer})
        made.operator("aten::mm", begin + 2, begin + 20, tid=9)
        made.kernel(1000 + begin, 1040 + begin, launched=begin + 5, tid=9)
    rows = _rows(made, tmp_path)
    for name in ("aten::addmm", "aten::mm"):
        assert rows[name].module == "Decoder/Linear", "layers of a class count as one place"
        assert rows[name].modules[0].calls == 2
        assert rows[name].source == "train.py(10): step"
    assert rows["aten::addmm"].backward_pct == 0
    assert rows["aten::mm"].backward_pct == 100


def test_a_sequence_number_of_another_operator_names_no_module(tmp_path: Path) -> None:
    made = Capture()
    made.frame("nn.Module: Norm_0", 0, 50)
    made.operator("aten::native_layer_norm", 5, 45, **{"Sequence number": 3})
    made.operator("MulBackward0", 100, 150, tid=9, **{"Sequence number": 3})
    made.kernel(200, 210, launched=110, tid=9)
    assert _rows(made, tmp_path)["MulBackward0"].module == ""


def test_what_backward_computes_again_is_told_from_backward(tmp_path: Path) -> None:
    made = Capture()
    made.operator("aten::relu", 0, 20, **{"Sequence number": 1})
    made.kernel(500, 510, launched=5)
    made.operator("autograd::engine::evaluate_function: ReluBackward0", 100, 200, **{"Sequence number": 1})
    made.operator("aten::relu", 110, 140, **{"Sequence number": 5})
    made.kernel(600, 610, launched=115)
    made.operator("aten::threshold_backward", 150, 190)
    made.kernel(700, 730, launched=160)
    made_of = time_breakdown(made.chrome_trace(tmp_path))
    assert made_of is not None
    assert made_of.workload == "training"
    parts = {part.name: round(part.seconds * 1e6) for part in made_of.passes}
    assert parts == {"forward": 10, "recomputed forward": 10, "backward": 30}
    assert made_of.backward_to_forward == pytest.approx(3.0)


def _product(made: Capture, at: float, took: float, shapes: list[Any], kinds: list[str], **more: Any) -> None:
    made.operator(more.get("name", "aten::mm"), at, at + 8, **{"Input Dims": shapes, "Input type": kinds})
    made.kernel(1000 + at, 1000 + at + took, launched=at + 1, name=more.get("kernel", GEMM))


def test_a_product_has_the_rate_of_its_size(tmp_path: Path) -> None:
    made = Capture()
    for call in range(4):
        _product(made, call * 100, 50, [[4096, 1024], [1024, 2048]], ["c10::BFloat16"] * 2)
        made.operator("aten::view", call * 100 + 20, call * 100 + 22)
    kinds = ["c10::BFloat16"] * 3 + ["Scalar"] * 2
    _product(made, 500, 20, [[64], [1024, 128], [128, 64], [], []], kinds, name="aten::addmm")
    _product(made, 600, 30, [[8, 16, 32], [8, 32, 64]], ["c10::BFloat16"] * 2, name="aten::bmm")
    trace = made.chrome_trace(tmp_path, **H100)
    rows = {row.operator: row for row in gemm_times(trace, gpu_roofs(trace))}
    mm = rows["aten::mm"]
    assert (mm.m, mm.n, mm.k, mm.batch, mm.calls, mm.dtype) == (4096, 2048, 1024, 1, 4, "bf16")
    flops = 2 * 4096 * 2048 * 1024
    moved = 2 * (4096 * 1024 + 1024 * 2048 + 4096 * 2048)
    assert mm.tflops_per_s == pytest.approx(flops / 50e-6 / 1e12)
    assert mm.tb_per_s == pytest.approx(moved / 50e-6 / 1e12)
    assert mm.peak_pct == pytest.approx(100 * flops / 50e-6 / 989.5e12)
    assert mm.flops_per_byte == pytest.approx(flops / moved)
    assert mm.limit == "compute"
    assert (rows["aten::addmm"].m, rows["aten::addmm"].n, rows["aten::addmm"].k) == (1024, 64, 128)
    assert (rows["aten::bmm"].batch, rows["aten::bmm"].flops) == (8, 2 * 8 * 16 * 64 * 32)
    assert rows["aten::bmm"].limit == "memory"


def test_a_workspace_set_before_a_product_is_not_its_time(tmp_path: Path) -> None:
    made = Capture()
    _product(made, 0, 50, [[64, 64], [64, 64]], ["c10::Half"] * 2)
    made.memset(900, 940, launched=1.5)
    trace = made.chrome_trace(tmp_path, **H100)
    assert gemm_times(trace, gpu_roofs(trace))[0].mean_us == pytest.approx(50)
    assert operator_times(trace)[0].mean_us == pytest.approx(90), "torch counts it as the operator's"


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4",
            "fp32",
        ),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align4>(int)", "tf32"),
        ("a_kernel_gemm_of_nobody_s", None),
    ],
)
def test_four_byte_factors_are_tf32_where_the_kernel_says_so(
    tmp_path: Path, kernel: str, dtype: str | None
) -> None:
    made = Capture()
    _product(made, 0, 50, [[64, 64], [64, 64]], ["float"] * 2, kernel=kernel)
    trace = made.chrome_trace(tmp_path, **H100)
    row = gemm_times(trace, gpu_roofs(trace))[0]
    assert row.dtype == dtype
    assert (row.peak_pct is None) == (dtype is None), "no peak is guessed"


@pytest.mark.parametrize(
    "dims",
    [
        [[64, 64], [32, 64]],
        [[64], [64]],
        [[64, 64]],
        [],
        "[[64, 64], [64, 64]]",
        [[64, -1], [-1, 64]],
        [["a", 64], [64, 64]],
        [[0, 64], [64, 64]],
        {"a": 1},
    ],
)
def test_shapes_of_no_product_leave_the_neighbours_alone(tmp_path: Path, dims: Any) -> None:
    made = Capture()
    _product(made, 0, 50, dims, ["c10::BFloat16"] * 2)
    _product(made, 100, 20, [[64, 64], [64, 64]], ["c10::BFloat16"] * 2)
    trace = made.chrome_trace(tmp_path, **H100)
    assert [row.calls for row in gemm_times(trace, gpu_roofs(trace))] == [1]
    assert operator_times(trace)[0].calls == 2


def test_a_copy_has_the_rate_of_what_it_reads_and_writes(tmp_path: Path) -> None:
    made = Capture()
    copy = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(int)>(int)"
    kinds = ["c10::BFloat16", "float", "Scalar"]
    _product(made, 0, 100, [[1024, 1024], [1024, 1024], []], kinds, name="aten::copy_", kernel=copy)
    shape = operator_times(made.chrome_trace(tmp_path))[0].shapes[0]
    assert shape.tb_per_s == pytest.approx((2 + 4) * 1024 * 1024 / 100e-6 / 1e12)
    assert shape.name == "1024x1024 bf16, 1024x1024 fp32"


def test_operators_that_pytorch_marks_with_nvtx_are_operators(tmp_path: Path) -> None:
    made = Capture()
    made.range("step", 0, 400)
    made.range("aten::linear, seq = 4, op_id = 11, sizes = [[64, 32], [16, 32], [16]]", 0, 100)
    made.range("aten::addmm, seq = 5, op_id = 12, sizes = [[16], [64, 32], [32, 16], [], []]", 10, 60)
    made.kernel(200, 230, launched=20, name=GEMM)
    name = "autograd::engine::evaluate_function: AddmmBackward0, seq = 5, op_id = 31"
    made.range(name, 110, 190, tid=9)
    made.range(
        "aten::mm, op_id = 33, sizes = [[32, 64], [64, 16]], input_op_ids = [[(12,0)], []]", 120, 150, tid=9
    )
    made.kernel(300, 350, launched=125, name=GEMM, tid=9)
    made.range("Optimizer.step#AdamW.step, op_id = 40", 210, 240)
    trace = made.trace(tmp_path)
    rows = {row.name: row for row in operator_times(trace)}
    assert {name: round(row.seconds * 1e6) for name, row in rows.items()} == {"aten::addmm": 30, "aten::mm": 50}
    assert rows["aten::mm"].backward_pct == 100
    sizes = {row.operator: (row.m, row.n, row.k, row.dtype) for row in gemm_times(trace, ())}
    assert sizes == {"aten::addmm": (64, 16, 32, "bf16"), "aten::mm": (32, 16, 64, "bf16")}
    names = {trace.names[number] for number in trace.ranges.name.tolist()}
    assert names == {"step", "Optimizer.step#AdamW.step"}, "ranges of the script stay ranges"


def test_what_ran_before_and_after_the_marks_is_nobody_s_share(tmp_path: Path) -> None:
    made = Capture()
    made.range("step", 0, 400)
    made.kernel(10, 90, launched=5, name=GEMM)  # of a step before: nsys begins earlier than the marks do
    made.range("aten::mm, op_id = 1, sizes = [[64, 32], [32, 16]]", 100, 140)
    made.kernel(200, 230, launched=120, name=GEMM)
    made.kernel(240, 250, launched=145, name="other")
    made.range("aten::relu, op_id = 2, sizes = [[64, 16]]", 150, 180)
    made.kernel(260, 270, launched=160, name="relu")
    made.kernel(300, 390, launched=290, name=GEMM)
    rows = {
        row.name: (round(row.seconds * 1e6), round(row.share_pct)) for row in operator_times(made.trace(tmp_path))
    }
    assert rows.pop("aten::mm") == (30, 60)
    assert rows.pop("aten::relu") == (10, 20)
    assert list(rows.values()) == [(10, 20)], "launched between them, by no operator"
