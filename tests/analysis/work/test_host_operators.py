"""Operators of captures of the CPU alone, beside what PyTorch's key_averages() says of the same run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.report.tables import tables
from tests.support.traces import Capture, steady, write_chrome


def test_own_times_are_pytorch_s(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 128))
    optimizer = torch.optim.AdamW(model.parameters())
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        for _ in range(6):
            model(torch.randn(32, 128)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    path = tmp_path / "cpu.pt.trace.json"
    profile.export_chrome_trace(str(path))
    report = analyze(path)
    own = {row.key: row.self_cpu_time_total for row in profile.key_averages()}
    rows = [row for row in report.host_operators if row.name.startswith("aten::")]
    assert len(rows) > 15
    for row in rows:
        assert row.self_seconds * 1e6 == pytest.approx(own[row.name], rel=0.01, abs=5.0), row.name
    assert sum(row.share_pct for row in report.host_operators) == pytest.approx(100, abs=0.5)
    assert next(row.shape for row in rows if row.name == "aten::addmm")
    named = re.search(r"no verdict\. On the CPU (.+?) takes ", report.summary)
    assert named is not None, report.summary
    longest = max(own[row.name] for row in report.host_operators)  # any of them, if it was interrupted
    assert own[named[1]] == pytest.approx(longest, rel=0.01, abs=5.0)
    assert report.verdict == "unknown"
    assert report.steps.count
    assert all(row.self_ms_per_step is not None for row in rows)


def test_nested_operators_and_time_without_any(tmp_path: Path) -> None:
    made = Capture()
    for step in range(4):
        begin = step * 1000.0
        made.range(f"ProfilerStep#{step}", begin, begin + 1000)
        made.range("forward", begin + 50, begin + 700)
        made.operator("aten::linear", begin + 100, begin + 600)
        made.operator("aten::addmm", begin + 200, begin + 500)
        made.operator("aten::copy_", begin + 450, begin + 500)
    report = analyze(write_chrome(tmp_path / "made.json", made))
    rows = {row.name: row for row in report.host_operators}
    assert {name: row.self_ms_per_step for name, row in rows.items()} == pytest.approx(
        {"aten::addmm": 0.25, "aten::linear": 0.2, "aten::copy_": 0.05}
    )
    assert rows["aten::linear"].total_seconds == pytest.approx(4 * 500e-6)
    assert report.operator_free_pct == pytest.approx(50.0)
    shown = tables(report)
    assert "host_operators" in shown
    assert "GPU" not in str([column.title for column in shown["phases"].columns])


def test_a_capture_with_device_work_has_no_such_table(tmp_path: Path) -> None:
    made = steady()
    made.operator("aten::mm", 5, 30)
    assert not analyze(write_chrome(tmp_path / "made.json", made)).host_operators
