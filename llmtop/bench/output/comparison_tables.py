"""A comparison, a ranking or plain runs as sentences and tables: what the terminal and Markdown have in common."""

from __future__ import annotations

from llmtop.bench.model.comparison import BenchComparison, FigureChange, Ranking
from llmtop.bench.model.fact_differences import difference_texts
from llmtop.bench.model.results import METRICS, Bench
from llmtop.bench.statistics.decide import change_text
from llmtop.format import DASH, count, counted, duration, number, printable, size
from llmtop.report.render.text_table import TextTable

_MOST_WORDS = 200


def value_text(value: float | None, unit: str) -> str:
    """A figure with its unit; of a rate without, since its title has it."""
    if value is None:
        return DASH
    if unit == "s":
        return duration(value)
    if unit == "B":
        return size(value)
    if unit in ("%", "W"):
        return number(value, 1, unit if unit == "%" else f" {unit}")
    return f"{value:.4g}" if value < 9_999.5 else count(value)


def comparison_table(found: BenchComparison) -> TextTable:
    """Every figure that both sides have."""
    return TextTable(
        title="Compared",
        header=("figure", "baseline", "candidate", "change", "worse by, 95%", "beyond noise"),
        rows=[_row(change) for change in found.changes],
        most=len(METRICS),
    )


def _row(change: FigureChange) -> tuple[str, ...]:
    return (
        change.title,
        value_text(change.baseline, change.unit),
        value_text(change.candidate, change.unit),
        change_text(change.worse_pct),
        _interval_text(change.worse_low_pct, change.worse_high_pct),
        "yes" if change.is_beyond_noise else "no",
    )


def _interval_text(low: float, high: float) -> str:
    """An interval in percent."""
    digits = 1 if max(abs(low), abs(high)) < 100.0 else 0
    return f"{low + 0.0:+.{digits}f} … {high + 0.0:+.{digits}f}%"


def ranking_table(found: Ranking) -> TextTable:
    """The values, best first."""
    rows = []
    alone = not any(value.as_good_as_best for value in found.values[1:])
    for place, value in enumerate(found.values):
        first = place == 0
        rows.append(
            (
                printable(value.label, 60),
                value_text(value.median, found.unit),
                DASH if first else change_text(value.behind_pct),
                DASH if first else _interval_text(value.behind_low_pct, value.behind_high_pct),
                ("best" if alone else DASH) if first else ("no" if value.as_good_as_best else "yes"),
            )
        )
    return TextTable(
        title="Ranked",
        header=("value", found.title, "than the first", "worse by", "worse beyond noise"),
        rows=rows,
        most=len(rows),
    )


def runs_table(found: Bench) -> TextTable:
    """Every figure over the runs of each variant."""
    titles = {metric.name: metric for metric in METRICS}
    rows = [
        (
            f"{titles[name].title}{f' ({printable(label, 40)})' if label else ''}",
            value_text(over.median, titles[name].unit),
            value_text(over.lowest, titles[name].unit),
            value_text(over.highest, titles[name].unit),
            f"{over.spread_pct:.1f}%",
        )
        for label, figures in found.figures.items()
        for name, over in figures.items()
        if name in titles
    ]
    return TextTable(
        title="Runs", header=("figure", "median", "lowest", "highest", "spread"), rows=rows, most=len(rows) or 1
    )


def comparison_sentences(found: BenchComparison) -> list[str]:
    """What was compared and how, in what the environments differ, and what else is to be known."""
    lines = []
    if found.advice:
        lines.append(f"To decide it: {found.advice}.")
    how = "interleaved, compared as pairs" if found.paired else "not interleaved"
    if found.changes and not found.against.startswith("the history"):
        lines.append(
            f"Against {printable(found.against, _MOST_WORDS)}: {counted(found.baseline_runs, 'run')} and "
            f"{counted(found.candidate_runs, 'run')}, {how}; 95% confidence."
        )
    elif found.changes:
        lines.append(f"Against {printable(found.against, _MOST_WORDS)}, medians of each; 95% confidence.")
    if found.block_steps is not None:
        steps = "single steps" if found.block_steps == 1 else f"blocks of {found.block_steps} steps"
        lines.append(f"Resampled by runs, then by {steps}: {found.block_reason}.")
    if found.differs:
        differences = "; ".join(printable(one, _MOST_WORDS) for one in difference_texts(found.differs))
        lines.append(f"The environments differ: {differences}.")
    lines += [f"{printable(note, 400)}" for note in found.notes]
    if found.capture:
        lines.append(f"Captured, with the compared report beside it: {found.capture}")
    return lines


def headline(found: Bench) -> tuple[str, str]:
    """One word for what it came to, and the sentence to it."""
    if found.comparison is not None:
        decision = found.comparison.decision
        return ("compared" if decision == "none" else decision), found.comparison.reason
    if found.ranking is not None:
        return "ranked", found.ranking.summary
    if found.state != "done":
        why = found.runs[-1].notes[0] if found.runs and found.runs[-1].notes else "not all runs were measured"
        return found.state, why
    return (
        "measured",
        f"{counted(sum(run.attached for run in found.runs), 'run')} of {printable(' '.join(found.command), 120)}",
    )
