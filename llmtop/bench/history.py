"""A file of earlier benches, for machines whose noise is from day to day: one line each, with medians over runs.

What is new is held to the last of them. How far their medians lie apart is the noise, whatever it comes from: no
number of runs at one hour shows that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from llmtop.bench.model.comparison import BenchComparison, FigureChange
from llmtop.bench.model.fact_differences import fact_differences
from llmtop.bench.model.results import BenchMetric
from llmtop.bench.statistics.blocks import BlockLength
from llmtop.bench.statistics.decide import Decision, GateVerdict, decide
from llmtop.bench.statistics.intervals import CONFIDENCE, ChangeInterval
from llmtop.bench.statistics.student_t import t_quantile
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.format import encode_json, printable
from llmtop.system.inputs import read_input

MIN_ENTRIES = 3
"""Earlier benches; of fewer it is not known how far they lie apart."""
_OF_A_MEDIAN = math.pi / 2.0
"""The variance of a median over that of a mean, of the same normal values."""


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a bench in short."""

    time: float
    """Unix time at which it ended."""
    medians: dict[str, float]
    """Median over its runs, by the figure's name."""
    runs: int
    command: str = ""
    """Command line without secrets."""
    decision: str = "none"
    """Decision on this run. A regression stays out of the window of later runs."""
    environment: dict[str, str] = {}
    llmtop: str = ""


def read_history(path: Path) -> list[HistoryEntry]:
    """Return all lines, oldest first; none where there is no file yet.

    Raises:
        UnusableInput: a line is damaged, or it is no such file.
    """
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(read_input(path).splitlines(), 1):
        if line.strip():
            try:
                found.append(msgspec.json.decode(line, type=HistoryEntry))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise UnusableInput(
                    f"{path}, line {number} is none of a history of llmtop bench ({printable(str(error), 120)}): "
                    "remove it, or name another file"
                ) from None
    return found


def append_history(path: Path, entry: HistoryEntry) -> None:
    """Add a line, in one write, so that two benches that end at once leave two lines.

    Raises:
        NotPossibleHere: the file cannot be written.
    """
    try:
        with path.open("ab", buffering=0) as file:
            file.write(encode_json(entry) + b"\n")
    except OSError as error:
        raise NotPossibleHere(
            f"{path} cannot be written: {error.strerror}; the history lacks this bench"
        ) from None


def comparable_entries(
    entries: Sequence[HistoryEntry], environment: Mapping[str, str], metric: BenchMetric, window: int
) -> list[HistoryEntry]:
    """Return the latest entries that a new run may be compared with, oldest first.

    Args:
        entries: of the history file, oldest first.
        environment: facts of the new run; entries that differ in one that matters are left out.
        metric: entries without this figure are left out.
        window: the most entries returned. Entries judged as a regression are left out, so that the baseline does
            not follow them.
    """
    alike = [
        entry
        for entry in entries
        if entry.decision != Decision.REGRESSION.value
        and entry.medians.get(metric.name, 0.0) > 0.0
        and not any(one.matters for one in fact_differences(entry.environment, environment))
    ]
    return alike[-window:]


def compare_history(
    entries: Sequence[HistoryEntry],
    values: Sequence[float],
    *,
    path: Path,
    metric: BenchMetric,
    limit: float | None,
    left_out: int = 0,
) -> BenchComparison:
    """Hold the median of this bench to those of earlier ones.

    The interval is one of prediction: one more bench of the same program lies within it with `CONFIDENCE`.

    Args:
        entries: of `comparable`.
        values: of the figure in each run of this bench.
        path: of the history.
        metric: the figure.
        limit: percent that it may be worse; None: nothing is decided.
        left_out: earlier benches that are not comparable.
    """
    against = f"the history {path.name} ({_count_text(len(entries))})"
    more = f"; {left_out} more are of another environment, or were regressions" if left_out else ""
    if len(entries) < MIN_ENTRIES:
        return BenchComparison(
            against=against,
            metric=metric.name,
            limit_pct=limit,
            decision="none",
            reason=f"the history holds {_count_text(len(entries))} to compare with, and {MIN_ENTRIES} are needed "
            f"before anything is judged{more}",
            baseline_runs=len(entries),
            candidate_runs=len(values),
        )
    earlier, now = np.log([entry.medians[metric.name] for entry in entries]), np.log(values)
    found = _predict_change(earlier, now)
    verdict = decide(found, metric, limit if limit is not None else math.inf)
    undecided = limit is not None and verdict.decision is Decision.UNDECIDABLE
    return BenchComparison(
        against=against,
        metric=metric.name,
        limit_pct=limit,
        decision="none" if limit is None else verdict.decision.value,
        reason=verdict.reason + more,
        advice="earlier benches lie too far apart for this limit: raise it, or quieten the machine"
        if undecided
        else "",
        changes=[_change(metric, earlier, now, verdict)],
        baseline_runs=len(entries),
        candidate_runs=len(values),
    )


def _change(metric: BenchMetric, earlier: np.ndarray, now: np.ndarray, verdict: GateVerdict) -> FigureChange:
    """Return the change from earlier medians to the runs of this bench, both as logarithms."""
    return FigureChange(
        name=metric.name,
        title=metric.title,
        unit=metric.unit,
        baseline=float(np.median(np.exp(earlier))),
        candidate=float(np.median(np.exp(now))),
        compared_baseline=float(np.exp(np.median(earlier))),
        compared_candidate=float(np.exp(np.median(now))),
        worse_pct=verdict.worse,
        worse_low_pct=verdict.worse_low,
        worse_high_pct=verdict.worse_high,
    )


def _count_text(number: int) -> str:
    return f"{number} bench" if number == 1 else f"{number} benches"


def _predict_change(earlier: np.ndarray, now: np.ndarray) -> ChangeInterval:
    """Return the change from the middle of earlier medians to this one, all as logarithms."""
    spread = float(earlier.var(ddof=1))
    own = float(now.var(ddof=1)) / len(now) * _OF_A_MEDIAN if len(now) > 1 else 0.0
    error = math.sqrt(spread / len(earlier) + max(spread, own))
    change = float(np.median(now) - np.median(earlier))
    half = error * t_quantile(0.5 + CONFIDENCE / 2.0, len(earlier) - 1)
    return ChangeInterval(change, change - half, change + half, error, len(earlier) - 1, BlockLength(1, ""), False)
