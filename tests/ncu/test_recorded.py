"""Reports recorded on an H100 are read without Nsight Compute, and say what ncu's own pages say of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from llmtop.document.text import document_lines
from llmtop.ncu.document import kernels_document
from llmtop.ncu.judge import KernelJudgement, judge_kernel
from llmtop.ncu.profile import KernelProfile
from llmtop.ncu.read import read
from llmtop.ncu.roofline import roofline_point
from tests.support.ncu_reports import GEMM, RECORDED, page, unpacked

_profiles: dict[str, KernelProfile] = {}


@pytest.fixture(params=RECORDED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kernel(name: str, tmp_path: Path) -> KernelProfile:
    if name not in _profiles:
        kernels, left_out = read(unpacked(name, tmp_path))
        assert len(kernels) == 1
        assert left_out == 0
        _profiles[name] = kernels[0]
    return _profiles[name]


@cache
def told(name: str) -> dict[str, tuple[float, str]]:
    return page(name)


LIMITS = {
    "gpt0": "compute (tensor)",
    "gpt2": "compute (tensor)",
    "uncoalesced": "uncoalesced access",
    "conflicts": "shared-memory bank conflicts",
}


def test_the_limiter_is_named_right(name: str, kernel: KernelProfile) -> None:
    found = judge_kernel(kernel)
    assert found.word == LIMITS[name]
    assert found.sentence.endswith(".")
    assert found.todo


PAGES = {
    "compute (SM) throughput": "Compute (SM) Throughput",
    "DRAM throughput": "DRAM Throughput",
    "L2 throughput": "L2 Cache Throughput",
    "L1 throughput": "L1/TEX Cache Throughput",
    "achieved occupancy": "Achieved Occupancy",
    "L1 hit rate": "L1/TEX Hit Rate",
    "waves": "Waves Per SM",
}


def _reading(judgement: KernelJudgement, name: str) -> float:
    return next(reading.value for reading in judgement.readings if reading.name == name)


def test_readings_are_those_of_ncus_page(name: str, kernel: KernelProfile) -> None:
    found, by_ncu = judge_kernel(kernel), told(name)
    for ours, theirs in PAGES.items():
        assert _reading(found, ours) == pytest.approx(by_ncu[theirs][0], abs=0.006), ours
    # Two rows of that name: first the percentage of the speed of light, then bytes a second.
    assert _reading(found, "memory throughput") == pytest.approx(by_ncu["Memory Throughput"][0], abs=0.006)
    assert _reading(found, "L2 hit rate") == pytest.approx(min(by_ncu["L2 Hit Rate"][0], 100.0), abs=0.006)
    assert kernel.cycles_between == pytest.approx(by_ncu["Warp Cycles Per Issued Instruction"][0], abs=0.006)
    blocks = by_ncu["Grid Size"][0], by_ncu["Block Size"][0]
    assert (_volume(kernel.grid), _volume(kernel.block)) == blocks


def _volume(three: tuple[int, int, int]) -> int:
    return three[0] * three[1] * three[2]


def test_the_limiter_of_occupancy_is_the_smallest_of_ncus_limits(name: str, kernel: KernelProfile) -> None:
    rows = {
        "registers": "Block Limit Registers",
        "shared memory": "Block Limit Shared Mem",
        "warps": "Block Limit Warps",
        "blocks": "Block Limit SM",
        "barriers": "Block Limit Barriers",
    }
    limits = {words: told(name)[row][0] for words, row in rows.items()}
    assert kernel.occupancy_limits == tuple(words for words in limits if limits[words] == min(limits.values()))


FLOPS = {
    # Products of 8192 x 1024 x 4096 (rows, inner, columns) in some order; one sum a float; 2000 sums a thread.
    "gpt0": 2 * 8192 * 1024 * 4096,
    "gpt2": 2 * 8192 * 1024 * 4096,
    "uncoalesced": 1 << 26,
    "conflicts": 2000 * 132 * 8 * 1024,
}
SECONDS = {"us": 1e-6, "ms": 1e-3}
BYTES = {"Tbyte/s": 1e12, "Gbyte/s": 1e9, "Mbyte/s": 1e6}


def test_the_place_under_the_roofs_is_within_a_tenth_of_ncus(name: str, kernel: KernelProfile) -> None:
    point = roofline_point(kernel)
    assert point is not None
    took, unit = told(name)["Duration"]
    seconds = took * SECONDS[unit]
    bandwidth = _bandwidth(name)
    assert point.flops_per_s == pytest.approx(FLOPS[name] / seconds, rel=0.01)
    assert point.flops_per_byte == pytest.approx(FLOPS[name] / seconds / bandwidth, rel=0.02)
    assert point.tensor == name.startswith("gpt")
    assert point.dtype == ("bf16" if point.tensor else "fp32")
    if point.tensor:  # "Tensor is the highest-utilized pipeline (87.0 %)", and SM throughput is its
        assert point.roof_pct == pytest.approx(told(name)["Compute (SM) Throughput"][0], rel=0.1)
        assert point.under == "compute"
    if name == "uncoalesced":
        assert point.under == "memory"
        assert point.roof_pct == pytest.approx(told(name)["DRAM Throughput"][0], rel=0.1)


def _bandwidth(name: str) -> float:
    """From the memory's own section, where the row of that name is a rate."""
    from tests.support.data import DATA

    for line in (DATA / "ncu" / f"{name}.details.txt").read_text().splitlines():
        words = line.split()
        if line.startswith("    Memory Throughput") and words[2] in BYTES:
            return float(words[3].replace(",", "")) * BYTES[words[2]]
    raise AssertionError("no rate")


def test_faults_are_marked_with_what_to_do(tmp_path: Path) -> None:
    (strided,), _ = read(unpacked("uncoalesced", tmp_path))
    (bank,), _ = read(unpacked("conflicts", tmp_path))
    (gemm,), _ = read(unpacked("gpt0", tmp_path))
    poor = {
        kernel.name: {one.name: one for one in judge_kernel(kernel).readings if one.poor}
        for kernel in (strided, bank, gemm)
    }
    assert poor["planted_uncoalesced"]["bytes a sector, loads"].value == 4.0, "as ncu's page says"
    conflicts = poor["planted_conflicts"]["bank conflicts"]
    assert conflicts.value == pytest.approx(96.87, abs=0.01)
    assert "loads 96.9 %, stores 96.9 %" in conflicts.text
    assert poor[GEMM] == {}, "a healthy product has nothing that is poor"
    for readings in poor.values():
        assert all(one.todo and one.threshold and one.source for one in readings.values())
    stores = next(one for one in judge_kernel(gemm).readings if one.name == "bank conflicts")
    assert "stores 13.2 %" in stores.text, "as ncu's page says, though it is a hundredth of all wavefronts"


def test_top_stalls_are_those_that_ncu_names(tmp_path: Path) -> None:
    (bank,), _ = read(unpacked("conflicts", tmp_path))
    assert list(bank.stalls)[:2] == ["short_scoreboard", "mio_throttle"]
    assert bank.stalls["short_scoreboard"] == pytest.approx(305.5, abs=0.05)
    (gemm,), _ = read(unpacked("gpt0", tmp_path))
    name, cycles = next(iter(gemm.stalls.items()))
    assert (name, round(cycles, 1), round(gemm.stall_pct(name), 1)) == ("barrier", 6.0, 30.5)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_text_keeps_to_the_width(name: str, kernel: KernelProfile, width: int) -> None:
    from llmtop.ncu.judge import ncu_report

    rows = document_lines(kernels_document([ncu_report(Path("x"), [kernel])]), width)
    assert all(len(text) <= width for text, _ in rows)
    text = " ".join(" ".join(row.split()) for row, _ in rows)
    assert f"Limited by {LIMITS[name]}: " in text
    assert "roofline: " in text
