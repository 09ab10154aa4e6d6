"""What an expert looks for first, and that its advice fits the GPU and the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze_trace
from llmtop.analysis.work.time_breakdown import time_breakdown
from llmtop.naming.kernel_names import functor_of, matrix_type
from llmtop.report.advice.table import ADVICE, Situation, advice_for
from llmtop.report.model import Finding, Report
from tests.support.traces import Capture, steady

FP32 = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute"
BF16 = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(int)>(int)"


def _gpu(name: str) -> dict[str, object]:
    return {"deviceProperties": [{"id": 0, "name": name, "numSms": 132}]}


def _training(kernels: list[tuple[str, float]], steps: int = 6) -> Capture:
    """Steps of 10 ms that keep the GPU busy with kernels of these names and lengths in µs."""
    made = Capture()
    for step in range(steps):
        begin = step * 10_000
        made.range("step", begin, begin + 10_000)
        at = begin + 5_000.0
        for index, (name, took) in enumerate(kernels):
            made.kernel(at, at + took, launched=begin + 10 + index * 10, name=name)
            at += took
    return made


def test_a_kernel_of_little_time_is_no_finding(tmp_path: Path) -> None:
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    found = _findings(_training([(nccl, 9_000), (BF16, 300)]), tmp_path, "NVIDIA A100-SXM4-80GB")
    assert "hot_kernel" not in found, "3 % of kernel time"
    (tmp_path / "more").mkdir()
    found = _findings(_training([(nccl, 8_000), (BF16, 1_000)]), tmp_path / "more", "NVIDIA A100-SXM4-80GB")
    assert "11.1 % of kernel time" in found["hot_kernel"].summary


def test_generated_kernels_of_a_library_are_not_the_programs_own(tmp_path: Path) -> None:
    name = "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_swiGlu_sm100f"
    found = _findings(_training([(name, 9_900)]), tmp_path, "NVIDIA B200")["hot_kernel"]
    assert "own" not in found.summary


def _findings(capture: Capture, folder: Path, gpu: str) -> dict[str, Finding]:
    report = analyze_trace(capture.chrome_trace(folder, **_gpu(gpu)))
    return {finding.id: finding for finding in report.findings}


def test_fp32_products_are_named_with_what_the_tensor_cores_would_do(tmp_path: Path) -> None:
    capture = _training([(FP32, 8_700), ("softmax_kernel", 1_300)])
    found = _findings(capture, tmp_path, "NVIDIA A100-SXM4-80GB")["fp32_matrix"]
    assert found.severity == "warning"
    assert found.share_pct == pytest.approx(87, abs=0.1)
    assert "8.0 times in tf32 and 16.0 times in bf16" in found.summary
    assert "set_float32_matmul_precision" in found.fix
    assert found.next.startswith("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 ")
    assert found.saves_at_most_ms == pytest.approx(8.7 * (1 - 19.5 / 312), rel=0.01)


def test_products_of_some_microseconds_are_not_told_of_tensor_cores(tmp_path: Path) -> None:
    gpu = "NVIDIA A100-SXM4-80GB"
    tiny = [(FP32, 6.0)] * 500
    report = analyze_trace(_training([*tiny, ("softmax_kernel", 1_000)]).chrome_trace(tmp_path, **_gpu(gpu)))
    assert "fp32_matrix" not in {finding.id for finding in report.findings}
    assert "TF32" not in _said(report) + report.roofline
    (tmp_path / "half").mkdir()
    short = FP32.replace("128x128", "32x32")
    found = _findings(_training([*[(short, 6.0)] * 500, (FP32, 3_000)]), tmp_path / "half", gpu)["fp32_matrix"]
    assert "50 % of these products gain little" in found.summary
    assert found.saves_at_most_ms == pytest.approx(3.0 * (1 - 19.5 / 312), rel=0.01), "of the long ones alone"


@pytest.mark.parametrize(("m", "told"), [(1, False), (4096, True)])
def test_products_that_the_memory_limits_are_not_told_of_tensor_cores(tmp_path: Path, m: int, told: bool) -> None:
    """The datasheet of the A100: 19.5 TFLOP/s in fp32 and 2.0 TB/s, so 10 FLOP a byte. A row times a matrix of
    4096 x 4096 does 33.5 MFLOP on 67 MB, half a FLOP a byte; 4096 rows do 683."""
    made = Capture()
    for step in range(6):
        begin = step * 10_000
        made.range("step", begin, begin + 10_000)
        shapes = {"Input Dims": [[m, 4096], [4096, 4096]], "Input type": ["float", "float"]}
        made.operator("aten::mm", begin + 5, begin + 30, **shapes)
        made.kernel(begin + 100, begin + 9_900, launched=begin + 10, name=FP32)
    found = _findings(made, tmp_path, "NVIDIA A100-SXM4-80GB")
    assert ("fp32_matrix" in found) == told


@pytest.mark.parametrize(
    ("kernel", "gpu"),
    [
        (BF16, "NVIDIA A100-SXM4-80GB"),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align4>(int)",
            "NVIDIA A100-SXM4-80GB",
        ),
        (FP32, "Tesla P100-PCIE-16GB"),
        (FP32, "a GPU of nobody's"),
    ],
)
def test_nothing_is_said_where_no_tensor_core_lies_idle(tmp_path: Path, kernel: str, gpu: str) -> None:
    assert "fp32_matrix" not in _findings(_training([(kernel, 9_900)]), tmp_path, gpu)


def test_v100_is_not_told_of_tf32(tmp_path: Path) -> None:
    found = _findings(_training([(FP32, 9_900)]), tmp_path, "Tesla V100-SXM2-32GB")["fp32_matrix"]
    assert "tf32" not in found.summary
    assert "8.0 times in fp16" in found.summary
    assert found.next == ""


def test_copies_and_casts_are_told_from_a_tenth_of_device_time(tmp_path: Path) -> None:
    gpu = "NVIDIA H100 80GB HBM3"
    assert "copies_casts" not in _findings(_training([(BF16, 9_200), (COPY, 700)]), tmp_path, gpu)
    found = _findings(_training([(BF16, 7_900), (COPY, 2_000)]), tmp_path, gpu)["copies_casts"]
    assert found.share_pct == pytest.approx(100 * 2_000 / 9_900, abs=0.1)
    assert found.severity == "info"


def test_a_template_is_named_by_its_functor_and_ncu_is_told_which_launches_hold_it(tmp_path: Path) -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::{}<{}>, std::array<char*, 3ul> >(int)"
    add, fill = name.format("CUDAFunctor_add", "float"), name.format("FillFunctor", "float")
    report = analyze_trace(_training([(add, 6_000), (fill, 1_900), (fill, 1_900)]).chrome_trace(tmp_path))
    rows = {row.name: row for row in report.kernels}
    assert set(rows) == {
        "vectorized_elementwise_kernel: CUDAFunctor_add<float>",
        "vectorized_elementwise_kernel: FillFunctor<float>",
    }
    assert {row.short_name for row in report.kernels} == {"vectorized_elementwise_kernel"}
    hot = next(finding for finding in report.findings if finding.id == "hot_kernel")
    assert hot.evidence["launches_per_step"] == 1
    assert "--kernel-name-base function --kernel-name 'regex:^vectorized_elementwise_kernel$'" in hot.next
    assert "--launch-skip 9 --launch-count 3 " in hot.next, "every third launch of that name is the one"


def test_without_steps_no_launches_a_step_are_made_up(tmp_path: Path) -> None:
    made = Capture()
    for index in range(40):
        made.kernel(index * 20, index * 20 + 19, launched=index * 20 - 10)
    report = analyze_trace(made.chrome_trace(tmp_path))
    assert report.steps.count == 0
    hot = next(finding for finding in report.findings if finding.id == "hot_kernel")
    assert "launches_per_step" not in hot.evidence
    assert "--launch-skip" not in hot.next, "how many launches warm up cannot be told"
    assert "--launch-count 5 " in hot.next


def _said(report: Report) -> str:
    return "\n".join(f"{finding.fix}\n{finding.next}\n{finding.confirm}" for finding in report.findings)


def _launch_bound(by: str, names: tuple[str, ...], ranges: str = "step") -> Capture:
    """Short kernels that are launched too slowly."""
    made = Capture()
    for step in range(6):
        made.range(ranges.format(step), step * 10_000, step * 10_000 + 9_990)
        for index in range(200):
            at = step * 10_000 + index * 49
            made.kernel(at + 10, at + 13, launched=at, took=40, by=by, name=names[index % len(names)])
    return made


def test_an_amd_gpu_gets_no_tool_of_nvidia_s(tmp_path: Path) -> None:
    names = ("Cijk_Ailk_Bljk_BBS_BH_MT256x32x64_MI16x16x1", "ck_attention_bwd_kernel")
    capture = _launch_bound("hipLaunchKernel", names)
    report = analyze_trace(capture.chrome_trace(tmp_path, **_gpu("AMD Instinct MI300X")))
    assert report.makeup is not None
    assert report.makeup.vendor == "AMD"
    assert report.verdict == "launch_bound"
    said = _said(report) + report.roofline
    for word in ("ncu", "nsys", "nvidia-smi", "CUDA graph", "tensor cores can tell"):
        assert word not in said, word
    assert "rocprof-compute profile --name llmtop-kernel" in said


def test_a_server_is_told_nothing_of_data_loaders(tmp_path: Path) -> None:
    made = Capture()
    for step in range(6):
        made.range(f"step[DECODE bs={step}]", step * 10_000, step * 10_000 + 4_000)
        made.range("dataload", step * 10_000 + 4_000, step * 10_000 + 9_990)
        made.kernel(step * 10_000 + 100, step * 10_000 + 4_000, launched=step * 10_000 + 10, name=BF16)
    report = analyze_trace(made.chrome_trace(tmp_path, **_gpu("NVIDIA H100 80GB HBM3")))
    assert report.makeup is not None
    assert report.makeup.workload == "inference"
    assert report.findings[0].id == "input_bound"
    assert "DataLoader" not in _said(report)


def test_who_replays_graphs_is_not_told_to_use_them(tmp_path: Path) -> None:
    capture = _launch_bound("cudaLaunchKernel", (BF16, "flash_bwd_kernel"))
    plain = analyze_trace(capture.chrome_trace(tmp_path))
    assert "CUDA graphs replay" in _said(plain)
    capture.kernel(70_000, 70_010, launched=69_000, by="cudaGraphLaunch")
    graphs = analyze_trace(capture.chrome_trace(tmp_path))
    assert graphs.makeup is not None
    assert graphs.makeup.graph_launches == 1
    assert graphs.verdict == plain.verdict == "launch_bound"
    assert "CUDA graphs replay a whole step" not in _said(graphs)
    assert "replayed already" in _said(graphs)


@pytest.mark.parametrize("kind", list(ADVICE))
@pytest.mark.parametrize("vendor", ["NVIDIA", "AMD", None])
@pytest.mark.parametrize("workload", ["training", "inference", None])
def test_no_advice_needs_a_process_that_may_be_gone(kind: str, vendor: str | None, workload: str | None) -> None:
    for graphs in (False, True):
        found = advice_for(kind, Situation(vendor, workload, graphs))  # type: ignore[arg-type]
        assert "{pid}" not in found.next
        assert found.confirm
        if workload == "inference":
            assert "DataLoader" not in found.fix
        if vendor == "AMD" and kind != "records_lost":  # those are lost by nsys alone
            assert not any(word in found.fix + found.next for word in ("ncu ", "nsys ", "nvidia-smi"))


def test_prefill_and_decode_are_told_apart(tmp_path: Path) -> None:
    made = Capture()
    spans = (
        ("execute_4096_context_4(sq4096sk4096)_generation_0(sq0sk0)", 0, 700),
        ("execute_32_context_0(sq0sk0)_generation_32(sq32sk9000)", 1_000, 200),
        ("execute_99_context_1(sq67sk67)_generation_32(sq32sk9000)", 2_000, 50),
        ("sampling", 3_000, 50),
    )
    for name, begin, took in spans:
        made.range(name, begin, begin + 100)
        made.kernel(begin + 120, begin + 120 + took, launched=begin + 10, name=BF16)
    found = time_breakdown(made.chrome_trace(tmp_path))
    assert found is not None
    assert found.workload == "inference"
    assert {part.name: round(part.share_pct) for part in found.stages} == {
        "prefill": 70,
        "decode": 20,
        "prefill and decode in one batch": 5,
        "neither": 5,
    }


def test_a_capture_that_tells_nothing_has_no_workload(tmp_path: Path) -> None:
    found = time_breakdown(steady().trace(tmp_path))
    assert found is not None
    assert (found.workload, found.passes, found.stages) == (None, (), ())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_128x64_nn", "fp32"),
        ("ampere_sgemm_32x128_tn", "fp32"),
        (FP32, "fp32"),
        ("cutlass_80_simt_sgemm_128x128_8x4_nn_align1", "fp32"),
        ("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1>(int)", "fp32"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128", "tf32"),
        ("cutlass_tensorop_s1688fprop_optimized_tf32_128x128_32x4_nhwc_align8", "tf32"),
        (BF16, "bf16"),
        ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(int)", "bf16"),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "bf16"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x32x64_MI16x16x1", "bf16"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn", "fp16"),
        ("a_kernel_of_somebody", None),
    ],
)
def test_the_type_of_a_product_is_in_its_kernel_s_name(name: str, expected: str | None) -> None:
    assert matrix_type(name) == expected


_WRAPPED = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, "
)
_MUL = "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{_WRAPPED}c10::BFloat16, {_MUL}", "MulFunctor<BFloat16>"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<long, at::native::func_wrapper_t<long, "
            "at::native::sum_functor<long, long, long>::operator()(at::TensorIterator&)> > >(int)",
            "sum_functor<long>",
        ),
        (
            "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)",
            "AdamFunctor<float>",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, "
            "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
            "at::native::GeluType)::{lambda()#2}::operator()() const::{lambda(c10::BFloat16)#1}, int>(int)",
            "GeluCUDAKernelImpl<BFloat16>",
        ),
        (BF16, None),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)", None),
    ],
)
def test_templates_say_what_they_compute(name: str, expected: str | None) -> None:
    assert functor_of(name) == expected


def answers(prompts: int, tokens: int, *, attention: bool = True, prefix: int = 0) -> Capture:
    """What answers so many prompts with so many tokens each, of which no range tells: the first `prefix` passes
    belong to a prompt that was read before."""
    made, at = Capture(), 0.0

    def forward(took: float, kernels: tuple[str, ...]) -> None:
        nonlocal at
        for name in (*kernels, "void at::native::reduce_kernel<512, 1, ReduceOp<float, ArgMaxOps<float>>>"):
            made.kernel(at + 10, at + 10 + took, launched=at, name=name)
            at += 10 + took

    decode = ("void gemv2T_kernel_val<bf16>", "flash_fwd_splitkv_kernel" if attention else "gemvx_kernel")
    for _ in range(prefix):
        forward(5, decode)
    for _ in range(prompts):
        at += 1_000
        forward(100, ("ampere_bf16_s16816gemm_bf16_128x128", "flash_fwd_kernel"))
        for _ in range(tokens - 1):
            forward(5, decode)
    return made


@pytest.mark.parametrize("kind", ["chrome", "nsys"])
@pytest.mark.parametrize(("prompts", "tokens", "prefix"), [(3, 10, 0), (1, 12, 0), (2, 6, 5)])
def test_prompts_and_tokens_are_told_apart_without_a_range(
    kind: str, prompts: int, tokens: int, prefix: int, tmp_path: Path
) -> None:
    made = answers(prompts, tokens, prefix=prefix)
    found = time_breakdown(made.chrome_trace(tmp_path) if kind == "chrome" else made.trace(tmp_path))
    assert found is not None
    assert found.workload == "inference"
    assert found.stages_by.startswith("inferred")
    stages = {part.name: part for part in found.stages}
    decoded = prompts * (tokens - 1) + max(0, prefix - 1)  # a first one began before the capture, perhaps
    assert (stages["prefill"].passes, stages["decode"].passes) == (prompts, decoded)
    assert stages["prefill"].seconds == pytest.approx(prompts * 300e-6)
    assert stages["decode"].seconds == pytest.approx(decoded * 15e-6)
    assert stages["prefill"].pass_seconds == pytest.approx(320e-6)
    assert stages["decode"].pass_seconds == pytest.approx(45e-6)
    assert sum(part.share_pct for part in found.stages) == pytest.approx(100)


def test_what_only_repeats_is_no_prompt_with_its_tokens(tmp_path: Path) -> None:
    for place, made in enumerate((answers(0, 0, prefix=20), answers(9, 1))):
        folder = tmp_path / str(place)
        folder.mkdir()
        found = time_breakdown(made.trace(folder))
        assert found is not None
        assert found.stages == ()
    trained = answers(3, 10)
    trained.kernel(90_000, 90_100, launched=89_000, name="void multi_tensor_apply_kernel<FusedAdamMathFunctor>")
    found = time_breakdown(trained.trace(tmp_path))
    assert found is not None
    assert (found.workload, found.stages) == ("training", ())


@pytest.mark.parametrize(("shares", "named"), [((700, 300), "aten::mm"), ((400, 350), "")])
def test_an_operator_is_named_that_has_most_of_the_kernel_s_time(
    shares: tuple[float, float], named: str, tmp_path: Path
) -> None:
    made = Capture()
    for step in range(6):
        begin = step * 2_000
        made.range("step", begin, begin + 2_000)
        took = (*shares, 1_000 - sum(shares))
        at = begin + 100.0
        for index, (operator, length) in enumerate(zip(("aten::mm", "aten::bmm", ""), took, strict=True)):
            launched = begin + 10 + index * 10
            if operator:
                made.operator(operator, launched - 1, launched + 7)
            made.kernel(at, at + length, launched=launched, name=BF16)
            at += length
    report = analyze_trace(made.chrome_trace(tmp_path))
    assert [row.operator for row in report.kernels] == [named]


def test_the_ncu_command_of_a_cutlass_kernel_fits_it_alone(tmp_path: Path) -> None:
    name = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_{}>(T1::Params)"
    kernels = [(name.format("128x64_tn"), 6_000.0), (name.format("64x64_nn"), 3_800.0)]
    report = analyze_trace(_training(kernels).chrome_trace(tmp_path))
    assert {row.name for row in report.kernels} == {
        "cutlass_80_tensorop_bf16_s16816gemm_128x64_tn",
        "cutlass_80_tensorop_bf16_s16816gemm_64x64_nn",
    }
    hot = next(finding for finding in report.findings if finding.id == "hot_kernel")
    assert "--kernel-name-base demangled" in hot.next
    assert "Kernel2<.*" in hot.next
    assert "128x64_tn" in hot.next
    assert "--launch-skip 3 --launch-count 1" in hot.next
