"""The verdict and the figures of a short window, which a monitor's snapshots alone leave unknown."""

from __future__ import annotations

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


def test_each_reason_of_an_unknown_verdict_is_written_once() -> None:
    bound = replace(RUNS[0].figures, gpu_idle_pct=0.4, gpu_idle_bound=True)
    whys = ("few readings", "small kernels", "few readings")
    runs = [
        replace(run, figures=bound, verdict="unknown", verdict_summary=why)
        for run, why in zip(made_runs(0.1, 3), whys, strict=True)
    ]
    bench = made_bench(runs, figures=summarize_runs(runs, made_bench(runs).settings))
    assert "verdict: unknown (few readings; small kernels)" in write_text(bench_document(bench), 100)


def _energy_figures(seconds: float, readings: list[float], every: int = 2) -> RunFigures:
    """Figures of a window on a GPU with 100 W until 0.6 s before it, 700 W since, and a counter 0.5 s late.

    Every second sample repeats the value of the one before, as the collector does.
    """
    read = [readings[place - place % every] for place in range(len(readings))]
    joules = [5000.0 + 100.0 * (at - 90.0) + 600.0 * max(0.0, at - 99.9) for at in read]
    gpus = [
        Gpu(index=0, name="H200", uuid="a", energy_joules=one, sampled_at=at)
        for at, one in zip(readings, joules, strict=True)
    ]
    snapshots = [Snapshot(time=gpu.sampled_at or 0.0, host=Host(name="box"), gpus=(gpu,)) for gpu in gpus]
    steps = round(seconds / 0.1)
    window = MeasuredSteps(started_at=100.0, seconds=seconds, warmup_steps=10, step_seconds=[0.1] * steps)
    return window_figures(window, [], [RankSteps(Rank(pid=7, host="box", gpu_uuid="a"))], snapshots, frozenset())


@pytest.mark.parametrize("phase", [0.0, 0.3, 0.6, 0.9, 1.2, 1.5])
@pytest.mark.parametrize("apart", [0.99, 1.0, 1.01])
@pytest.mark.parametrize("seconds", [10.0, 30.0])
def test_energy_is_of_the_window_though_the_counter_is_late_and_no_reading_follows(
    seconds: float, apart: float, phase: float
) -> None:
    times = [97.0 + phase + apart * number for number in range(40)]
    readings = [at for at in times if at <= 100.0 + seconds]
    found = _energy_figures(seconds, readings)
    assert found.power_watts == pytest.approx(700.0)
    assert found.energy_joules == pytest.approx(700.0 * seconds)


@pytest.mark.parametrize("phase", [0.0, 0.3, 0.6, 0.9])
def test_of_a_short_window_the_energy_is_right_or_absent(phase: float) -> None:
    for seconds in (2.4, 3.0, 5.0):
        readings = [96.0 + phase + number for number in range(9) if 96.0 + phase + number <= 100.0 + seconds]
        joules = _energy_figures(seconds, readings).energy_joules
        assert joules is None or joules == pytest.approx(700.0 * seconds)
    assert _energy_figures(8.0, [105.5, 106.5, 107.5], every=1).energy_joules is None


def test_what_the_snapshots_show_holds() -> None:
    said, summary = verdict_of_window(_window(99.0, WAITS, bound=True), _figures(0.4))
    assert said == "input_bound"
    assert "of the window" not in summary


def test_without_snapshots_nothing_is_said() -> None:
    assert verdict_of_window([], _figures(0.4)) == ("unknown", "")
