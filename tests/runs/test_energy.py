"""Energy and cost of a run: from what a monitor recorded of its own GPUs, and absent without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmtop.runs import records
from tests.support.made_runs import write_run
from tests.support.preloaded import llmtop
from tests.support.processes import environment

START = 1.7e9


def _minute(number: int, uuid: str = "GPU-0", **fields: object) -> records.GpuMinute:
    return records.GpuMinute(at=START + 60 * number, seconds=60, uuid=uuid, index=0, name="H100", **fields)  # type: ignore[arg-type]


def _run(runs: Path, *minutes: records.GpuMinute) -> None:
    write_run(runs, "a", [0.5] * 720, started=START, gpu_minutes=minutes, gpu_uuid="GPU-0", gpu_model="H100")


def _prices(tmp_path: Path, text: str = "gpu_hour_price = 2\nkwh_price = 0.5\ncurrency = 'EUR'") -> str:
    path = tmp_path / "config" / "llmtop" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f"[runs]\ndays = 36500\n{text}\n")
    return str(tmp_path / "config")


def test_energy_is_the_counter_or_else_power_times_time(tmp_path: Path) -> None:
    power = {"power_watts": (500.0, 400.0, 600.0)}
    _run(
        tmp_path / "runs",
        _minute(1, signals=power, energy_joules=24_000.0),
        _minute(2, signals=power),
        _minute(2, signals=power),  # by a second monitor
        _minute(3),
        _minute(4, "GPU-7", signals=power),  # of another training
        _minute(99, signals=power),  # after the run
    )
    env = environment(LLMTOP_RUNS=str(tmp_path / "runs"), XDG_CONFIG_HOME=_prices(tmp_path))
    found = json.loads(llmtop("runs", "show", "--json", env=env).stdout)
    assert found["energy"]["joules"] == pytest.approx(24_000 + 30_000)
    assert found["energy"]["gpu_hours"] == pytest.approx(2 / 60)
    assert found["gpu_hours"] == pytest.approx(0.1, rel=0.01)
    assert found["cost"]["gpu_hours"] == pytest.approx(0.2, rel=0.01)
    assert found["cost"]["energy"] == pytest.approx(0.0075)
    assert found["cost"]["currency"] == "EUR"
    text = llmtop("runs", "show", env=env).stdout
    assert "0.015 kWh, seen for 0.03 of 0.10 GPU hours" in " ".join(text.split())


def test_without_a_monitor_energy_is_absent_and_said_so(tmp_path: Path) -> None:
    _run(tmp_path / "runs")
    env = environment(LLMTOP_RUNS=str(tmp_path / "runs"), XDG_CONFIG_HOME=_prices(tmp_path))
    found = json.loads(llmtop("runs", "show", "--json", env=env).stdout)
    assert found["energy"] is None
    assert found["cost"]["energy"] is None
    assert found["cost"]["gpu_hours"] == pytest.approx(0.2, rel=0.01)
    assert "Energy is not known" in llmtop("runs", "show", env=env).stdout
