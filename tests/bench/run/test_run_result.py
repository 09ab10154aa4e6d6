"""The verdict and the figures of a short window, which a monitor's snapshots alone leave unknown."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from llmtop.bench.comparing import metric_value
from llmtop.bench.model.results import METRICS, MeasuredSteps, RunFigures
from llmtop.bench.output.document import bench_document
from llmtop.bench.protocol import summarize_runs
from llmtop.bench.run.run_figures import window_figures
from llmtop.bench.run.run_result import verdict_of_window
from llmtop.bench.run.run_steps import RankSteps
from llmtop.document.text import write_text
from llmtop.model.snapshot import Alert, Gpu, Host, Rank, Snapshot
from tests.support.bench_runs import made_bench, made_runs

RUNS = made_runs(0.1, 2)
WAITS = Alert(id="input_bound", severity="warning", pid=7, since=0.0, summary="it waits", next="look")


def _window(busy: float | None, *alerts: Alert, bound: bool = False) -> list[Snapshot]:
    rank = Rank(pid=7, host="box", gpu_busy_pct=busy, gpu_busy_bound=bound)
    return [Snapshot(time=float(at), host=Host(name="box"), ranks=(rank,), alerts=alerts) for at in range(3)]


def _figures(idle: float | None, bound: bool = False) -> RunFigures:
    return RunFigures(gpu_idle_pct=idle, gpu_idle_bound=bound, gpu_idle_source="util")


@pytest.mark.parametrize(
    ("idle", "bound", "verdict"),
    [
        (0.4, False, "gpu_bound"),
        (9.9, False, "gpu_bound"),
        (10.0, False, "unknown"),
        (0.4, True, "unknown"),
        (None, False, "unknown"),
    ],
)
def test_the_idle_share_of_the_window_decides_where_snapshots_do_not(
    idle: float | None, bound: bool, verdict: str
) -> None:
    said, summary = verdict_of_window(_window(99.0, bound=True), _figures(idle, bound))
    assert said == verdict
    assert (f"idle for {idle} % of the window, by GPU-Util" in summary) == (verdict == "gpu_bound")


def test_a_bound_of_the_idle_share_says_what_to_do() -> None:
    few = replace(_figures(0.4, bound=True), gpu_idle_source="events")
    assert "measure for 5 s or longer" in verdict_of_window(_window(99.0, bound=True), few)[1]
    assert "llmtop capture" in verdict_of_window(_window(99.0, bound=True), _figures(0.4, bound=True))[1]


def test_a_bound_is_written_as_one_and_compared_with_nothing() -> None:
    short = [replace(run, figures=replace(run.figures, gpu_idle_pct=0.4, gpu_idle_bound=True)) for run in RUNS]
    bench = made_bench(short, figures=summarize_runs(short, made_bench(short).settings))
    text = write_text(bench_document(bench), 100)
    row = next(line for line in text.splitlines() if "GPU idle" in line)
    assert row.split() == ["GPU", "idle", "≥", "0.4%", "≥", "0.4%", "≥", "0.4%", "–"]
    idle = next(metric for metric in METRICS if metric.name == "gpu_idle_pct")
    assert [metric_value(run, idle) for run in short] == [None, None]
    whole = [replace(run, figures=replace(run.figures, gpu_idle_pct=0.4)) for run in RUNS]
    assert [metric_value(run, idle) for run in whole] == [0.4, 0.4]


@pytest.mark.parametrize("missing", [0.0, 0.4, 0.7])
def test_energy_of_a_window_whose_last_reading_came_early(missing: float) -> None:
    window = MeasuredSteps(started_at=100.0, seconds=3.0, warmup_steps=10, step_seconds=[0.1] * 30)
    times = [at for at in np.arange(99.8, 103.01, 0.5) if at <= 103.0 - missing]
    gpus = [
        Gpu(index=0, name="H200", uuid="a", energy_joules=5000.0 + 700.0 * (at - 90.0), sampled_at=float(at))
        for at in times
    ]
    snapshots = [Snapshot(time=gpu.sampled_at, host=Host(name="box"), gpus=(gpu,)) for gpu in gpus]
    rank = RankSteps(Rank(pid=7, host="box", gpu_uuid="a"))
    found = window_figures(window, [], [rank], snapshots, frozenset())
    assert found.power_watts == pytest.approx(700.0)
    assert found.energy_joules == pytest.approx(2100.0)


def test_what_the_snapshots_show_holds() -> None:
    said, summary = verdict_of_window(_window(99.0, WAITS, bound=True), _figures(0.4))
    assert said == "input_bound"
    assert "of the window" not in summary


def test_without_snapshots_nothing_is_said() -> None:
    assert verdict_of_window([], _figures(0.4)) == ("unknown", "")
