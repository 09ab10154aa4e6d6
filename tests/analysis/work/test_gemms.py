"""Matrix products: sizes of inputs, FLOPs and bytes by hand, rates beside a roof, and those in fp32."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from llmtop.analysis.work.gemms import gemm_times, gpu_roofs
from llmtop.analysis.work.small_products import memory_share, short_share
from llmtop.analysis.work.tensor_shapes import Gemm, moved_bytes, parse_gemm, parse_inputs, shape_text
from llmtop.report.device_time import GemmTime, Roof
from llmtop.report.model import KernelTime, KernelVariant
from llmtop.trace import model
from tests.support.tables import Tables

BF16, FP32, FP8, LONG = "c10::BFloat16", "float", "c10::Float8_e4m3fn", "long int"


def _inputs(shapes: list[object], kinds: list[str]) -> str:
    return f"{json.dumps(shapes, separators=(',', ':'))} {json.dumps(kinds, separators=(',', ':'))}"


@pytest.mark.parametrize(
    ("operator", "shapes", "size"),
    [
        ("aten::mm", [[2, 3], [3, 5]], (1, 2, 5, 3)),
        ("aten::bmm", [[7, 2, 3], [7, 3, 5]], (7, 2, 5, 3)),
        ("aten::addmm", [[5], [2, 3], [3, 5]], (1, 2, 5, 3)),
        ("aten::baddbmm", [[7, 2, 5], [7, 2, 3], [7, 3, 5]], (7, 2, 5, 3)),
        ("aten::_scaled_mm", [[2, 3], [3, 5], []], (1, 2, 5, 3)),
        ("aten::mm", [[2, 3], [4, 5]], None),  # inner sizes differ
        ("aten::bmm", [[7, 2, 3], [8, 3, 5]], None),  # batches differ
        ("aten::mm", [[2, 3]], None),
        ("aten::mm", [[2, 3], []], None),
        ("aten::mm", [[3], [3]], None),
        ("aten::mm", [[1, 7, 2, 3], [1, 7, 3, 5]], None),
        ("aten::mm", [[2, 3], [1, 3, 5]], None),
        ("aten::mm", [[0, 3], [3, 5]], None),
        ("aten::mul", [[2, 3], [3, 5]], None),
    ],
)
def test_a_product_s_size_is_that_of_its_factors(
    operator: str, shapes: list[object], size: tuple[int, int, int, int] | None
) -> None:
    found = parse_gemm(operator, _inputs(shapes, [BF16] * len(shapes)))
    assert found == (None if size is None else Gemm(*size, "bf16"))


def test_flops_and_least_bytes_of_a_product() -> None:
    made = Gemm(batch=7, m=2, n=5, k=3, dtype="bf16")
    assert made.flops == 7 * 2 * 5 * 3 * 2
    assert made.bytes(4, 2) == 7 * ((2 * 3 + 3 * 5) * 2 + 2 * 5 * 4)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[[2,3],[]] ["float","Scalar"]', (((2, 3), "fp32"), (None, None))),
        ('[[2,3],[]] ["float","double"]', (((2, 3), "fp32"), ((), "fp64"))),
        ('[[[1],[2]],[4]] ["TensorList","c10::Half"]', ((None, None), ((4,), "fp16"))),
        ("[[2]] []", (((2,), None),)),
        ('[[2],[3]] ["float"]', (((2,), "fp32"), ((3,), None))),
        ('[[-1],[true],[281474976710656]] ["float","float","float"]', ((None, "fp32"),) * 3),
        ('[[0],[281474976710655]] ["long int","bool"]', (((0,), "int64"), ((281474976710655,), "bool"))),
        ("broken [", ()),
        ("", ()),
        ("{} []", ()),
    ],
)
def test_inputs_are_read_by_place(text: str, found: object) -> None:
    assert parse_inputs(text) == found


@pytest.mark.parametrize(
    ("shapes", "kinds", "text"),
    [
        ([[8944, 1024], [1024, 2816]], [BF16, BF16], "8944x1024, 1024x2816 bf16"),
        ([[2, 3], [4]], [BF16, FP32], "2x3 bf16, 4 fp32"),
        ([[], [2]], [FP32, FP32], "scalar, 2 fp32"),
        ([[5], [4], [3]], [FP32, "of another kind", FP32], "5 fp32, 4 ?, 3 fp32"),
        ([[5], [4]], ["of another kind", BF16], "5 ?, 4 bf16"),
        ([[5], [4]], ["of another kind"] * 2, "5, 4"),
        ([[[1], [2]], [4]], ["TensorList", FP32], "2 tensors, 4 fp32"),
        ([[[1], [2], [3]]], ["TensorList"], "3 tensors"),
        ([[]], ["Scalar"], ""),
    ],
)
def test_inputs_are_written_for_a_reader(shapes: list[object], kinds: list[str], text: str) -> None:
    assert shape_text(_inputs(shapes, kinds)) == text


@pytest.mark.parametrize(("sizes", "cut"), [(20, False), (21, True)])
def test_a_long_text_of_inputs_is_cut_at_120_characters(sizes: int, cut: bool) -> None:
    """Each size of 10000 takes 5 characters and its "x": 19 of them and a last of one digit more make 120."""
    shape = [10_000] * (sizes - 1) + [10_000_0] * 1
    text = shape_text(_inputs([shape], ["Scalar"]))
    assert len("x".join(map(str, shape))) == 6 * sizes
    assert len(text) == 120
    assert text.endswith("…") == cut


@pytest.mark.parametrize(
    ("operator", "shapes", "kinds", "moved"),
    [
        ("aten::fill_", [[8], [4]], [FP32, FP32], 8 * 4),
        ("aten::zero_", [[8]], [BF16], 8 * 2),
        ("aten::copy_", [[8], [8], [8]], [BF16, FP32, FP32], 8 * 2 + 8 * 4),
        ("aten::add_", [[8], [8]], [FP32, BF16], 8 * 4 + 8 * 2 + 8 * 4),
        ("aten::mul", [[8, 1], [1, 4]], [BF16, BF16], 16 + 8 + 8 * 4 * 2),
        ("aten::mul", [[8], [3]], [BF16, BF16], None),  # do not fit
        ("aten::mul", [[8], [1]], [BF16, "unknown"], None),
        ("aten::mul", [[]], ["Scalar"], None),
        ("aten::mul", [[0, 4], [1, 4]], [BF16, BF16], 0 + 8 + 0),
        ("aten::gt", [[8], [8]], [FP32, FP32], 32 + 32 + 8),
        ("aten::isnan", [[8]], [FP32], 32 + 8),
        ("aten::sin", [[8], []], [LONG, "double"], 64 + 8 + 8 * 4),
        ("aten::sin", [[8], []], [BF16, "double"], 16 + 8 + 8 * 2),
        ("aten::sin", [[], []], [FP32, "double"], 4 + 8 + 8),
        ("aten::cat", [[8]], [FP32], None),
    ],
)
def test_an_elementwise_operator_reads_its_inputs_and_writes_its_result(
    operator: str, shapes: list[object], kinds: list[str], moved: int | None
) -> None:
    assert moved_bytes(operator, _inputs(shapes, kinds)) == moved


H100 = model.TracedGpu(0, "NVIDIA H100 80GB HBM3")


def test_the_roof_of_an_h100_is_its_datasheet_s() -> None:
    """Dense, SXM: 989 TFLOP/s in bf16 and fp16, half of that in TF32, 1979 in fp8, 67 in fp32; 3.35 TB/s."""
    made = Tables()
    made.op(0, 10)
    (roof,) = gpu_roofs(made.trace(gpus={0: H100}))
    assert roof.name == "NVIDIA H100 80GB HBM3"
    assert roof.bytes_per_s == pytest.approx(3.35e12, rel=0.01)
    assert roof.flops_per_s["bf16"] == pytest.approx(989e12, rel=0.01)
    assert roof.flops_per_s["tf32"] == pytest.approx(989e12 / 2, rel=0.01)
    assert roof.flops_per_s["fp32"] == pytest.approx(67e12, rel=0.01)
    (roof,) = gpu_roofs(made.trace(gpus={0: replace(H100, dram_bytes_per_s=2e12)}))
    assert roof.bytes_per_s == 2e12, "what the tool gives comes first"


def test_equal_gpus_have_one_roof_and_unknown_ones_none() -> None:
    made = Tables()
    made.op(0, 10)
    made.op(0, 10, process=7)
    assert len(gpu_roofs(made.trace(gpus={0: H100}))) == 1
    assert gpu_roofs(made.trace(gpus={0: model.TracedGpu(0, "Imaginary 9000")})) == ()
    assert gpu_roofs(made.trace()) == ()


def _products(*rows: tuple[str, str, int, str], **fields: object) -> tuple[GemmTime, ...]:
    """Times of calls of (operator, inputs, ns of its kernel, kernel) on a roof of 100 TFLOP/s and 1 TB/s."""
    made = Tables()
    for number, (operator, inputs, took, kernel) in enumerate(rows):
        at = 10_000 * number
        made.host(operator, at, at + 100, inputs=inputs)
        made.call("cudaLaunchKernel", at + 10, at + 15, correlation=number)
        made.op(at + 20, at + 20 + took, kernel, correlation=number)
    roof = Roof(device=0, name="GPU", bytes_per_s=1e12, flops_per_s={"bf16": 100e12})
    return gemm_times(made.trace(gpus={0: H100}, **fields), (roof,))


SMALL = _inputs([[64, 128], [128, 256]], [BF16, BF16])


def test_a_product_s_rates_follow_from_its_shapes() -> None:
    """64 x 256 x 128: 4,194,304 FLOP; (64 128 + 128 256 + 64 256) 2 = 114,688 bytes; 36.57 FLOP a byte."""
    rows = [("aten::mm", SMALL, 100, "gemm_a"), ("aten::mm", SMALL, 300, "gemm_b")]
    (found,) = _products(*rows)
    assert (found.operator, found.m, found.n, found.k, found.batch) == ("aten::mm", 64, 256, 128, 1)
    assert (found.dtype, found.calls, found.kernel) == ("bf16", 2, "gemm_b")
    assert (found.flops, found.bytes) == (4_194_304, 114_688)
    assert found.seconds == pytest.approx(400e-9)
    assert found.mean_us == pytest.approx(0.2)
    rate = 2 * 4_194_304 / 400e-9
    assert found.tflops_per_s == pytest.approx(rate / 1e12)
    assert found.tb_per_s == pytest.approx(2 * 114_688 / 400e-9 / 1e12)
    assert found.peak_pct == pytest.approx(100 * rate / 100e12)
    assert found.bandwidth_pct == pytest.approx(100 * 2 * 114_688 / 400e-9 / 1e12)
    assert found.flops_per_byte == pytest.approx(4_194_304 / 114_688)
    assert found.limit == "memory", "36.57 FLOP a byte times 1 TB/s is under 100 TFLOP/s"
    assert found.roof_pct == pytest.approx(100 * rate / (4_194_304 / 114_688 * 1e12))


def test_a_large_product_is_limited_by_computing() -> None:
    large = _inputs([[1024, 1024], [1024, 1024]], [BF16, BF16])
    (found,) = _products(("aten::mm", large, 40_000, "gemm"))
    assert found.flops_per_byte == pytest.approx(1024 / 3)
    assert found.limit == "compute"
    assert found.roof_pct == found.peak_pct == pytest.approx(100 * 2 * 1024**3 / 40_000e-9 / 100e12)


def test_a_product_in_fp8_is_written_in_two_bytes_a_value() -> None:
    (found,) = _products(("aten::_scaled_mm", _inputs([[64, 128], [128, 256]], [FP8, FP8]), 100, "gemm"))
    assert found.dtype == "fp8"
    assert found.bytes == 64 * 128 + 128 * 256 + 2 * 64 * 256
    assert (found.peak_pct, found.roof_pct, found.limit) == (None, None, None), "of fp8 the roof is not known"
    assert found.bandwidth_pct is not None


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("ampere_sgemm_128x64_nn", "fp32"),
        ("cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4", "tf32"),
        ("gemm_kernel", None),
        ("layer_norm_kernel", None),
    ],
)
def test_factors_of_fp32_are_computed_as_the_kernel_s_name_shows(kernel: str, dtype: str | None) -> None:
    (found,) = _products(("aten::mm", _inputs([[4, 4], [4, 4]], [FP32, FP32]), 100, kernel))
    assert found.dtype == dtype
    assert found.bytes == 4 * (16 + 16 + 16)


def test_products_are_in_order_of_their_time_and_only_those_with_shapes() -> None:
    other = _inputs([[2, 3], [3, 5]], [BF16, BF16])
    rows = [
        ("aten::mm", other, 50, "gemm"),
        ("aten::mm", SMALL, 70, "gemm"),
        ("aten::addmm", _inputs([[5], [2, 3], [3, 5]], [BF16] * 3), 60, "gemm"),
        ("aten::mm", "", 900, "gemm"),
        ("aten::mul", other, 900, "mul"),
    ]
    assert [(row.operator, row.m) for row in _products(*rows)] == [
        ("aten::mm", 64),
        ("aten::addmm", 2),
        ("aten::mm", 2),
    ]
    assert _products() == ()


def test_at_most_64_products_are_listed() -> None:
    rows = [("aten::mm", _inputs([[number, 2], [2, 2]], [BF16, BF16]), number, "gemm") for number in range(1, 71)]
    assert [row.m for row in _products(*rows)] == list(range(70, 6, -1))


def test_gpus_that_differ_have_no_common_roof() -> None:
    made = Tables()
    made.host("aten::mm", 0, 100, inputs=SMALL)
    made.call("cudaLaunchKernel", 10, 15, correlation=1)
    made.op(20, 120, "gemm", correlation=1)
    one = Roof(device=0, name="A", bytes_per_s=1e12, flops_per_s={"bf16": 100e12})
    other = Roof(device=1, name="B", bytes_per_s=2e12, flops_per_s={"bf16": 100e12})
    trace = made.trace(gpus={0: H100})
    assert gemm_times(trace, (one, other))[0].peak_pct is None
    assert gemm_times(trace, (one, Roof(device=1, name="B", bytes_per_s=1e12, flops_per_s={"bf16": 100e12})))[
        0
    ].peak_pct
    assert gemm_times(made.trace(), (one,))[0].peak_pct is None, "the GPU is not known"
    assert gemm_times(trace, ())[0].peak_pct is None


SGEMM, TF32 = "ampere_sgemm_128x64_nn", "cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4"


def _kernel(*variants: tuple[str, int, float]) -> KernelTime:
    made = tuple(KernelVariant(name=name, count=count, seconds=seconds) for name, count, seconds in variants)
    return KernelTime(
        name="k",
        kind="GEMM",
        count=1,
        seconds=1.0,
        share_pct=1.0,
        mean_us=1.0,
        min_us=1.0,
        max_us=1.0,
        variants=made,
    )


@pytest.mark.parametrize(
    ("variants", "share"),
    [
        ([(SGEMM, 10, 99e-6)], 1.0),  # 9.9 µs each
        ([(SGEMM, 10, 100e-6)], 0.0),
        ([(SGEMM, 10, 50e-6), (SGEMM, 1, 150e-6)], 0.25),
        ([(SGEMM, 1, 50e-6), (TF32, 100, 150e-6)], 0.0),
        ([(SGEMM, 10, 50e-6), (TF32, 1, 150e-6), ("reduce_kernel", 1, 1.0)], 1.0),
        ([], 0.0),
    ],
)
def test_short_products_take_under_ten_microseconds(variants: list[tuple[str, int, float]], share: float) -> None:
    assert short_share([_kernel(*variants)]) == pytest.approx(share)


@pytest.mark.parametrize(
    ("known", "share"),
    [
        ([(1.0, "memory"), (3.0, "compute")], 0.25),
        ([(1.0, "memory"), (0.99, "compute"), (5.0, None)], 0.0),  # shapes of less than half are known
        ([(1.0, "memory"), (1.0, "compute")], 0.5),
        ([(4.0, "memory")], 1.0),
        ([], 0.0),
    ],
)
def test_the_memory_s_share_is_of_products_whose_shapes_are_known(
    known: list[tuple[float, str | None]], share: float
) -> None:
    (made,) = _products(("aten::mm", SMALL, 100, "gemm"))

    def row(seconds: float, limit: str | None, dtype: str = "fp32") -> GemmTime:
        return GemmTime(**{name: getattr(made, name) for name in made.__struct_fields__} | {
            "seconds": seconds, "limit": limit, "dtype": dtype
        })  # fmt: skip

    rows = [row(*one) for one in known] + [row(9.0, "memory", "bf16")]
    assert memory_share([_kernel((SGEMM, 1, 4.0))], rows) == pytest.approx(share)
    assert memory_share([_kernel((TF32, 1, 4.0))], rows) == 0.0
