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
    assert "there are only its bytes: 83.4 %, 2.797 TB/s of DRAM" in said


def test_arithmetic_of_constants_is_no_fp16(recorded: KernelProfile) -> None:
    moves = recorded.number("derived__smsp__sass_thread_inst_executed_op_hfma_pred_on_x4")
    assert moves, "the compiler wrote a constant with HFMA2"
    point = roofline_point(recorded)
    assert point is not None
    assert point.dtype == "fp32"


def test_every_stall_that_a_report_has_is_in_words(recorded: KernelProfile) -> None:
    assert set(recorded.stalls) <= set(STALLS)
