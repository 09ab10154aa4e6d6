"""Every figure of reports on real captures against the same figure by plain arithmetic on the raw tables."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.report.model import Device, PhaseMean, Report, to_json
from tests.support import raw_capture as plain
from tests.support.data import DATA, HEALTHY, KINETO, LAUNCH_BOUND, TWO_GPUS, unpacked
from tests.support.raw_capture import Op, Raw, Steps, clipped, common, holes, total, union

SETS = ("h200", "tuning", "held-out")
_STEP = re.compile(r"(profiler|train(ing)?[ _]?)?step([\s#_:-]*\d+)?$", re.I)


@pytest.fixture(scope="module", params=SETS)
def captures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[str, Report, Raw]]:
    """(name, report, its raw rows) of every capture of a set."""
    folder = tmp_path_factory.mktemp("independent")
    return [
        (path.name, analyze(path), _raw([path] if path.is_file() else sorted(path.iterdir())))
        for path in _paths(request.param, folder)
    ]


def _paths(kind: str, folder: Path) -> Iterator[Path]:
    if kind == "h200":
        for number, packed in enumerate((HEALTHY, LAUNCH_BOUND, TWO_GPUS)):
            own = folder / f"{number}-{packed.stem}"
            own.mkdir()
            yield unpacked(packed, own)
        yield KINETO
        return
    with tarfile.open(DATA / "labelled" / f"{kind}.tar.xz") as tar:
        tar.extractall(folder)
    for name, label in json.loads((folder / "labels.json").read_text()).items():
        own = folder / name
        own.mkdir()
        for file in label["files"]:
            (folder / file).rename(own / file)
        yield own if len(label["files"]) > 1 else own / label["files"][0]


def _raw(files: list[Path]) -> Raw:
    whole = Raw()
    for file in files:
        part = plain.read(file)
        whole.ops += part.ops
        whole.calls += part.calls
        whole.ranges += part.ranges
    return whole


def _of(device: Device, raw: Raw) -> list[Op]:
    return [op for op in raw.ops if (op.device, op.pid) == (device.device, device.pid)]


def _spans(ops: list[Op]) -> list[plain.Interval]:
    return union((op.start, op.end) for op in ops)


@pytest.mark.slow("reads all real traces; test_steps and test_calls_a_step read one")
def test_counts_and_totals(captures: list[tuple[str, Report, Raw]]) -> None:
    for name, report, raw in captures:
        kernels = plain.totals(op for op in raw.ops if op.kind == "kernel")
        told: dict[str, tuple[int, float]] = {}
        for row in (variant for kernel in report.kernels for variant in kernel.variants):
            count, seconds = told.get(row.name, (0, 0.0))
            told[row.name] = (count + row.count, seconds + row.seconds)
        assert {key: count for key, (count, _) in told.items()} == {k: n for k, (n, _) in kernels.items()}, name
        for key, (_, seconds) in told.items():
            assert seconds * 1e9 == pytest.approx(kernels[key][1], rel=1e-9), (name, key)
        everything = sum(took for _, took in kernels.values())
        assert sum(kernel.share_pct for kernel in report.kernels) == pytest.approx(100 if kernels else 0), name
        for kernel in report.kernels:
            own = sum(kernels[variant.name][1] for variant in kernel.variants)
            if len({variant.name for other in report.kernels for variant in other.variants}) == len(kernels):
                assert kernel.share_pct == pytest.approx(100 * own / everything), (name, kernel.name)
        _calls_and_copies(name, report, raw)


def _calls_and_copies(name: str, report: Report, raw: Raw) -> None:
    calls = plain.totals(raw.calls)
    assert {row.name: row.count for row in report.api} == {key: count for key, (count, _) in calls.items()}, name
    for row in report.api:
        assert row.seconds * 1e9 == pytest.approx(calls[row.name][1], rel=1e-9), (name, row.name)
    ranges = plain.totals(raw.ranges)
    told: dict[str, tuple[int, float]] = {}
    for span in (row for row in report.ranges if row.style == "push-pop"):
        count, seconds = told.get(span.name, (0, 0.0))
        told[span.name] = (count + span.count, seconds + span.seconds)
    assert {key: count for key, (count, _) in told.items()} == {key: n for key, (n, _) in ranges.items()}, name
    for key, (_, seconds) in told.items():
        assert seconds * 1e9 == pytest.approx(ranges[key][1], rel=1e-9), (name, key)
    for kind in ("host-to-device", "device-to-host", "device-to-device", "memset"):
        mine = [op for op in raw.ops if op.kind != "kernel" and op.name == kind]
        rows = [row for row in report.copies if row.direction == kind]
        assert sum(row.count for row in rows) == len(mine), (name, kind)
        assert sum(row.bytes for row in rows) == sum(op.bytes for op in mine), (name, kind)
        took = total((op.start, op.end) for op in mine)
        assert sum(row.seconds for row in rows) * 1e9 == pytest.approx(took, rel=1e-9), (name, kind)


@pytest.mark.slow("one capture; the others take seconds to read", kept=("h200",))
def test_devices(captures: list[tuple[str, Report, Raw]]) -> None:
    for name, report, raw in captures:
        lanes = {(op.device, op.pid) for op in raw.ops}
        assert {(device.device, device.pid) for device in report.devices} == lanes, name
        for device in report.devices:
            ops = _of(device, raw)
            took = [op.end - op.start for op in ops if op.kind == "kernel"]
            last, first = max(op.end for op in ops), min(op.start for op in ops)
            assert device.busy_pct == pytest.approx(100 * total(_spans(ops)) / (last - first), abs=1e-6), name
            assert device.kernels == len(took), name
            assert device.kernel_seconds == pytest.approx(sum(took) / 1e9), name
            short = sum(length < 10_000 for length in took)
            assert device.kernels_under_10us_pct == pytest.approx(100 * short / len(took)), name
            assert device.kernel_median_us == pytest.approx(median(took) / 1e3), name


@pytest.mark.slow("one capture; the others take seconds to read", kept=("h200",))
def test_no_figure_is_impossible(captures: list[tuple[str, Report, Raw]]) -> None:
    for name, report, _ in captures:
        for place, value in _numbers(json.loads(to_json(report)), name):
            assert value >= 0 or place.endswith("metrics.start_seconds"), (
                place
            )  # sampling began before the first event
            if place.endswith("_pct") and "spread" not in place:
                assert value <= 100 + 1e-6, place
        for gap in report.longest_gaps:
            assert sum(gap.causes.values()) == pytest.approx(gap.seconds), name


def _numbers(value: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, place)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, value


def _steps(report: Report, device: Device, raw: Raw) -> tuple[Steps, list[int], int]:
    edges, thread = plain.host_edges(raw, device.pid, report.steps.found_by)
    called = {(call.pid, call.correlation): call.start for call in raw.calls}
    return plain.device_steps(_of(device, raw), called, edges), edges, thread


def _stepped(captures: list[tuple[str, Report, Raw]]) -> Iterator[tuple[str, Report, Raw]]:
    found = [row for row in captures if "range '" in row[1].steps.found_by]
    assert len(found) >= 0.8 * len(captures)
    yield from found


@pytest.mark.slow("one capture; the others take seconds to read", kept=("h200",))
def test_steps(captures: list[tuple[str, Report, Raw]]) -> None:
    for name, report, raw in _stepped(captures):
        for device in report.devices:
            steps, _, _ = _steps(report, device, raw)
            lengths = [after - before for before, after in pairwise(steps.bounds)]
            assert device.steps == len(lengths), name
            assert device.step_seconds == pytest.approx(median(lengths) / 1e9), name
            assert device.window_seconds == pytest.approx(sum(lengths) / 1e9), name
            launches = [call for call in raw.calls if call.pid == device.pid and _launches(call.name)]
            low, high = steps.launched
            inside = sum(low <= call.start < high for call in launches)
            assert device.launches_per_step == pytest.approx(inside / len(lengths)), name
            took = total((call.start, call.end) for call in launches)
            assert device.launch_api_seconds == pytest.approx(took / 1e9), name
            if device.judged:
                assert report.steps.count == len(lengths), name
                assert report.steps.seconds_p50 == pytest.approx(median(lengths) / 1e9), name
                assert report.steps.seconds_max == pytest.approx(max(lengths) / 1e9), name


@pytest.mark.slow("one capture; the others take seconds to read", kept=("h200",))
def test_calls_a_step(captures: list[tuple[str, Report, Raw]]) -> None:
    for name, report, raw in _stepped(captures):
        inside: dict[str, int] = {}
        steps = 0
        for pid in {device.pid for device in report.devices}:
            edges, _ = plain.host_edges(raw, pid, report.steps.found_by)
            steps += len(edges) - 1
            for call in raw.calls:
                if call.pid == pid and edges[0] <= call.start < edges[-1]:
                    inside[call.name] = inside.get(call.name, 0) + 1
        for row in report.api:
            assert row.calls_per_step == pytest.approx(inside.get(row.name, 0) / steps), (name, row.name)


def _launches(call: str) -> bool:
    return "Launch" in call and "HostFunc" not in call


@pytest.mark.slow("reads all real traces; test_steps and test_calls_a_step read one")
def test_shares_of_whole_steps(captures: list[tuple[str, Report, Raw]]) -> None:
    for name, report, raw in _stepped(captures):
        for device in report.devices:
            ops = _of(device, raw)
            bounds = _steps(report, device, raw)[0].bounds
            low, high = bounds[0], bounds[-1]
            kernels = [op for op in ops if op.kind == "kernel"]
            nccl = [op for op in kernels if "nccl" in op.name.lower()]
            copies = [op for op in ops if op.kind == "memcpy"]
            between = [op for op in copies if op.name in ("host-to-device", "device-to-host")]

            def share(chosen: list[plain.Interval], low: int = low, high: int = high) -> float:
                return 100 * total(clipped(chosen, low, high)) / (high - low)

            def alone(chosen: list[Op], low: int = low, high: int = high, ops: list[Op] = ops) -> float:
                own, mine = {id(op) for op in chosen}, clipped(_spans(chosen), low, high)
                beside = _spans([op for op in ops if id(op) not in own])
                return 100 * (total(mine) - common(mine, beside)) / (high - low)

            exposed, only_copies = alone(nccl), alone(between)
            assert device.kernel_pct == pytest.approx(share(_spans(kernels)), abs=1e-6), name
            assert device.memcpy_pct == pytest.approx(share(_spans(copies)), abs=1e-6), name
            assert device.nccl_pct == pytest.approx(share(_spans(nccl)), abs=1e-6), name
            assert device.idle_pct == pytest.approx(100 - share(_spans(ops)), abs=1e-6), name
            assert device.nccl_exposed_pct == pytest.approx(exposed, abs=1e-6), name
            assert device.copy_only_pct == pytest.approx(only_copies, abs=1e-6), name
            one_off = device.one_off_pct or 0.0
            lost = 100 * (100 - share(_spans(ops)) + exposed + only_copies - one_off) / (100 - one_off)
            assert sum(device.lost_pct.values()) == pytest.approx(lost, abs=1e-6), name
            rows = [row for row in report.collectives if (row.device, row.pid) == (device.device, device.pid)]
            begun = sum(low <= op.start < high for op in nccl) / (len(bounds) - 1)
            assert sum(row.count_per_step or 0 for row in rows) == pytest.approx(begun), name
            gaps = [row for row in report.gaps if (row.device, row.pid) == (device.device, device.pid)]
            idle = total(holes(_spans(ops), low, high))
            assert sum(row.seconds for row in gaps) * 1e9 == pytest.approx(idle, rel=1e-6, abs=1), name


@pytest.mark.slow("one capture; the others take seconds to read", kept=("h200",))
def test_phases(captures: list[tuple[str, Report, Raw]]) -> None:
    compared = 0
    for name, report, raw in _stepped(captures):
        for device in report.devices:
            rows = {row.name: row for row in report.phases if (row.pid, row.device) == (device.pid, device.device)}
            if rows:
                compared += _compare_phases(name, report, raw, device, rows)
    assert compared >= len(captures)


def _compare_phases(name: str, report: Report, raw: Raw, device: Device, rows: dict[str, PhaseMean]) -> int:
    steps, edges, thread = _steps(report, device, raw)
    left_out = f"GPU {device.device}, pid {device.pid}: the first whole step is left out"
    edges = edges[1:] if any(note.startswith(left_out) for note in report.notes) else edges
    low, high, count = edges[0], edges[-1], len(edges) - 1
    ops = _of(device, raw)
    busy = _spans(ops)
    called = {(call.pid, call.correlation): call.start for call in raw.calls}
    idle = holes(busy, max(low, busy[0][0]), min(high, busy[-1][1]))
    top = _outermost(raw, device.pid, thread)
    spans = {phase: union(pieces) for phase, pieces in top.items()}
    outside = holes(union(piece for pieces in spans.values() for piece in pieces), -(1 << 60), 1 << 60)
    told = {phase: row for phase, row in rows.items() if "/" not in phase}
    assert set(told) - {"outside"} <= set(spans), name
    for phase, row in told.items():
        mine = outside if phase == "outside" else spans[phase]
        host = clipped(mine, low, high)
        assert row.host_seconds == pytest.approx(total(host) / count / 1e9), (name, phase)
        assert row.share_pct == pytest.approx(100 * total(host) / (high - low)), (name, phase)
        assert (row.gpu_idle_seconds or 0) * 1e9 == pytest.approx(common(idle, host) / count, abs=1), (name, phase)
        begun = sorted((called[op.launch], op.start, op.end) for op in ops if op.launch in called)
        worked = clipped(union(_launched_in(begun, mine)), steps.bounds[0], steps.bounds[-1])
        whole = steps.bounds[-1] - steps.bounds[0]
        assert row.gpu_share_pct == pytest.approx(100 * total(worked) / whole, abs=1e-6), (name, phase)
        a_step = total(worked) / (len(steps.bounds) - 1) / 1e9
        assert row.gpu_seconds == pytest.approx(a_step, abs=1e-9), (name, phase)
    assert sum(row.share_pct or 0 for row in told.values()) == pytest.approx(100, abs=1e-6), name
    return len(told)


def _launched_in(begun: list[tuple[int, int, int]], spans: list[plain.Interval]) -> Iterator[plain.Interval]:
    """The work, in order of its launch, that was launched in any of some intervals, in order."""
    at = 0
    for called, start, end in begun:
        while at < len(spans) and spans[at][1] <= called:
            at += 1
        if at < len(spans) and spans[at][0] <= called:
            yield start, end


def _outermost(raw: Raw, pid: int, thread: int) -> dict[str, list[plain.Interval]]:
    """The ranges of a thread that lie in no other but one of a step."""
    found: dict[str, list[plain.Interval]] = {}
    reach = -(1 << 62)
    mine = [row for row in raw.ranges if (row.pid, row.thread) == (pid, thread)]
    for row in sorted(mine, key=lambda row: (row.start, -row.end)):
        if _STEP.match(row.name) or row.name.startswith("nccl") or row.start < reach:
            continue
        reach = row.end
        found.setdefault(row.name, []).append((row.start, row.end))
    return found
