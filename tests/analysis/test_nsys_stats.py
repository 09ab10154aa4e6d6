"""The same totals as `nsys stats` gives on the same file, to 0.1 %."""

from __future__ import annotations

import csv
import io
import re
import subprocess
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.report.model import Report
from tests.support.data import HEALTHY, LAUNCH_BOUND, TWO_GPUS, unpacked
from tests.support.nsys import NO_NSYS, find_nsys

pytestmark = [pytest.mark.nsys, pytest.mark.skipif(find_nsys() is None, reason=NO_NSYS)]


@pytest.fixture(
    scope="module", params=[HEALTHY, LAUNCH_BOUND, TWO_GPUS], ids=["healthy", "launch_bound", "two_gpus"]
)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    path = unpacked(request.param, tmp_path_factory.mktemp("stats"))
    return analyze(path), path


def _stats(path: Path, report: str) -> list[dict[str, str]]:
    nsys = find_nsys()
    assert nsys is not None
    command = [nsys, "stats", "-r", report, "--format", "csv", "--force-export=false", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    lines = done.stdout.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith(("Time (%)", "Total (MB)")))
    return list(csv.DictReader(io.StringIO("\n".join(lines[header:]))))


def _same(mine: dict[str, tuple[int, float]], rows: list[dict[str, str]], name: str, count: str) -> None:
    """The same names, with the same counts, and sums that agree to 0.1 %."""
    theirs: dict[str, tuple[int, float]] = {}
    for row in rows:
        key = _plain(row[name])
        number, total = theirs.get(key, (0, 0.0))
        theirs[key] = (number + int(row[count]), total + float(row["Total Time (ns)"]))
    assert {key: value[0] for key, value in mine.items()} == {key: value[0] for key, value in theirs.items()}
    for key, (_, total) in theirs.items():
        assert mine[key][1] == pytest.approx(total, rel=1e-3), key


def _plain(name: str) -> str:
    return re.sub(r"_v\d+$", "", name)


@pytest.mark.slow("reads all real traces; test_steps and test_calls_a_step read one")
def test_kernel_sums_by_full_name(both: tuple[Report, Path]) -> None:
    report, path = both
    mine: dict[str, tuple[int, float]] = {}
    for kernel in report.kernels:
        for variant in kernel.variants:
            number, total = mine.get(variant.name, (0, 0.0))
            mine[variant.name] = (number + variant.count, total + variant.seconds * 1e9)
    _same(mine, _stats(path, "cuda_gpu_kern_sum"), "Name", "Instances")


def test_kernel_sums_by_short_name(both: tuple[Report, Path]) -> None:
    report, path = both
    mine: dict[str, tuple[int, float]] = {}
    for kernel in report.kernels:  # those of one template are told apart by their functor
        number, total = mine.get(kernel.short_name, (0, 0.0))
        mine[kernel.short_name] = (number + kernel.count, total + kernel.seconds * 1e9)
    _same(mine, _stats(path, "cuda_gpu_kern_sum:base"), "Name", "Instances")


def test_api_sums(both: tuple[Report, Path]) -> None:
    report, path = both
    mine = {row.name: (row.count, row.seconds * 1e9) for row in report.api}
    _same(mine, _stats(path, "cuda_api_sum"), "Name", "Num Calls")


def test_copy_sums(both: tuple[Report, Path]) -> None:
    report, path = both
    mine: dict[str, tuple[int, float]] = {}
    sizes: dict[str, float] = {}
    for row in report.copies:
        words = "memset" if row.direction == "memset" else f"memcpy {row.direction}"
        number, total = mine.get(words, (0, 0.0))
        mine[words] = (number + row.count, total + row.seconds * 1e9)
        sizes[words] = sizes.get(words, 0.0) + row.bytes / 1e6
    rows = _stats(path, "cuda_gpu_mem_time_sum")
    for row in rows:
        row["Operation"] = (
            row["Operation"].strip("[]").removeprefix("CUDA ").replace("Host-to-Device", "host-to-device")
        )
        row["Operation"] = row["Operation"].replace("Device-to-Host", "device-to-host")
        row["Operation"] = row["Operation"].replace("Device-to-Device", "device-to-device")
    _same(mine, rows, "Operation", "Count")
    for row in _stats(path, "cuda_gpu_mem_size_sum"):
        words = row["Operation"].strip("[]").removeprefix("CUDA ").lower()
        assert sizes[words] == pytest.approx(float(row["Total (MB)"]), rel=1e-3, abs=5e-4)


def test_nvtx_sums(both: tuple[Report, Path]) -> None:
    report, path = both
    mine: dict[str, tuple[int, float]] = {}
    for row in report.ranges:
        mine[f"{row.domain}:{row.name}" if row.domain else row.name] = (row.count, row.seconds * 1e9)
    _same(mine, _stats(path, "nvtx_sum"), "Range", "Instances")
