"""Parts of device time: passes, stages, and what kind of program it is, by the names of operators and ranges."""

from __future__ import annotations

import pytest

from llmtop.analysis.work.time_breakdown import time_breakdown
from llmtop.analysis.work.workload import (
    is_compiled,
    is_language_model,
    is_plain_program,
    parallel_wrappers,
)
from llmtop.report.device_time import TimeBreakdown
from llmtop.trace import model
from tests.support.tables import PID, Tables

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_nn"
SGEMM = "ampere_sgemm_128x64_nn"
ATTENTION, ATTENTION_BACK = "flash_fwd_kernel", "flash_bwd_dq_dk_dv_kernel"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
ADAM = "at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float>>"
COPY = "at::native::elementwise_kernel<128, at::native::direct_copy_kernel_cuda>"
EVALUATE = "autograd::engine::evaluate_function: MmBackward0"


def _parts(made: TimeBreakdown | None) -> dict[str, int]:
    """Nanoseconds of each pass."""
    assert made is not None
    return {part.name: round(part.seconds * 1e9) for part in made.passes}


class Work(Tables):
    """Work one after another, each of 100 ns on the host's clock, with the operators and ranges around it."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def run(self, took: int, name: str = GEMM, *around: str, ranges: tuple[str, ...] = (), **op: int) -> None:
        """Launch a kernel within these operators, the outermost first; `op` are its columns."""
        for depth, operator in enumerate(around):
            sequence = 1 if operator.endswith("*") else 0
            self.host(operator.rstrip("*"), self.at + depth, self.at + 90 - depth, sequence=sequence)
        for depth, text in enumerate(ranges):
            self.range(text, self.at + depth, self.at + 90 - depth)
        self.call("cudaLaunchKernel", self.at + 50, self.at + 55, correlation=self.at)
        self.op(10_000 * (self.at + 1), 10_000 * (self.at + 1) + took, name, correlation=self.at, **op)
        self.at += 100


def test_passes_of_a_training_are_identified_by_autograd_s_operators() -> None:
    made = Work()
    made.run(10, GEMM, "aten::mm*")
    made.run(20, GEMM, EVALUATE, "MmBackward0", "aten::mm")
    made.run(5, GEMM, EVALUATE, "aten::mm*")  # counted by autograd again: a forward pass within backward
    made.run(3, ADAM, "aten::_fused_adam_")
    made.run(7, REDUCE, EVALUATE)
    made.run(2, "", "aten::copy_", kind=model.MEMCPY)
    made.op(1, 5)
    found = time_breakdown(made.trace())
    assert _parts(found) == {
        "communication": 7,
        "launch not recorded": 4,
        "optimizer": 3,
        "recomputed forward": 5,
        "backward": 20,
        "copies and memsets": 2,
        "forward": 10,
    }
    assert found is not None
    assert (found.workload, found.told_by) == ("training", "operators of autograd's backward pass")
    assert found.backward_to_forward == pytest.approx(2.0)
    assert sum(part.share_pct for part in found.passes) == pytest.approx(100)


def test_work_in_an_optimizer_s_range_is_the_optimizer_s_whatever_runs() -> None:
    made = Work()
    made.run(10, GEMM, "aten::mm*")
    made.run(20, GEMM, EVALUATE)
    made.run(6, GEMM, ranges=("Optimizer.step#AdamW.step",))
    made.range("optimizer", 100_000, int(model.OPEN))
    assert _parts(time_breakdown(made.trace())) == {"optimizer": 6, "backward": 20, "forward": 10}


@pytest.mark.parametrize(
    ("forward", "backward", "ratio"), [(10, 20, 2.0), (10, 10, 1.0), (10, 9, None), (20, 15, None)]
)
def test_a_ratio_needs_as_many_products_in_backward_as_in_forward(
    forward: int, backward: int, ratio: float | None
) -> None:
    made = Work()
    made.run(forward, GEMM, "aten::mm*")
    made.run(backward, GEMM, EVALUATE)
    found = time_breakdown(made.trace())
    assert found is not None
    assert found.backward_to_forward == (None if ratio is None else pytest.approx(ratio))
    assert _parts(found) == {"backward": backward, "forward": forward}


@pytest.mark.parametrize(("misplaced", "separable"), [(10, True), (11, False)])
def test_more_than_a_tenth_of_backward_s_kernels_in_forward_separates_nothing(
    misplaced: int, separable: bool
) -> None:
    """100 ns of kernels are named as backward's: a tenth may be found in forward."""
    made = Work()
    made.run(misplaced, ATTENTION_BACK, "aten::mm*")
    made.run(100 - misplaced, ATTENTION_BACK, EVALUATE)
    made.run(40, GEMM, "aten::mm*")
    made.run(80, GEMM, EVALUATE)
    parts = _parts(time_breakdown(made.trace()))
    if separable:
        assert parts == {"backward": 170, "forward": 50}
    else:
        assert parts == {"forward and backward, not separable": 220}


@pytest.mark.parametrize(
    ("attention", "products", "separable"),
    [
        ((50, 50), (100, 74), False),
        ((50, 50), (100, 75), True),
        ((51, 50), (100, 10), True),
        ((0, 50), (100, 1), True),
    ],
)
def test_attention_that_runs_backward_without_other_products_separates_nothing(
    attention: tuple[int, int], products: tuple[int, int], separable: bool
) -> None:
    made = Work()
    made.run(attention[0], ATTENTION, "aten::mm*")
    made.run(attention[1], ATTENTION, EVALUATE)
    made.run(products[0], GEMM, "aten::mm*")
    made.run(products[1], GEMM, EVALUATE)
    names = set(_parts(time_breakdown(made.trace())))
    assert ("forward and backward, not separable" not in names) == separable


def test_passes_without_operators_are_told_by_ranges() -> None:
    made = Work()
    made.run(10, GEMM, ranges=("forward",))
    made.run(20, GEMM, ranges=("backward",))
    made.run(3, ADAM)
    made.run(4, "", ranges=("forward",), kind=model.MEMSET)
    found = time_breakdown(made.trace())
    parts = _parts(found)
    assert (parts["forward"], parts["backward"], parts["optimizer"], parts["copies and memsets"]) == (10, 20, 3, 4)
    assert found is not None
    assert found.told_by == "kernels of an optimizer"


@pytest.mark.parametrize(
    ("kernel", "operator", "ranges", "workload", "evidence"),
    [
        (GEMM, None, ("Optimizer.step#SGD.step",), "training", "the optimizer's range"),
        (GEMM, None, ("decode",), "inference", "ranges named like prefill or decode"),
        (ATTENTION_BACK, None, (), "training", "kernels of a backward pass"),
        (GEMM, None, ("backward",), "training", "ranges named like a backward pass"),
        (
            "vllm::reshape_and_cache_flash_kernel",
            None,
            (),
            "inference",
            "kernels that keep a cache of keys and values",
        ),
        (GEMM, "_C_cache_ops::reshape", (), "inference", "operators of an inference server"),
        (GEMM, "aten::mm", (), "inference", "no operator was recorded for autograd"),
        (GEMM, "aten::mm*", (), None, ""),
        ("k", "aten::mm", (), None, ""),
        (GEMM, None, (), None, ""),
    ],
)
def test_what_shows_a_training_or_inference(
    kernel: str, operator: str | None, ranges: tuple[str, ...], workload: str | None, evidence: str
) -> None:
    made = Work()
    made.run(10, kernel, *([] if operator is None else [operator]), ranges=ranges)
    found = time_breakdown(made.trace())
    assert found is not None
    assert (found.workload, found.told_by) == (workload, evidence)


def test_stages_are_those_of_the_ranges_that_launched() -> None:
    made = Work()
    made.run(10, GEMM, ranges=("prefill",))
    made.run(20, GEMM, ranges=("decode",))
    made.run(30, GEMM, ranges=("execute_context_2(10)_generation_3(3)",))
    made.run(40, GEMM, ranges=("execute_context_0(0)_generation_3(3)",))
    made.run(50, GEMM, ranges=("execute_context_2(10)_generation_0(0)",))
    made.run(7, GEMM)
    found = time_breakdown(made.trace())
    assert found is not None
    assert {one.name: round(one.seconds * 1e9) for one in found.stages} == {
        "prefill and decode in one batch": 30,
        "prefill": 60,
        "decode": 60,
        "neither": 7,
    }
    assert {one.passes for one in found.stages} == {None}
    assert found.stages_by == "ranges and functions of these names"
    assert found.passes == ()


def test_stages_of_tokens_are_inferred_where_no_range_shows_them() -> None:
    made = Tables()
    for number, kind in enumerate("PttttPtttt"):
        at = 1000 * number
        made.op(at, at + (700 if kind == "P" else 400), GEMM if kind == "P" else "gemv2T_kernel_gemm_small")
        made.op(at + 900, at + 920, "reduce_kernel<ArgMaxOps<float>>")
    found = time_breakdown(made.trace())
    assert found is not None
    assert found.workload == "inference"
    assert {one.name: (round(one.seconds * 1e9), one.passes) for one in found.stages} == {
        "prefill": (2 * 720, 2),
        "decode": (8 * 420, 8),
    }
    assert found.stages_by.startswith("inferred")


def test_shares_of_kinds_of_work() -> None:
    made = Work()
    made.run(100, SGEMM, "aten::mm*")
    made.run(40, GEMM, "aten::bmm*")
    made.run(30, "softmax_warp_forward<float>", "aten::softmax*")
    made.run(20, "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "aten::add*")
    made.run(15, COPY, "aten::copy_*")
    made.run(5, "triton_fused", "aten::to*")
    made.run(8, "", "aten::copy_*", kind=model.MEMCPY, direction=model.DEVICE_TO_DEVICE)
    made.run(2, "", "aten::copy_*", kind=model.MEMCPY, direction=model.HOST_TO_DEVICE)
    found = time_breakdown(made.trace(gpus={0: model.TracedGpu(0, "NVIDIA H100 80GB HBM3")}))
    assert found is not None
    whole = 100 + 40 + 30 + 20 + 15 + 5 + 8 + 2
    assert found.fp32_matrix_pct == pytest.approx(100 * 100 / whole)
    assert found.softmax_pct == pytest.approx(100 * 30 / whole)
    assert found.unfused_attention_pct == pytest.approx(100 * 70 / whole)
    assert found.copy_cast_pct == pytest.approx(100 * (15 + 5 + 8) / whole)
    assert found.vendor == "NVIDIA"
    assert found.graph_pct == 0.0
    assert found.graph_launches == 0


def test_batched_products_are_no_unfused_attention_without_a_softmax() -> None:
    made = Work()
    made.run(40, GEMM, "aten::bmm*")
    made.run(10, GEMM)
    found = time_breakdown(made.trace())
    assert found is not None
    assert found.unfused_attention_pct == 0.0


def test_a_softmax_without_operators_is_all_that_is_known_of_attention() -> None:
    made = Work()
    made.run(40, GEMM)
    made.run(10, "softmax_warp_forward<float>")
    found = time_breakdown(made.trace())
    assert found is not None
    assert found.unfused_attention_pct == pytest.approx(20.0)


def test_the_work_of_graphs_is_what_their_launches_launched() -> None:
    made = Tables()
    for number, name in enumerate(("cudaGraphLaunch_v10000", "cudaGraphLaunch_v10000", "cudaLaunchKernel")):
        made.call(name, 100 * number, 100 * number + 5, correlation=number)
        made.op(100 * number + 10, 100 * number + 40, correlation=number)
    found = time_breakdown(made.trace())
    assert found is not None
    assert (found.graph_launches, found.graph_pct) == (2, pytest.approx(100 * 60 / 90))
    alone = Tables()
    alone.op(0, 10)
    found = time_breakdown(alone.trace())
    assert found is not None
    assert (found.graph_launches, found.graph_pct) == (0, None)


def test_nothing_has_no_parts() -> None:
    assert time_breakdown(Tables().trace()) is None
    made = Tables()
    made.op(5, 5)
    assert time_breakdown(made.trace()) is None


@pytest.mark.parametrize(
    ("gpus", "call", "vendor"),
    [
        (("AMD Instinct MI300X",), "cudaMalloc", "AMD"),
        (("NVIDIA H100 80GB HBM3",), "hipMalloc", "NVIDIA"),
        (("NVIDIA H100", "AMD Instinct MI300X"), "cudaMalloc", "AMD"),
        ((model.CPU, "NVIDIA H100"), "cudaMalloc", "CPU"),
        ((f"{model.TPU} v5e",), "cudaMalloc", "Google"),
        ((None,), "hipMalloc", "AMD"),
        ((), "cuMemAlloc", "NVIDIA"),
        ((), "zeMemAlloc", None),
        (("Imaginary 9000",), "zeMemAlloc", None),
    ],
)
def test_the_vendor_is_that_of_the_gpu_s_name_else_of_the_calls(
    gpus: tuple[str | None, ...], call: str, vendor: str | None
) -> None:
    made = Tables()
    made.op(0, 10)
    made.call(call, 0, 1)
    named = {number: model.TracedGpu(number, name) for number, name in enumerate(gpus)}
    found = time_breakdown(made.trace(gpus=named))
    assert found is not None
    assert found.vendor == vendor


@pytest.mark.parametrize(
    ("gpu", "known"),
    [("NVIDIA H100 80GB HBM3", True), ("NVIDIA GeForce GTX 1080", False), (None, False), ("", False)],
)
def test_full_fp32_is_of_interest_where_every_gpu_has_matrix_cores(gpu: str | None, known: bool) -> None:
    made = Tables()
    made.op(0, 10, SGEMM)
    made.op(20, 30, SGEMM, device=1)
    h100 = model.TracedGpu(0, "NVIDIA H100 80GB HBM3")
    found = time_breakdown(made.trace(gpus={0: h100, 1: model.TracedGpu(1, gpu)}))
    assert found is not None
    assert found.fp32_matrix_pct == (pytest.approx(100.0) if known else None)


def _host(name: str, kernel: str = GEMM, *, range_: bool = False, took: int = 10) -> model.Trace:
    made = Tables()
    made.op(0, took, kernel)
    if range_:
        made.range(name, 0, 10)
    else:
        made.host(name, 0, 10)
    return made.trace()


@pytest.mark.parametrize("range_", [True, False])
@pytest.mark.parametrize(
    ("name", "wrappers"),
    [
        ("DistributedDataParallel.forward", ("DDP",)),
        ("FullyShardedDataParallel.forward", ("FSDP",)),
        ("FSDP::all_gather", ("FSDP",)),
        ("deepspeed/runtime/engine.py(1): forward", ("DeepSpeed",)),
        ("DeepSpeedEngine over DistributedDataParallel", ("DDP", "DeepSpeed")),
        ("forward", ()),
    ],
)
def test_a_wrapper_is_known_by_what_it_leaves(name: str, wrappers: tuple[str, ...], range_: bool) -> None:
    assert parallel_wrappers(_host(name, range_=range_)) == wrappers


@pytest.mark.parametrize(
    ("name", "kernel", "compiled"),
    [
        ("Torch-Compiled Region: 0/0", GEMM, True),
        ("CompiledFunctionBackward", GEMM, True),
        ("/tmp/torchinductor_root/x.py(1): call", GEMM, True),
        ("forward", "triton_poi_fused_add_0", True),
        ("forward", "triton_red_fused_sum_1", True),
        ("forward", "my_triton_poi_kernel", False),
        ("forward", GEMM, False),
    ],
)
def test_a_program_is_compiled_where_its_names_show_it(name: str, kernel: str, compiled: bool) -> None:
    assert is_compiled(_host(name, kernel)) == compiled


@pytest.mark.parametrize(
    ("kernel", "kind", "operator", "engine", "plain"),
    [
        ("vector_add(float*)", model.KERNEL, False, "nsys", True),
        ("vector_add(float*)", model.KERNEL, True, "nsys", False),
        ("vector_add(float*)", model.KERNEL, False, "jax.profiler", False),
        ("at::native::vectorized_elementwise_kernel<4>", model.KERNEL, False, "nsys", False),
        ("", model.MEMCPY, False, "nsys", False),
    ],
)
def test_a_plain_program_has_its_own_kernels_and_no_operator(
    kernel: str, kind: int, operator: bool, engine: str, plain: bool
) -> None:
    made = Tables()
    made.op(0, 10, kernel, kind=kind)
    made.host("main.py(1): f", 0, 1, kind=model.OPERATOR if operator else model.PYTHON)
    trace = made.trace()
    trace.engine = engine
    assert is_plain_program(trace) == plain


@pytest.mark.parametrize(("convolution", "language"), [(5, False), (4, True)])
def test_a_language_model_convolves_for_less_than_five_percent(convolution: int, language: bool) -> None:
    made = Tables()
    made.op(0, convolution, "implicit_convolve_sgemm")
    made.op(200, 300 - convolution, GEMM)
    made.op(400, 900, "implicit_convolve_sgemm", kind=model.MEMCPY)
    made.host("aten::embedding", 0, 1)
    assert is_language_model(made.trace(), serves=False) == language


def test_work_of_another_process_is_of_no_range_of_this_one() -> None:
    made = Work()
    made.run(10, GEMM, ranges=("decode",))
    made.call("cudaLaunchKernel", 50, 55, process=PID + 1, correlation=1)
    made.op(500, 530, process=PID + 1, correlation=1)
    found = time_breakdown(made.trace())
    assert found is not None
    assert {one.name: round(one.seconds * 1e9) for one in found.stages} == {"decode": 10, "neither": 30}
