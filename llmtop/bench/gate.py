"""Options of a bench besides running: reference, metric and limit, and where the result is written."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from llmtop.bench.baseline import (
    BASELINE,
    CANDIDATE,
    check_baseline_path,
    counted_runs,
    read_baseline,
    save_baseline,
)
from llmtop.bench.comparing import MIN_RUNS, choose_metric, compare_runs, metric_value
from llmtop.bench.history import HistoryEntry, append_history, comparable_entries, compare_history, read_history
from llmtop.bench.limits import FigureLimit, check_limits, merge_limits
from llmtop.bench.model.comparison import BenchComparison
from llmtop.bench.model.fact_differences import difference_texts, fact_differences
from llmtop.bench.model.results import METRICS_FILE, UNKNOWN_IN_TURNS, Bench, BenchMetric, BenchRun
from llmtop.bench.output.document import summary_document
from llmtop.bench.output.junit import render_junit
from llmtop.bench.parameter_sweep import parameter_variants
from llmtop.bench.protocol import Variant
from llmtop.bench.rank import rank_values
from llmtop.bench.regression_capture import capture_and_compare
from llmtop.bench.statistics.decide import Decision
from llmtop.bench.statistics.step_statistics import metric_named
from llmtop.capture.base.folder import write
from llmtop.document.markdown import write_markdown
from llmtop.errors import EXIT_DONE, EXIT_ENVIRONMENT, UnusableInput
from llmtop.format import encode_json
from llmtop.redaction.secret_filter import words_without_secrets

RUNS_COMPARED = 5
"""Runs per side. Fewer give a wide interval: with three on each side t is 2.8, with five 2.3."""


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """The options of `llmtop bench` that compare, as they were given."""

    baseline: Path | None = None
    against: str | None = None
    turns: float | None = None
    """Seconds of a turn; 0: chosen by the bench. None: one run follows the other."""
    history: Path | None = None
    window: int = 10
    vary: tuple[str, ...] = ()
    fail_over: tuple[FigureLimit, ...] = ()
    metric: str | None = None
    strict: bool = False
    capture: bool = False
    save_baseline: Path | None = None
    force: bool = False
    summary: Path | None = None
    junit: Path | None = None

    @property
    def compares(self) -> bool:
        """Return True if runs are held against anything, now or later."""
        return bool(self.baseline or self.against or self.history or self.vary or self.save_baseline)


class Gate:
    """Everything that is compared and decided about one bench. What cannot be is refused before the first run."""

    def __init__(self, options: GateOptions, command: Sequence[str], runs: int) -> None:
        """Check what was asked for, and read the baseline.

        Raises:
            UnusableInput: the options contradict each other, or what they name cannot be used.
        """
        self._options, self._command = options, tuple(command)
        _check(options, runs)
        self._metric = metric_named(options.metric) if options.metric is not None else None
        self._limits: Sequence[FigureLimit | None] = options.fail_over or (None,)
        self._baseline = read_baseline(options.baseline) if options.baseline is not None else None
        self._before = counted_runs(self._baseline) if self._baseline is not None else []
        if self._baseline is not None:
            for limit in self._limits:
                choose_metric(self._metric_of(limit), self._before)
        self._history = read_history(options.history) if options.history is not None else []
        self.variants = self._variants()

    def _metric_of(self, limit: FigureLimit | None) -> BenchMetric | None:
        return limit.metric if limit is not None and limit.metric is not None else self._metric

    def _variants(self) -> list[Variant]:
        if self._options.vary:
            return parameter_variants(self._options.vary[0], self._command)
        if self._options.against is None:
            return [Variant(self._command)]
        try:
            other = shlex.split(self._options.against)
        except ValueError as error:
            raise UnusableInput(f"--against {self._options.against}: {error}") from None
        if not other:
            raise UnusableInput("--against needs a command in quotes, as in --against 'python train_before.py'")
        return [Variant(tuple(other), BASELINE), Variant(self._command, CANDIDATE)]

    def check_environment(self, facts: Mapping[str, str]) -> None:
        """With --strict, raise if the environment is not the baseline's.

        Args:
            facts: the main facts of the environment, before the first run.

        Raises:
            UnusableInput: something differs that figures may depend on.
        """
        if self._baseline is None or not self._options.strict:
            return
        differs = [one for one in fact_differences(self._baseline.environment, facts) if one.matters]
        if differs:
            raise UnusableInput(
                f"--strict: the environment differs from that of {self._options.baseline} "
                f"({'; '.join(difference_texts(differs))}): create the baseline again on this machine, or remove "
                "--strict"
            )

    def judge(self, found: Bench, folder: Path, say: Callable[[str], None]) -> int:
        """Compare, decide, and keep what shall be kept.

        Args:
            found: all runs; what they are held to is entered into it.
            folder: of the artifacts.
            say: prints a sentence on the terminal.

        Returns:
            The exit code.

        Raises:
            LlmtopError: the runs cannot be compared by what was asked for, or something cannot be written.
        """
        if found.state != "done":
            return EXIT_ENVIRONMENT
        if self._options.vary:
            self._rank(found)
        else:
            found.comparison = self._compare(found)
        decision = found.comparison.decision if found.comparison is not None else "none"
        is_worse = decision in (Decision.REGRESSION.value, Decision.UNDECIDABLE.value)
        if self._options.history is not None:
            self._append_history(found, self._options.history, decision)
        wanted = decision == Decision.REGRESSION.value or (
            self._options.save_baseline is not None and not is_worse
        )
        if self._options.capture and wanted:
            taken = capture_and_compare(
                found, self._baseline, self.variants, folder, environment=os.environ, say=say
            )
            if found.comparison is not None and taken is not None:
                found.comparison = msgspec.structs.replace(found.comparison, capture=taken)
        if self._options.save_baseline is not None and not is_worse:
            save_baseline(found, self._options.save_baseline, folder)
        elif self._options.save_baseline is not None:
            found.notes.append(f"{self._options.save_baseline} was not written: a baseline is no {decision} one")
        write(folder / METRICS_FILE, msgspec.json.format(encode_json(found), indent=1) + b"\n")
        return EXIT_DONE if not self._options.fail_over else _exit_code(decision)

    def _compare(self, found: Bench) -> BenchComparison | None:
        compared = [self._compare_figure(found, limit) for limit in self._limits]
        whole = [one for one in compared if one is not None]
        return merge_limits(whole, self._options.fail_over) if whole else None

    def _compare_figure(self, found: Bench, limit: FigureLimit | None) -> BenchComparison | None:
        wanted = self._metric_of(limit)
        if self._options.against is not None:
            before, after = counted_runs(found, BASELINE), counted_runs(found, CANDIDATE)
            metric = choose_metric(wanted, before, after)
            return compare_runs(
                before,
                after,
                against=shlex.join(words_without_secrets(self.variants[0].command)),
                metric=metric,
                limit=_percent(limit, [metric_value(run, metric) for run in before]),
                paired=True,
            )
        after = counted_runs(found)
        if self._options.history is not None:
            return self._with_history(found, after, self._options.history, limit)
        if self._baseline is None:
            return None
        metric = choose_metric(wanted, self._before, after)
        return compare_runs(
            self._before,
            after,
            against=str(self._options.baseline),
            metric=metric,
            limit=_percent(limit, [metric_value(run, metric) for run in self._before]),
            differs=fact_differences(self._baseline.environment, found.environment),
        )

    def _with_history(
        self, found: Bench, runs: Sequence[BenchRun], path: Path, limit: FigureLimit | None
    ) -> BenchComparison:
        metric = choose_metric(self._metric_of(limit), runs)
        entries = comparable_entries(self._history, found.environment, metric, self._options.window)
        values = [value for run in runs if (value := metric_value(run, metric))]
        left_out = max(0, min(len(self._history), self._options.window) - len(entries))
        return compare_history(
            entries,
            values,
            path=path,
            metric=metric,
            limit=_percent(limit, [entry.medians.get(metric.name) for entry in entries]),
            left_out=left_out,
        )

    def _append_history(self, found: Bench, path: Path, decision: str) -> None:
        figures = found.figures.get("", {})
        append_history(
            path,
            HistoryEntry(
                time=found.finished_at or time.time(),
                medians={name: over.median for name, over in figures.items() if not over.is_lower_bound},
                runs=sum(run.attached for run in found.runs),
                command=" ".join(found.command),
                decision=decision,
                environment=dict(found.environment),
                llmtop=found.llmtop,
            ),
        )

    def _rank(self, found: Bench) -> None:
        runs = {variant.label: counted_runs(found, variant.label) for variant in self.variants}
        found.ranking = rank_values(runs, choose_metric(self._metric, *runs.values()))

    def write(self, found: Bench) -> None:
        """Write what CI shows, however the bench went.

        Raises:
            NotPossibleHere: a file cannot be written.
        """
        if self._options.summary is not None:
            write(self._options.summary, write_markdown(summary_document(found)).encode())
        if self._options.junit is not None:
            write(self._options.junit, render_junit(found))


def _percent(limit: FigureLimit | None, baseline: Sequence[float | None]) -> float | None:
    """Return the limit in percent of the median of the baseline's figures; 0 without any, when nothing is
    judged."""
    if limit is None:
        return None
    values = [value for value in baseline if value]
    return limit.percent_of(median(values) if values else None) or 0.0


def _exit_code(decision: str) -> int:
    return EXIT_DONE if decision == "none" else Decision(decision).exit_code


def _check(options: GateOptions, runs: int) -> None:
    """Refuse what cannot be meant."""
    given = [
        name
        for name, value in (
            ("--baseline", options.baseline),
            ("--against", options.against),
            ("--history", options.history),
            ("--vary", options.vary or None),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise UnusableInput(f"{' and '.join(given)} exclude each other: pass one of them")
    if len(options.vary) > 1:
        raise UnusableInput("--vary supports one parameter: pass it once")
    if options.fail_over and given in ([], ["--vary"]):
        raise UnusableInput("--fail-over needs a baseline: add --baseline, --against or --history")
    check_limits(options.fail_over)
    if options.turns is not None:
        _check_turns(options)
    if options.strict and options.baseline is None:
        raise UnusableInput("--strict compares the environment with a baseline: add --baseline")
    if options.capture and not options.fail_over and options.save_baseline is None:
        raise UnusableInput("--capture-on-regression needs a threshold: add --fail-over 5")
    if options.save_baseline is not None and options.vary:
        raise UnusableInput(
            "--save-baseline keeps one command, and --vary runs several: bench the best value alone"
        )
    if runs < MIN_RUNS and options.compares and not options.save_baseline:
        raise UnusableInput(f"--runs {runs}: with fewer than {MIN_RUNS} the noise is unknown; use 5")
    if options.save_baseline is not None:
        check_baseline_path(options.save_baseline, force=options.force)
    for name, path in (("--summary", options.summary), ("--junit", options.junit), ("--history", options.history)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UnusableInput(f"{name} {path}: the folder of this file does not exist")


def _check_turns(options: GateOptions) -> None:
    """Refuse turns of one command alone, and metrics that the pauses change."""
    if not (options.against or options.vary):
        raise UnusableInput("--turns needs several commands: add --against or --vary")
    wanted = [limit.metric for limit in options.fail_over]
    wanted += [metric_named(options.metric)] if options.metric is not None else []
    for metric in wanted:
        if metric is not None and metric.name in UNKNOWN_IN_TURNS:
            raise UnusableInput(f"--turns: {metric.title} is unknown while commands share the GPU; remove --turns")
