"""What a bench came to, as text."""

from __future__ import annotations

from llmtop.bench.model.results import METRICS, Bench, BenchMetric, FigureSummary
from llmtop.format import counted, duration, figure, number, size
from llmtop.report.render.text_table import TextTable


def render(found: Bench) -> str:
    """A line for each figure over all runs, and what has to be said of single ones."""
    lines = [_head(found)]
    for label, figures in found.figures.items():
        rows = [_row(metric, figures[metric.name]) for metric in METRICS if metric.name in figures]
        lines += ["", *([label] if label else []), *_table(rows)]
    verdicts = sorted({run.verdict for run in found.runs if run.attached and run.window is not None})
    if verdicts:
        lines += ["", f"verdict: {', '.join(verdicts)}"]
    unsteady = [f"run {run.number} is not steady: {why}" for run in found.runs for why in run.unsteady]
    costs = [run.figures.overhead_seconds for run in found.runs if run.figures.overhead_seconds is not None]
    if costs:
        lines.append(f"attached: {duration(max(costs))} a step, as the training itself estimates")
    return "\n".join(
        [*lines, *([found.attach_cost_text] if found.attach_cost_text else []), *unsteady, *found.notes]
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    table = TextTable("", ("", "median", "lowest", "highest", "spread"), rows, most=len(rows))
    return ["  ".join(cells).rstrip() for cells in table.lines()]


def _head(found: Bench) -> str:
    attached = [run for run in found.runs if run.attached]
    what = counted(len(attached), "run")
    states = {"done": "", "interrupted": ": interrupted", "failed": ": not all could be measured", "running": ""}
    window = f"{found.settings.steps} steps" if found.settings.steps else f"{found.settings.seconds:g} s"
    return (
        f"{what} of {window} each, after {counted(found.settings.warmup, 'step')} of warm-up{states[found.state]}"
    )


def _row(metric: BenchMetric, over: FigureSummary) -> tuple[str, ...]:
    values = (over.median, over.lowest, over.highest)
    return (metric.title, *(figure_text(metric, value) for value in values), number(over.spread_pct, 1, " %"))


def figure_text(metric: BenchMetric, value: float) -> str:
    """A figure as it is told: "13.9 ms", "63.5k tokens/s", "79.6 GiB"."""
    if metric.unit == "s":
        return duration(value)
    if metric.unit == "B":
        return size(value)
    return f"{figure(value)} {metric.unit}"
