"""No report has a duration or a share that cannot be: over all captures of the test data and made-up ones."""

from __future__ import annotations

import math
import random
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.report.model import Report, to_json
from tests.support.data import DATA
from tests.support.traces import Capture

_DURATION = re.compile(r"(?:_seconds|_ms|_us|_ns)$|^seconds|^seconds$")
_SHARE = re.compile(r"_pct$|_pct_")
_UNBOUNDED = ("spread_pct",)
"""Percent of something that a figure may exceed."""
_UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def impossible(report: Report) -> list[str]:
    """Every figure of a report's JSON that no capture can have, with its path."""
    found = [
        f"{path} = {value}"
        for path, name, value in _numbers(msgspec.json.decode(to_json(report)), "", "")
        if not math.isfinite(value)
        or (_DURATION.search(name) and value < 0)
        or (_SHARE.search(name) and name not in _UNBOUNDED and not -1e-6 <= value <= 100 + 1e-6)
    ]
    for gap in report.longest_gaps:
        found += [f"{cause} {took} of {gap.seconds}" for cause, took in gap.causes.items() if took < 0]
        if sum(gap.causes.values()) > gap.seconds * (1 + 1e-6):
            found.append(f"causes {gap.causes} of {gap.seconds} s")
        found += [f"{line!r} in {gap.seconds} s" for line in gap.host if _took(line) > gap.seconds * 1.006 + 1e-9]
    for device in report.devices:
        if sum(device.lost_pct.values()) > 100 + 1e-6:
            found.append(f"lost {device.lost_pct}")
    return found


def _numbers(node: object, path: str, name: str) -> Iterator[tuple[str, str, float]]:
    if isinstance(node, dict):
        for key, value in node.items():
            inner = f"{name}_" if name.endswith("_pct") else ""
            yield from _numbers(value, f"{path}.{key}", inner + str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _numbers(value, f"{path}[{index}]", name)
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield path, name, float(node)


def _took(line: str) -> float:
    number, unit = line.rpartition(": ")[2].split(" ")
    return float(number) * _UNITS[unit]


@pytest.mark.slow("reads all labelled captures")
@pytest.mark.parametrize("name", ["tuning", "held-out"])
def test_no_labelled_capture_has_an_impossible_figure(tmp_path: Path, name: str) -> None:
    with tarfile.open(DATA / "labelled" / f"{name}.tar.xz") as tar:
        tar.extractall(tmp_path)
    files = [path for path in sorted(tmp_path.iterdir()) if path.name != "labels.json"]
    assert len(files) > 30
    wrong = {path.name: impossible(analyze(path)) for path in files}
    assert {name: found for name, found in wrong.items() if found} == {}


def _made_up(seed: int) -> Capture:
    """Kernels, copies, calls, ranges and operators at random: late, early, nested, beside each other."""
    chance = random.Random(seed)
    capture = Capture()
    long = chance.choice([1_000.0, 50_000.0, 20_000_000.0])
    at = 0.0
    for step in range(chance.choice([0, 1, 4])):
        capture.range("step", step * 30 * long, (step + 1) * 30 * long)
    while at < 120 * long:
        start = at + chance.random() * long
        end = start + chance.random() * long
        launched = chance.choice([start - 5, start - long * chance.random(), None])
        kind, thread = chance.randrange(6), chance.choice([100, 101])
        if kind <= 1:
            name = chance.choice(["gemm_kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"])
            capture.kernel(start, end, launched, name, stream=chance.choice([7, 8]), tid=thread)
        elif kind == 2:
            capture.copy(
                start, end, chance.choice([4, 8 << 20]), chance.choice(["HtoD", "DtoH"]), launched=launched
            )
        elif kind == 3:
            capture.call(
                chance.choice(["cudaStreamSynchronize", "cudaMalloc", "cudaLaunchKernel"]), start, end, tid=thread
            )
        elif kind == 4:
            capture.operator("aten::item", start, end, tid=thread)
            capture.operator("aten::_local_scalar_dense", start, (start + end) / 2, tid=thread)
        else:
            capture.range(chance.choice(["dataload", "forward", "x (dynamo_timed)"]), start, end, tid=thread)
        at += chance.random() * long
    return capture


@pytest.mark.parametrize("engine", ["nsys", "kineto"])
@pytest.mark.parametrize("seed", range(12))
def test_no_made_up_capture_has_one(tmp_path: Path, seed: int, engine: str) -> None:
    capture = _made_up(seed)
    report = analyze_trace(capture.trace(tmp_path) if engine == "nsys" else capture.chrome_trace(tmp_path))
    assert impossible(report) == []


def test_the_check_finds_what_it_looks_for(tmp_path: Path) -> None:
    capture = Capture()
    for at in range(0, 40_000, 1000):
        capture.kernel(at + 500, at + 1000, launched=at)
    report = analyze_trace(capture.trace(tmp_path))
    assert impossible(report) == []
    causes = {"launch": 1.0, "sync": -0.1}
    gap = msgspec.structs.replace(report.longest_gaps[0], causes=causes, host=("in cudaFree: 2.00 s",))
    assert len(impossible(msgspec.structs.replace(report, longest_gaps=(gap,)))) == 3
    device = msgspec.structs.replace(report.devices[0], busy_pct=1157.2)
    assert len(impossible(msgspec.structs.replace(report, devices=(device,)))) == 1
