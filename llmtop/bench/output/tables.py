"""Tables and sentences on runs, on a comparison and on a ranking."""

from __future__ import annotations

from llmtop.bench.model.comparison import BenchComparison, FigureChange, Ranking
from llmtop.bench.model.fact_differences import difference_texts
from llmtop.bench.model.results import METRICS, Bench, FigureSummary
from llmtop.bench.statistics.decide import change_text
from llmtop.bench.statistics.intervals import CONFIDENCE_TEXT
from llmtop.document.model import Table, columns
from llmtop.format import DASH, count, counted, duration, figure, number, percent, size


def value_text(value: float | None, unit: str) -> str:
    """Return a figure with its unit; of a rate without, since its title has it."""
    if value is None:
        return DASH
    if unit == "s":
        return duration(value)
    if unit == "B":
        return size(value)
    if unit == "J":
        return f"{figure(value)} J"
    if unit in ("%", "W"):
        return number(value, 1, unit if unit == "%" else f" {unit}")
    return figure(value) if value < 9_999.5 else count(value)


def comparison_table(found: BenchComparison) -> Table:
    """Every figure that both sides have."""
    heads = columns(
        ("figure",), ("baseline", "candidate", "change", f"worse by, {CONFIDENCE_TEXT}", "beyond noise")
    )
    average = "medians" if found.against.startswith("the history") else "geometric means of the runs"
    return Table(f"Compared ({average})", heads, [_row(change) for change in found.changes], most=len(METRICS))


def _row(change: FigureChange) -> tuple[str, ...]:
    return (
        change.title,
        value_text(_first(change.compared_baseline, change.baseline), change.unit),
        value_text(_first(change.compared_candidate, change.candidate), change.unit),
        change_text(change.worse_pct),
        _interval_text(change.worse_low_pct, change.worse_high_pct),
        "yes" if change.is_beyond_noise else "no",
    )


def _first(value: float | None, other: float) -> float:
    return other if value is None else value


def _interval_text(low: float, high: float) -> str:
    """Return an interval in percent."""
    digits = 1 if max(abs(low), abs(high)) < 100.0 else 0
    return f"{low + 0.0:+.{digits}f} … {high + 0.0:+.{digits}f}%"


def ranking_table(found: Ranking) -> Table:
    """Return the values, best first."""
    rows = []
    alone = not any(value.as_good_as_best for value in found.values[1:])
    for place, value in enumerate(found.values):
        first = place == 0
        rows.append(
            (
                value.label,
                value_text(_first(value.mean, value.median), found.unit),
                DASH if first else change_text(value.behind_pct),
                DASH if first else _interval_text(value.behind_low_pct, value.behind_high_pct),
                ("best" if alone else DASH) if first else ("no" if value.as_good_as_best else "yes"),
            )
        )
    heads = columns(("value",), (found.title, "than the first", "worse by", "worse beyond noise"))
    return Table("Ranked (geometric means of the runs)", heads, rows, most=len(rows))


def runs_tables(found: Bench) -> list[Table]:
    """Every figure over the runs of each variant."""
    tables = []
    for label, figures in found.figures.items():
        rows = [
            (
                metric.title,
                *(_value_or_bound(value, metric.unit, over) for value in (over.median, over.lowest, over.highest)),
                DASH if over.is_lower_bound else percent(over.spread_pct, 1),
            )
            for metric in METRICS
            if (over := figures.get(metric.name)) is not None
        ]
        heads = columns(("figure",), ("median", "lowest", "highest", "spread"))
        tables.append(Table(label or "Runs", heads, rows, most=len(METRICS)))
    return tables


def _value_or_bound(value: float, unit: str, over: FigureSummary) -> str:
    return f"≥ {value_text(value, unit)}" if over.is_lower_bound else value_text(value, unit)


def comparison_sentences(found: BenchComparison) -> list[str]:
    """Sentences on what was compared and how, where the environments differ, and further notes."""
    lines = [f"--fail-over {one.limit}: {one.decision}. {one.reason}." for one in found.limits]
    if found.advice:
        lines.append(f"To decide it: {found.advice}.")
    how = "interleaved, compared as pairs" if found.paired else "not interleaved"
    if found.in_turns:
        how = "at the same time in turns, compared round by round"
    if found.changes and not found.against.startswith("the history"):
        lines.append(
            f"Against {found.against}: {counted(found.baseline_runs, 'run')} and "
            f"{counted(found.candidate_runs, 'run')}, {how}; {CONFIDENCE_TEXT} confidence. Percentages are of the "
            "time for the same work."
        )
    elif found.changes:
        lines.append(f"Against {found.against}, medians of each; {CONFIDENCE_TEXT} confidence.")
    if found.block_steps is not None:
        what = "rounds of turns" if found.in_turns else "steps"
        steps = f"single {what}" if found.block_steps == 1 else f"blocks of {found.block_steps} {what}"
        lines.append(f"Resampled by runs, then by {steps}: {found.block_reason}.")
    if found.differs:
        differences = "; ".join(difference_texts(found.differs))
        lines.append(f"The environments differ: {differences}.")
    lines += found.notes
    if found.capture:
        lines.append(f"Captured, with the compared report beside it: {found.capture}")
    return lines


def headline(found: Bench) -> tuple[str, str]:
    """Return one word for what it came to, and the sentence to it."""
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
        f"{counted(sum(run.attached for run in found.runs), 'run')} of {' '.join(found.command)}",
    )
