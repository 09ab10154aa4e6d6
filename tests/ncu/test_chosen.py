"""Reports with chosen counters are judged by what was counted; only products are told of tensor cores."""

from __future__ import annotations

import pytest

from llmtop.document.text import write_text
from llmtop.ncu.chosen import dram_pct, stall_groups
from llmtop.ncu.document import kernels_document
from llmtop.ncu.judge import NcuReport, judge_kernel
from llmtop.ncu.limiter import limiter
from llmtop.ncu.profile import KernelProfile

LAUNCH = {
    "launch__waves_per_multiprocessor": 21.3,
    "launch__grid_size": 8192.0,
    "device__attribute_multiprocessor_count": 128.0,
    "gpu__time_duration.sum": 100_000.0,
}
PEAK = ".pct_of_peak_sustained_elapsed"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def _kernel(name: str = "copy_rows", gpu: str = "NVIDIA GeForce RTX 4090", **numbers: float) -> KernelProfile:
    return KernelProfile(name=name, gpu=gpu, numbers=LAUNCH | numbers)


@pytest.mark.parametrize(
    ("numbers", "expected", "words"),
    [
        (
            {f"dram__bytes_read.sum{PEAK}": 50.0, f"dram__bytes_write.sum{PEAK}": 30.0},
            "memory",
            "DRAM is busy 80 %",
        ),
        (
            {"dram__bytes_read.sum.per_second": 6e11, "dram__bytes_write.sum.per_second": 3e11},
            "memory",
            "DRAM is busy 89 %",
        ),
        ({f"gpu__compute_memory_request_throughput.avg{PEAK}": 75.0}, "memory", "which one was not counted"),
        (
            {
                "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 880.0,
                "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 1000.0,
            },
            "bank conflicts",
            "88 % of the wavefronts",
        ),
        (
            {
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 3200.0,
                "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 100.0,
                "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 4.0,
            },
            "uncoalesced",
            "loads 32.0",
        ),
        ({"sm__inst_executed.avg.per_cycle_active": 3.2}, "compute", "80 % of the slots"),
        (
            {
                STALL.format("long_scoreboard"): 12.0,
                STALL.format("barrier"): 4.0,
                STALL.format("not_selected"): 4.0,
            },
            "memory",
            "memory 60 %, synchronisation 20 %, not selected 20 %; whether memory is full",
        ),
        (
            {f"dram__throughput.avg{PEAK}": 30.0, STALL.format("long_scoreboard"): 12.0},
            "latency",
            "of all stalls: memory 100 %.",
        ),
        ({STALL.format("not_selected"): 9.0, STALL.format("wait"): 6.0}, "compute", "not selected 60 %"),
        (
            {f"dram__bytes_read.sum{PEAK}": 70.0},
            "memory",
            "reads keep DRAM busy 70 % of the time, writes were not counted.",
        ),
        (
            {
                f"dram__throughput.avg{PEAK}": 88.0,
                "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 300.0,
                "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 1000.0,
            },
            "memory",
            "DRAM is busy 88 %",
        ),
        ({STALL.format("barrier"): 9.0, STALL.format("wait"): 3.0}, "latency", "synchronisation 75 %"),
        (
            {"launch__grid_size": 1.0, "launch__waves_per_multiprocessor": 0.01},
            "small grid",
            "127 are idle",
        ),
    ],
)
def test_the_limit_follows_from_what_was_counted(numbers: dict[str, float], expected: str, words: str) -> None:
    found = limiter(_kernel(**numbers))
    assert found.id == expected
    assert words in found.sentence
    assert found.todo


def test_what_shows_no_limit_is_listed() -> None:
    found = limiter(_kernel(**{f"dram__bytes_read.sum{PEAK}": 12.0}))
    assert found.id == "unknown"
    words = "reads keep DRAM busy 12 % of the time, writes were not counted"
    assert found.sentence == f"no limit is in what was counted ({words})."
    assert "no unit of the GPU was counted" in limiter(_kernel()).sentence


def test_bank_conflicts_of_one_block_name_the_grid_too() -> None:
    conflicts = {
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 880.0,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 1000.0,
        "launch__grid_size": 1.0,
        "launch__waves_per_multiprocessor": 0.01,
    }
    found = limiter(_kernel(**conflicts))
    assert found.id == "bank conflicts"
    assert found.sentence.endswith("not counted; also, 1 block for 128 SMs: 127 are idle.")


def test_bytes_without_a_peak_make_no_share() -> None:
    rate = {"dram__bytes_read.sum.per_second": 6e11}
    assert dram_pct(_kernel(gpu="a GPU of nobody's", **rate)) is None
    assert dram_pct(_kernel(**rate)) == pytest.approx(100 * 600 / 1008)


def test_stalls_are_grouped_and_selected_is_none() -> None:
    kernel = _kernel(
        **{STALL.format("selected"): 5.0, STALL.format("lg_throttle"): 1.0, STALL.format("wait"): 3.0}
    )
    assert stall_groups(kernel) == {"fixed latency": 75.0, "memory": 25.0}
    assert stall_groups(_kernel()) == {}


def test_the_document_shows_the_bytes_that_were_counted() -> None:
    kernel = _kernel(
        **{
            "dram__bytes_read.sum": 33_554_432.0,
            "dram__bytes_read.sum.per_second": 6e11,
            "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio": 8.0,
            "sm__inst_executed.avg.per_cycle_active": 0.5,
            "launch__registers_per_thread": 40.0,
        }
    )
    report = NcuReport(source="one.ncu-rep", kernels=(judge_kernel(kernel),))
    text = " ".join(write_text(kernels_document([report]), 100).split())
    assert "neither FLOPs nor bytes" not in text
    for words in ("read 32.0 MiB, 600 GB/s", "loads 8.0", "0.50 a cycle and SM", "40 a thread"):
        assert words in text


@pytest.mark.parametrize(
    ("name", "tensor", "cublas"),
    [
        ("distribution_elementwise_grid_stride_kernel", False, False),
        ("matmul_naive", True, True),
        ("ampere_sgemm_128x64_tn", True, False),
    ],
)
def test_only_products_are_told_of_tensor_cores(name: str, tensor: bool, cublas: bool) -> None:
    busy = {f"sm__throughput.avg{PEAK}": 77.0, f"gpu__dram_throughput.avg{PEAK}": 20.0}
    found = limiter(_kernel(name, **busy))
    assert found.id == "compute"
    assert ("tensor cores (bf16, TF32)" in found.todo) is tensor
    assert ("cuBLAS" in found.todo) is cublas
