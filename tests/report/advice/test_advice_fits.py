"""Required and forbidden advice of captures of known programs: both halves count, so that silence does not pass.

Each program is a few marks that such programs leave; each cause is what its steps lose time to. The product is the
table: what an expert asks of that cause in that program, and what is wrong to say there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.report.advice.table import ADVICE, Situation, advice_for, idle_fix
from llmtop.report.model import Report
from tests.support.traces import Capture

STEPS, PERIOD = 6, 20_000
FP32, BF16 = "ampere_sgemm_128x64_tn", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"
HIP_BF16 = "Cijk_Alik_Bljk_BBS_BH_MT256x128x64_MI16x16x1"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, 0>(int)"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>(float*, float*)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
H100, AMPERE, MI300 = "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 3060", "AMD Instinct MI300X"


@dataclass(frozen=True)
class Program:
    """What one kind of program leaves in a capture, and what is wrong to advise it, whatever its cause."""

    operators: tuple[str, ...]
    """Around its launches, one after the other."""
    forbidden: str
    kernels: tuple[str, ...] = (BF16,)
    gpu: str = H100
    step: str = "step"
    frame: str = ""
    by: str = "cudaLaunchKernel"


BACKWARD: Final = "autograd::engine::evaluate_function: MmBackward0"
SERVERS: Final = r"vLLM|SGLang|detokenis|requests"
COMPILE: Final = r"torch\.compile\(|torch\.compile,|torch\.compile joins"
PROGRAMS: Final = {
    "language training": Program(("aten::embedding", "aten::mm", BACKWARD), SERVERS),
    "image training": Program(
        ("aten::cudnn_convolution", BACKWARD), rf"{SERVERS}|tokenise|token ids|Balance by tokens"
    ),
    "compiled training": Program(
        ("aten::embedding", "Torch-Compiled Region: 0/0", BACKWARD),
        rf"{SERVERS}|{COMPILE}",
        kernels=(BF16, "triton_poi_fused_add_1"),
    ),
    "training on AMD": Program(
        ("aten::embedding", "aten::mm", BACKWARD),
        rf"{SERVERS}|nvidia-smi|\bncu\b|CUDA graph|cudaMalloc",
        kernels=(HIP_BF16,),
        gpu=MI300,
        by="hipLaunchKernel",
    ),
    "serving": Program(
        ("aten::mm",),
        r"DataLoader|optimizer|gradient",
        kernels=(BF16, "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(int)"),
        step="step[DECODE bs={}]",
    ),
    "image generation": Program(
        ("aten::mm",), rf"{SERVERS}|DataLoader|optimizer|token", frame="diffusers/models/unet.py(916): forward"
    ),
    "CUDA program": Program(
        (), rf"{SERVERS}|DataLoader|optimizer|torch|micro-batch", kernels=("advance_particles", "reduce_energy")
    ),
}


def _capture(program: Program, fill: Callable[[Capture, Program, int, float], None]) -> Capture:
    made = Capture()
    for step in range(STEPS):
        begin = float(step * PERIOD)
        made.range(program.step.format(step), begin, begin + PERIOD)
        if program.frame:
            made.frame(program.frame, begin + 1, begin + 400)
        fill(made, program, step, begin)
    return made


def _work(
    made: Capture, program: Program, at: float, took: float, names: tuple[str, ...] = (), slow: float = 0.0
) -> float:
    """Kernels one after the other that take `took` in all; `slow` µs of launching before each."""
    names = names or program.kernels
    for index in range(12):
        launched = at if slow else at - 300 + index * 12
        operator = program.operators[index % len(program.operators)] if program.operators else ""
        if operator:
            arguments = {"Sequence number": 7} if operator == BACKWARD else {}
            made.operator(operator, launched - 2, launched + (slow or 8), **arguments)
        at += slow
        length = took / 12
        made.kernel(
            at, at + length, launched=launched, took=slow or 4, name=names[index % len(names)], by=program.by
        )
        at += length
    return at


def _launching(made: Capture, program: Program, _: int, begin: float) -> None:
    for part in range(6):
        _work(made, program, begin + 400 + part * 3_200, 60, slow=255)


def _loading(made: Capture, program: Program, _: int, begin: float) -> None:
    made.range("dataload", begin + 1, begin + 12_000)
    _work(made, program, begin + 12_400, 7_000)


def _waiting(made: Capture, program: Program, _: int, begin: float) -> None:
    at = begin + 400
    for _part in range(6):
        end = _work(made, program, at, 1_800)
        if program.operators:
            made.operator("aten::_local_scalar_dense", end - 1_700, end + 10)
        made.call(
            "cudaStreamSynchronize" if "hip" not in program.by else "hipStreamSynchronize", end - 1_690, end + 5
        )
        at = end + 1_350


def _copying(memory: str) -> Callable[[Capture, Program, int, float], None]:
    def fill(made: Capture, program: Program, _: int, begin: float) -> None:
        made.copy(begin + 20, begin + 12_000, 60 << 20, memory=memory, launched=begin + 10)
        _work(made, program, begin + 12_050, 7_000)

    return fill


def _computing(*names: str) -> Callable[[Capture, Program, int, float], None]:
    def fill(made: Capture, program: Program, _: int, begin: float) -> None:
        _work(made, program, begin + 400, 19_550, names)

    return fill


def _communicating(made: Capture, program: Program, _: int, begin: float) -> None:
    end = _work(made, program, begin + 400, 9_000)
    made.kernel(end, end + 10_000, launched=begin + 380, name=NCCL, by=program.by)


CAUSES: Final = {
    "launching": _launching,
    "loading": _loading,
    "waiting": _waiting,
    "pageable copies": _copying("Pageable"),
    "pinned copies": _copying("Pinned"),
    "fp32 products": _computing(FP32),
    "elementwise work": _computing(BF16, ADD, ADD, ADD),
    "attention in parts": _computing(BF16, SOFTMAX, BF16),
    "one rank of several": _communicating,
}
REQUIRED: Final[dict[str, dict[str, str]]] = {
    "launching": {
        "": r"reduce-overhead|CUDA graph|HIP graph",
        "compiled training": r"compiled already",
        "serving": r"decode step as a CUDA graph",
        "image generation": r"replay a forward pass",
        "CUDA program": r"cudaGraphLaunch",
    },
    "loading": {
        "": r"num_workers",
        "serving": r"requests",
        "image generation": r"Prepare inputs in other processes",
        "CUDA program": r"in another thread",
    },
    "waiting": {
        "": r"\.item\(\)",
        "CUDA program": r"one cudaStreamSynchronize before the host reads",
    },
    "pageable copies": {"": r"[Pp]inned memory|pin_memory"},
    "pinned copies": {"": r"pinned memory already", "CUDA program": r"cudaMemcpyAsync"},
    "fp32 products": {"": r"TF32|bfloat16|bf16"},
    "elementwise work": {
        "": r"torch\.compile joins",
        "compiled training": r"compiled already",
    },
    "attention in parts": {"": r"scaled_dot_product_attention"},
    "one rank of several": {"": r"One rank alone cannot show whether"},
}
FORBIDDEN: Final = {
    "launching": r"num_workers",
    "loading": r"reduce-overhead",
    "waiting": r"num_workers|reduce-overhead",
    "pageable copies": r"from pinned memory already",
    "pinned copies": r"a pageable copy|Copy from pinned memory and beside",
    "fp32 products": r"ceiling is compute \(tensor cores\)|num_workers|reduce-overhead",
    "elementwise work": r"num_workers|scaled_dot_product|reduce-overhead'\) or",
    "attention in parts": r"num_workers|reduce-overhead",
    "one rank of several": r"DDP\(|FSDP|NVLink|reduce-overhead",
}
_NO_PRODUCTS: Final = ("fp32 products", "elementwise work", "attention in parts", "one rank of several")
_OF_AMPERE: Final = ("fp32 products",)
TABLE: Final = [
    (program, cause)
    for program in PROGRAMS
    for cause in CAUSES
    if not (program == "CUDA program" and cause in _NO_PRODUCTS)
    and not (program == "training on AMD" and cause in _OF_AMPERE)
]


def _said(report: Report) -> str:
    advice = (f"{one.summary}\n{one.fix}\n{one.next}\n{one.confirm}" for one in report.findings)
    return "\n".join([report.summary, report.roofline, *advice])


def test_the_table_has_enough_of_both_halves() -> None:
    assert len(TABLE) >= 58
    assert set(REQUIRED) == set(FORBIDDEN) == set(CAUSES)


@pytest.mark.parametrize(("name", "cause"), TABLE, ids=lambda value: value.replace(" ", "_"))
def test_the_advice_fits_program_and_cause(name: str, cause: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    made = _capture(program, CAUSES[cause])
    properties = {"deviceProperties": [{"id": 0, "name": program.gpu}]}
    said = _said(analyze_trace(made.chrome_trace(tmp_path, **properties)))
    required = REQUIRED[cause].get(name, REQUIRED[cause][""])
    assert re.search(required, said), f"missing: {required}\n{said}"
    for forbidden in (program.forbidden, FORBIDDEN[cause]):
        found = re.search(forbidden, said)
        assert found is None, f"said: {found and found[0]}\n{said}"


def test_a_gpu_of_no_datasheet_is_told_of_its_tensor_cores(tmp_path: Path) -> None:
    made = _capture(PROGRAMS["language training"], _computing(FP32))
    report = analyze_trace(made.chrome_trace(tmp_path, deviceProperties=[{"id": 0, "name": AMPERE}]))
    found = next(one for one in report.findings if one.id == "fp32_matrix")
    assert "NVIDIA GeForce RTX 3060 has them for tf32 and bf16" in found.summary


def test_a_forward_much_longer_than_its_backward_is_a_finding(tmp_path: Path) -> None:
    made = Capture()
    for step in range(STEPS):
        begin = step * PERIOD
        made.range("step", begin, begin + PERIOD)
        for at, took, operator in (
            (400, 15_000, "aten::mm"),
            (15_450, 2_200, BACKWARD),
            (17_700, 2_100, BACKWARD),
        ):
            made.operator(operator, begin + at - 300, begin + at - 280, **{"Sequence number": 7})
            made.kernel(begin + at, begin + at + took, launched=begin + at - 295, name=BF16)
    found = {one.id: one for one in analyze_trace(made.chrome_trace(tmp_path)).findings}
    assert "no_grad" in found["slow_forward"].fix
    assert "backward usually takes about twice as long" in found["slow_forward"].summary


def test_few_launches_are_not_told_to_become_fewer(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(STEPS):
        begin = step * PERIOD
        capture.range("step", begin, begin + PERIOD)
        for kernel in range(9):
            at = begin + 500 + kernel * 2_000
            capture.kernel(at, at + 1_400, launched=at - 10)
    found = {one.id: one for one in analyze_trace(capture.trace(tmp_path)).findings}["launch_bound"]
    assert found.fix.startswith("Launching 9 kernels takes little")


def test_the_time_that_the_host_was_in_an_operator_is_a_share_and_no_most(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(STEPS):
        begin = step * PERIOD
        capture.range("step", begin, begin + PERIOD)
        for kernel in range(20):
            at = begin + kernel * 1000
            capture.operator("aten::fill_", at + 300, at + 600)
            capture.kernel(at + 800, at + 1000, launched=at + 790)
    found = {one.id: one for one in analyze_trace(capture.chrome_trace(tmp_path)).findings}["launch_bound"]
    assert re.search(r"the host was in aten::fill_ for 3\d % of that time", found.summary), found.summary
    assert "mostly" not in found.summary


def test_the_phase_of_input_is_the_evidence_not_the_one_with_most_idle_time(tmp_path: Path) -> None:
    capture = Capture()
    for step in range(STEPS):
        begin = step * PERIOD
        capture.range("step", begin, begin + PERIOD)
        capture.range("dataload", begin + 100, begin + 6_000)
        capture.kernel(begin + 6_100, begin + 6_600, launched=begin + 6_050)
        capture.kernel(begin + 19_000, begin + 19_900, launched=begin + 18_990)
    found = {one.id: one for one in analyze_trace(capture.trace(tmp_path)).findings}["input_bound"]
    assert found.evidence["phase"] == "dataload"


def test_advice_on_idle_time_fits_what_was_seen_of_it() -> None:
    fix = ADVICE["idle"].fix
    assert idle_fix(fix, 0.0, 20.0, "") == fix.partition(" Where launched work waited: ")[0]
    assert idle_fix(fix, 20.0, 0.0, "").startswith("Launched work waited: look for cudaStreamWaitEvent")
    assert idle_fix(fix, 10.0, 10.0, "") == fix
    assert idle_fix(fix, 0.0, 20.0, "aten::copy_").startswith("See what aten::copy_ waits for")


def test_pinned_copies_are_not_to_become_pinned() -> None:
    advice = advice_for("h2d_bound", Situation(pinned=True))
    assert "pinned" not in advice.confirm
    assert "without CPU offload" in advice.fix
    assert "copies become pinned" in advice_for("h2d_bound", Situation()).confirm


def test_an_optimizer_is_advised_to_a_training_alone() -> None:
    assert "in a training a fused" in advice_for("launch_bound", Situation()).fix
    assert "optimizer" not in advice_for("launch_bound", Situation(workload="inference")).fix


TRANSPOSED: Final = (
    "sm80_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize256x64x32_stage3_warpsize4x1x1_g1_"
    "tensor16x8x16_execute_kernel_cudnn_infer"
)
"""What cuDNN runs a transposed convolution forward by."""


def test_a_transposed_convolution_is_no_training(tmp_path: Path) -> None:
    program = Program(("aten::mm",), "", kernels=(BF16, TRANSPOSED))
    made = _capture(program, _launching)
    report = analyze_trace(made.chrome_trace(tmp_path, deviceProperties=[{"id": 0, "name": H100}]))
    assert report.makeup is not None
    assert report.makeup.workload == "inference"
    assert "optimizer" not in _said(report)


def test_an_operator_of_a_server_is_advised_as_serving_also_where_parts_are_compiled(tmp_path: Path) -> None:
    program = Program(("vllm::moe_forward", "aten::mm"), "", kernels=(BF16, "triton_poi_fused_add_1"))
    said = _said(analyze_trace(_capture(program, _launching).chrome_trace(tmp_path)))
    assert "without --enforce-eager" in said


def test_results_are_copied_into_pinned_buffers_not_loaded_from_them(tmp_path: Path) -> None:
    def reading(made: Capture, program: Program, _: int, begin: float) -> None:
        end = _work(made, program, begin + 400, 7_000)
        made.copy(end, end + 12_000, 60 << 20, memory="Pageable", launched=end - 10, direction="DtoH")

    report = analyze_trace(_capture(PROGRAMS["language training"], reading).chrome_trace(tmp_path))
    found = {one.id: one for one in report.findings}["pageable_copies"]
    assert "device-to-host" in found.summary
    assert "Copy results into a pinned buffer" in found.fix
    assert "DataLoader" not in found.fix


def test_a_program_without_python_is_started_by_its_own_name(tmp_path: Path) -> None:
    trace = _capture(PROGRAMS["CUDA program"], _launching).chrome_trace(tmp_path)
    for name, command, stacks in (
        ("./bin/nbody", "./nbody", "nsys profile"),
        ("/usr/bin/python3.11", "python train.py", "llmtop capture --engine py-spy"),
    ):
        trace.process_names = dict.fromkeys(trace.ranges.process.tolist(), name)
        found = {one.id: one for one in analyze_trace(trace).findings}
        assert found["launch_bound"].next.startswith(stacks)
        assert command in found["hot_kernel"].next


def test_without_steps_no_call_is_counted_per_step(tmp_path: Path) -> None:
    made, at = Capture(), 0.0
    for _part in range(200):
        made.kernel(at, at + 1_000, launched=at - 20)
        made.call("cudaStreamSynchronize", at - 10, at + 1_010)
        at += 1_400
    found = {one.id: one for one in analyze_trace(made.trace(tmp_path)).findings}["sync_bound"]
    assert "waiting_calls_per_step" not in found.evidence


def test_convolutions_are_advised_where_some_ran() -> None:
    for has_convolutions in (True, False):
        fix = advice_for("elementwise", Situation(workload="training", convolutions=has_convolutions)).fix
        assert ("channels_last" in fix) == has_convolutions
