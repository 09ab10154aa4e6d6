"""Memory in use: torch.profiler's own figures on the CPU, and made-up allocations of nsys."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TypeAlias

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.report.model import Report
from llmtop.report.tables import tables
from tests.support.nsys_tables import NsysTables
from tests.support.traces import MAIN, steady, write_sqlite

_MB = 1_000_000
Profiled: TypeAlias = tuple[Report, dict[str, int], list[dict[str, int]]]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    """(the report, self memory by operator as PyTorch has it, the raw events) where each step leaks 1 MB."""
    torch = pytest.importorskip("torch")  # here: each worker collects all modules, and would import it
    path = tmp_path_factory.mktemp("memory") / "memory.pt.trace.json"
    model = torch.nn.Linear(256, 256)
    kept = []
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=5, repeat=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, schedule=schedule) as profile:
        for _ in range(7):
            model(torch.randn(64, 256)).sum().backward()
            kept.append(torch.zeros(_MB // 4))
            profile.step()
    profile.export_chrome_trace(str(path))
    own = {row.key: row.self_cpu_memory_usage for row in profile.key_averages()}
    raw = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    return (
        analyze(path),
        own,
        sorted((event["args"] | {"ts": event["ts"]} for event in raw), key=lambda one: one["ts"]),
    )


def test_the_levels_are_the_allocator_s(profiled: Profiled) -> None:
    report, _, raw = profiled
    use = report.memory[0]
    assert use.absolute
    assert use.device is None
    assert use.peak_bytes == max(event["Total Allocated"] for event in raw)
    assert use.end_bytes == raw[-1]["Total Allocated"]
    assert use.allocations == sum(event["Bytes"] > 0 for event in raw)
    assert use.growth_bytes_per_step == _MB
    assert len(use.step_peak_bytes) == report.steps.count >= 4
    rises = {after - before for before, after in itertools.pairwise(use.step_peak_bytes)}
    assert rises == {_MB}
    assert use.largest_by == "aten::empty"
    assert {one.device for one in report.memory_operators} == {None}, "of the host"
    assert use.largest_bytes == _MB


def test_operators_have_the_memory_that_pytorch_gives_them(
    profiled: Profiled,
) -> None:
    report, own, _ = profiled
    rows = [row for row in report.memory_operators if row.name in own and row.name.startswith("aten::")]
    assert len(rows) > 3
    assert {row.name: row.net_bytes for row in rows} == {row.name: own[row.name] for row in rows}


def test_of_nsys_levels_count_from_the_beginning(tmp_path: Path) -> None:
    capture = steady()
    calls = [capture.call("cudaMalloc", step * 10_000 + 90, step * 10_000 + 110) for step in range(6)]
    path = write_sqlite(tmp_path / "made.sqlite", [capture])
    made = NsysTables(path)
    made.memory(MAIN, -50.0, 8 * _MB, 0xA000, freed=True)  # allocated before the capture
    for step in range(6):
        made.memory(MAIN, step * 10_000 + 100, 3 * _MB, 0x1000 * (step + 1), call=calls[step])
        made.memory(MAIN, step * 10_000 + 200, 2 * _MB, 0x1000 * (step + 1), freed=True)
    use = analyze(path).memory[0]
    assert not use.absolute
    assert (use.device, use.memory) == (0, "device")
    assert (use.start_bytes, use.end_bytes, use.peak_bytes) == (0, -2 * _MB, 0)
    assert use.largest_by == "step"
    assert use.largest_bytes == 3 * _MB
    assert use.growth_bytes_per_step == pytest.approx(_MB)
    assert "above the start" in tables(analyze(path))["memory"].rows[0][0]
