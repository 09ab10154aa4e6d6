"""Runs of `llmtop bench` as they would have been, with noise of a known size."""

from __future__ import annotations

import numpy as np

from llmtop.bench.model.results import Bench, BenchRun, BenchSettings, FigureSummary, MeasuredSteps, RunFigures

TOKENS = 1000.0


def made_runs(
    step: float, count: int, *, seed: int = 0, label: str = "", between: float = 0.003, within: float = 0.01
) -> list[BenchRun]:
    """Runs of 40 steps of about `step` seconds; `between` and `within` are standard deviations of logarithms."""
    random = np.random.default_rng(seed)
    runs = []
    for number in range(1, count + 1):
        times = step * np.exp(random.normal() * between + within * random.normal(size=40))
        mean = float(times.mean())
        p50, p95, p99 = (float(np.quantile(times, share)) for share in (0.5, 0.95, 0.99))
        window = MeasuredSteps(
            started_at=1e9, seconds=float(times.sum()), warmup_steps=5, step_seconds=[float(one) for one in times]
        )
        runs.append(
            BenchRun(
                number=number,
                folder=f"run-{number}",
                label=label,
                command=["python", "train.py"],
                started_at=1e9,
                wall_seconds=10.0,
                ended="window",
                signal="SIGINT",
                steps_seen=50,
                window=window,
                figures=RunFigures(
                    steps_per_s=1.0 / mean,
                    tokens_per_s=TOKENS / mean,
                    step_seconds_mean=mean,
                    step_seconds_p50=p50,
                    step_seconds_p95=p95,
                    step_seconds_p99=p99,
                ),
            )
        )
    return runs


def made_bench(runs: list[BenchRun], **more: object) -> Bench:
    """All of them as metrics.json has them, done."""
    figures: dict[str, dict[str, FigureSummary]] = {}
    for label in dict.fromkeys(run.label for run in runs):
        rates = [run.figures.tokens_per_s or 0.0 for run in runs if run.label == label]
        figures[label] = {
            "tokens_per_s": FigureSummary(
                median=float(np.median(rates)),
                lowest=min(rates),
                highest=max(rates),
                spread_pct=1.0,
                runs=len(rates),
            )
        }
    found = Bench(
        state="done",
        started_at=1e9,
        finished_at=1e9 + 60,
        host="here",
        command=["python", "train.py"],
        settings=BenchSettings(warmup=5, steps=40, runs=len(runs)),
        environment={"GPUs": "1 x H200", "driver": "580.1", "commit": "abc", "host": "here"},
        runs=runs,
        figures=figures,
    )
    for name, value in more.items():
        setattr(found, name, value)
    return found
