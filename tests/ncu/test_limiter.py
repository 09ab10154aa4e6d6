"""Each limiter is named where its counters hold, on counters changed from recorded ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from llmtop.document.text import document_lines
from llmtop.ncu.document import kernels_document
from llmtop.ncu.judge import ncu_report
from llmtop.ncu.limiter import STALLS, limiter
from llmtop.ncu.profile import KernelProfile
from llmtop.ncu.read import read
from llmtop.ncu.readings import readings
from llmtop.ncu.roofline import roofline_point
from tests.support.ncu_reports import unpacked

END = "_throughput.avg.pct_of_peak_sustained_elapsed"
COALESCED = {
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 32.0,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 8_388_608.0,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> KernelProfile:
    """One that only moves data, uncoalesced."""
    (kernel,), _ = read(unpacked("uncoalesced", tmp_path_factory.mktemp("ncu")))
    return kernel


def changed(kernel: KernelProfile, **numbers: float) -> KernelProfile:
    return replace(kernel, numbers=kernel.numbers | numbers)


def units(kernel: KernelProfile, sm: float, dram: float, l2: float, l1: float) -> KernelProfile:
    top = max(dram, l2, l1)
    return changed(
        kernel,
        **{
            f"sm_{END}": sm,
            f"gpu__dram{END}": dram,
            f"lts_{END}": l2,
            f"l1tex_{END}": l1,
            f"gpu__compute_memory{END}": top,
        },
    )


@pytest.mark.parametrize(
    ("busy", "word"),
    [
        ((20.0, 92.0, 70.0, 30.0), "memory (DRAM)"),
        ((20.0, 40.0, 85.0, 50.0), "L2"),
        ((20.0, 10.0, 30.0, 88.0), "L1 and shared memory"),
        ((90.0, 30.0, 30.0, 40.0), "compute"),
        ((20.0, 30.0, 30.0, 40.0), "latency and occupancy"),
    ],
)
def test_coalesced_access_leaves_the_busiest_unit(
    recorded: KernelProfile, busy: tuple[float, float, float, float], word: str
) -> None:
    found = limiter(units(changed(recorded, **COALESCED), *busy))
    assert found.word == word


PIPE = "sm__pipe_{}_cycles_active.avg.pct_of_peak_sustained_elapsed"
ISSUE = "sm__issue_active.avg.pct_of_peak_sustained_elapsed"


@pytest.mark.parametrize(
    ("alu", "fma", "issue", "word"),
    [
        # Counted of PyTorch's random numbers on a GH200: ncu's own breakdown of the SM's 77.2 % begins with these.
        (57.4, 22.0, 77.2, "the issue of instructions"),
        (76.9, 22.0, 70.0, "integer instructions"),
        (30.0, 76.9, 70.0, "compute"),
    ],
)
def test_a_busy_sm_is_limited_by_what_keeps_it_busy(
    recorded: KernelProfile, alu: float, fma: float, issue: float, word: str
) -> None:
    busy = units(changed(recorded, **COALESCED), 77.2, 33.5, 32.2, 21.6)
    counted = {PIPE.format("alu"): alu, PIPE.format("fma"): fma, ISSUE: issue}
    dropped = {name for name in busy.numbers if "issue_active" in name or "per_cycle_active" in name}
    numbers = {name: value for name, value in busy.numbers.items() if name not in dropped} | counted
    kernel = replace(busy, name="distribution_elementwise_grid_stride_kernel", demangled="", numbers=numbers)
    found = limiter(kernel)
    assert (found.id, found.word) == ("compute", word)
    assert found.todo.startswith("Draw fewer random numbers")
    assert f"{alu:.0f} %" in found.sentence or f"{fma:.0f} %" in found.sentence


def test_what_was_not_counted_is_not_called_low(recorded: KernelProfile) -> None:
    """ncu's rule is on compute and memory: with one of them nothing tells that too little is in flight."""
    kept = {name: value for name, value in recorded.numbers.items() if "gpu__compute_memory" not in name}
    kernel = replace(recorded, numbers=kept | {f"sm_{END}": 12.5})
    (row,) = (one for one in readings(kernel) if one.name == "compute (SM) throughput")
    assert (row.text, row.poor, row.todo) == ("12.5 %", False, "")
    both = replace(recorded, numbers=kept | {f"sm_{END}": 12.5, f"gpu__compute_memory{END}": 20.0})
    assert all(one.poor for one in readings(both) if one.name.endswith(") throughput"))


def test_latency_names_the_stall_and_what_holds_occupancy_down(recorded: KernelProfile) -> None:
    kernel = changed(
        units(changed(recorded, **COALESCED), 20.0, 30.0, 30.0, 40.0),
        **{
            "launch__occupancy_limit_registers": 2.0,
            "sm__maximum_warps_per_active_cycle_pct": 25.0,
            "sm__warps_active.avg.pct_of_peak_sustained_active": 22.0,
        },
    )
    found = limiter(kernel)
    assert "long_scoreboard (waiting for data" in found.sentence
    assert "limited by registers" in found.sentence
    poor = {one.name: one for one in readings(kernel) if one.poor}
    assert "fewer registers a block" in poor["achieved occupancy"].todo


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"launch__grid_size": 40.0, "launch__waves_per_multiprocessor": 0.04}, "40 blocks for 132 SMs"),
        (
            {"launch__grid_size": 1.0, "launch__waves_per_multiprocessor": 0.01},
            "1 block for 132 SMs: 131 are idle",
        ),
        ({"launch__grid_size": 500.0, "launch__waves_per_multiprocessor": 0.47}, "fill 47 % of what"),
        (
            {
                "launch__grid_size": 1_200.0,
                "launch__waves_per_multiprocessor": 1.14,
                "sm__cycles_active.avg": 2_100_000.0,
            },
            "1.14 waves of blocks",
        ),
    ],
)
def test_too_small_a_grid_is_told_by_its_blocks(
    recorded: KernelProfile, numbers: dict[str, float], words: str
) -> None:
    found = limiter(changed(units(changed(recorded, **COALESCED), 20.0, 30.0, 30.0, 40.0), **numbers))
    assert found.id == "small grid"
    assert words in found.sentence


@pytest.mark.parametrize(
    "numbers",
    [
        {"launch__grid_size": 128.0, "launch__waves_per_multiprocessor": 0.97},
        {
            "launch__grid_size": 5_000.0,
            "launch__waves_per_multiprocessor": 4.74,
            "sm__cycles_active.avg": 1_900_000.0,
        },
    ],
)
def test_a_grid_of_nearly_all_places_is_not_small(recorded: KernelProfile, numbers: dict[str, float]) -> None:
    found = limiter(changed(units(changed(recorded, **COALESCED), 20.0, 30.0, 30.0, 40.0), **numbers))
    assert found.id == "latency"
    assert ("blocks differ in length" in found.sentence) is ("sm__cycles_active.avg" in numbers)


def test_l1_is_known_where_only_its_active_share_was_counted(recorded: KernelProfile) -> None:
    busy = units(changed(recorded, **COALESCED), 80.0, 20.0, 15.0, 0.0).numbers
    kept = {name: value for name, value in busy.items() if not name.startswith("l1tex__throughput")}
    kernel = replace(
        recorded,
        numbers=kept
        | {
            "l1tex__throughput.avg.pct_of_peak_sustained_active": 81.0,
            "sm__cycles_active.avg": 990.0,
            "sm__cycles_elapsed.max": 1000.0,
            "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active": 80.0,
        },
    )
    assert kernel.l1_pct == pytest.approx(80.19)
    found = limiter(kernel)
    assert found.id == "L1", "the pipe of loads and stores is what makes the SM busy"
    assert "tensor" not in found.todo


def test_sectors_in_percent_of_older_versions_are_read(recorded: KernelProfile) -> None:
    stem = "smsp__sass_average_data_bytes_per_sector_mem_global_op_{}"
    dropped = {stem.format(way) + ".ratio" for way in ("ld", "st")}
    kept = {name: value for name, value in recorded.numbers.items() if name not in dropped}
    old = replace(recorded, numbers=kept | {stem.format("ld") + ".pct": 12.5, stem.format("st") + ".pct": 100.0})
    assert old.bytes_a_sector("ld") == 4.0
    assert limiter(old).id == "uncoalesced"


def test_spread_stores_that_l2_puts_together_are_no_limit(recorded: KernelProfile) -> None:
    asked = recorded.asked_bytes
    assert asked
    merged = changed(
        units(recorded, 20.0, 92.0, 80.0, 30.0), **{"dram__bytes_read.sum": asked, "dram__bytes_write.sum": 0.0}
    )
    assert limiter(merged).word == "memory (DRAM)"
    wasteful = changed(merged, **{"dram__bytes_read.sum": 4 * asked})
    assert limiter(wasteful).id == "uncoalesced"


def test_the_busiest_pipe_is_named_by_either_counter_and_fp64_gets_its_own_advice(recorded: KernelProfile) -> None:
    full = {"sm__pipe_fp64_cycles_active.avg.pct_of_peak_sustained_elapsed": 88.0}
    found = limiter(changed(units(changed(recorded, **COALESCED), 90.0, 3.0, 2.0, 1.0), **full))
    assert "the busiest pipe is fp64 (88 %)" in found.sentence
    assert found.todo.startswith("fp32 where the accuracy allows it")


def test_products_on_the_tensor_cores_are_not_sent_there(recorded: KernelProfile) -> None:
    product = replace(recorded, name="gemm_kernel", demangled="gemm_kernel(float*)")
    numbers = {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 50.0}
    found = limiter(changed(units(changed(product, **COALESCED), 70.0, 3.0, 2.0, 1.0), **numbers))
    assert found.id == "compute"
    assert "tensor cores 50 %" in found.sentence
    assert "to the tensor cores" not in found.todo


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"launch__block_size": 1.0}, "a block of 1 uses 1 of the 32 lanes"),
        (
            {"l1tex__t_requests_pipe_lsu_mem_global_op_red.sum": 1e9},
            "of the requests to global memory are atomics",
        ),
        ({"sm__warps_active.avg.pct_of_peak_sustained_active": 90.0}, "with the warps that are there"),
        (
            {"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": 1e4},
            "Fewer __syncthreads()",
        ),
    ],
)
def test_advice_on_latency_follows_its_cause(
    recorded: KernelProfile, numbers: dict[str, float], words: str
) -> None:
    found = limiter(changed(units(changed(recorded, **COALESCED), 20.0, 30.0, 30.0, 40.0), **numbers))
    assert found.id == "latency"
    assert words in found.todo


def test_occupancy_is_judged_where_units_were_counted_only(recorded: KernelProfile) -> None:
    quiet = units(changed(recorded, **COALESCED), 20.0, 30.0, 30.0, 40.0)
    occupancy = {
        "sm__warps_active.avg.pct_of_peak_sustained_active": 41.0,
        "sm__maximum_warps_per_active_cycle_pct": 50.0,
        "launch__occupancy_limit_registers": 2.0,
    }
    (found,) = (one for one in readings(changed(quiet, **occupancy)) if one.name == "achieved occupancy")
    assert found.poor
    assert found.todo.startswith("fewer registers a block"), "41 % is four fifths of what is allowed"
    full = occupancy | {"sm__maximum_warps_per_active_cycle_pct": 100.0}
    (found,) = (one for one in readings(changed(quiet, **full)) if one.name == "achieved occupancy")
    assert "limited by" not in found.text, "all places are allowed"
    bare = replace(recorded, numbers=full)
    (found,) = (one for one in readings(bare) if one.name == "achieved occupancy")
    assert not found.poor, "whether a unit is busy was not counted"


def test_conflicts_of_neither_loads_nor_stores_are_named(recorded: KernelProfile) -> None:
    conflicts, moved = (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared",
    )
    numbers = {f"{conflicts}.sum": 30.0, f"{moved}.sum": 100.0}
    for way in ("ld", "st"):
        numbers |= {f"{conflicts}_op_{way}.sum": 0.0, f"{moved}_op_{way}.sum": 20.0}
    (found,) = (one for one in readings(changed(recorded, **numbers)) if one.name == "bank conflicts")
    assert found.text == "30.0 % of the wavefronts of shared memory, most of neither loads nor stores"


def test_a_small_grid_that_keeps_the_tensor_cores_busy_is_none(tmp_path: Path) -> None:
    (kernel,), _ = read(unpacked("gpt2", tmp_path))
    assert kernel.waves is not None
    assert kernel.waves < 1, "128 blocks for 132 SMs"
    assert limiter(kernel).id == "compute"


def test_one_value_read_by_a_whole_warp_is_no_waste(recorded: KernelProfile) -> None:
    scale = changed(
        recorded,
        **{
            "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 2_097_152.0,
            "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 2_097_152.0,
        },
    )
    assert scale.wasted_pct == 0.0, "one sector a request, of which four bytes are used"
    assert limiter(scale).id == "memory"
    assert not any(one.poor for one in readings(scale) if one.name.startswith("bytes a sector"))


def test_without_its_counters_nothing_is_claimed(recorded: KernelProfile) -> None:
    bare = replace(recorded, numbers={"gpu__time_duration.sum": 1_000.0})
    assert limiter(bare).id == "unknown"
    assert "--set full" in limiter(bare).todo
    assert readings(bare) == ()
    assert roofline_point(bare) is None


def test_what_only_copies_is_placed_by_its_bytes_alone(recorded: KernelProfile) -> None:
    adds = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed"
    copies = changed(recorded, **{adds: 0.0})
    assert roofline_point(copies) is None
    said = " ".join(
        " ".join(text.split())
        for text, _ in document_lines(kernels_document([ncu_report(Path("x"), [copies])]), 100)
    )
    assert "there are only its bytes: 83.4 %, 2.80 TB/s of DRAM" in said


def test_arithmetic_of_constants_is_no_fp16(recorded: KernelProfile) -> None:
    moves = recorded.number("derived__smsp__sass_thread_inst_executed_op_hfma_pred_on_x4")
    assert moves, "the compiler wrote a constant with HFMA2"
    point = roofline_point(recorded)
    assert point is not None
    assert point.dtype == "fp32"


def test_every_stall_that_a_report_has_is_in_words(recorded: KernelProfile) -> None:
    assert set(recorded.stalls) <= set(STALLS)
