"""All runs, one after the other: who comes when, and what they come to together."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import msgspec

from llmtop.bench.model.results import (
    METRICS,
    METRICS_FILE,
    Bench,
    BenchRun,
    BenchSettings,
    FigureSummary,
    State,
    has_enough_steps,
    is_bound,
)
from llmtop.bench.run.artifacts import write_environment
from llmtop.bench.run.command_process import check_program
from llmtop.bench.run.interrupt import collect_interrupts
from llmtop.bench.run.memory_layout import RANDOM_LAYOUT, can_fix_layout
from llmtop.bench.run.run_once import RunRequest, run_once
from llmtop.bench.run.run_together import run_together
from llmtop.capture.base.folder import write
from llmtop.environment.collect import as_dict
from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput
from llmtop.format import counted, duration, encode_json
from llmtop.redaction.secret_filter import words_without_secrets


@dataclass(frozen=True)
class Variant:
    """One of the commands that are run beside each other."""

    command: tuple[str, ...]
    label: str = ""
    """Label of the variant; "" where there is only one."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Set in its environment."""


def interleave(variants: Sequence[Variant], runs: int) -> list[Variant]:
    """Return the order of runs: each variant once in every round, first and last in turns.

    So what drifts over minutes (heat, a neighbour) touches all of them alike.
    """
    return [one for turn in range(runs) for one in (variants if turn % 2 == 0 else tuple(reversed(variants)))]


def measure(
    variants: Sequence[Variant],
    settings: BenchSettings,
    out: Path,
    say: Callable[[str], None],
    *,
    bare: bool = False,
    check: Callable[[Mapping[str, str]], None] | None = None,
) -> Bench:
    """Make all runs and write metrics.json of all of them into `out`, again after each run.

    Args:
        variants: what to run, `settings.runs` times each.
        settings: of every run.
        out: the folder; made if it is not there.
        say: prints a sentence on the terminal.
        bare: one more run first, without llmtop; needs `settings.to_end`.
        check: called with the main facts of the environment before the first run; an exception ends the bench.

    Returns:
        All of it; `state` is "done" only if every run has its window. Otherwise the last run says why.

    Raises:
        UnusableInput: a command cannot be started, or `out` holds the runs of another bench.
        NotPossibleHere: nothing can be written there.
    """
    for variant in variants:
        check_program(variant.command, {**os.environ, **variant.variables})
    with collect_interrupts() as interrupts:  # one outside a run ends the bench as one within a run does
        _make_folder(out)
        order = interleave(variants, settings.runs)
        _announce(variants, settings, out, say, bare=bare)
        found = Bench(
            started_at=time.time(),
            host=platform.node(),
            command=words_without_secrets(variants[0].command),
            settings=settings,
        )
        _save(found, out)
        first = [_request(0, order[0], settings, out, say, attached=False)] if bare else []
        later = [_request(number, one, settings, out, say, attached=True) for number, one in enumerate(order, 1)]
        if settings.turns is not None and not can_fix_layout():
            found.notes.append(RANDOM_LAYOUT)
            say(RANDOM_LAYOUT)
        if check is not None:
            _check(found, out, later[0], check)
        together = 1 if settings.turns is None else len(variants)
        groups = [[one] for one in first] + [later[at : at + together] for at in range(0, len(later), together)]
        for group in groups:
            if interrupts and found.state == "running":
                found.state = "interrupted"
            if found.state != "running":
                break
            _add(found, out, group, say)
    found.state = "done" if found.state == "running" else found.state
    found.finished_at = time.time()
    _save(found, out)
    return found


def _check(found: Bench, out: Path, request: RunRequest, check: Callable[[Mapping[str, str]], None]) -> None:
    """Check the environment before anything runs."""
    found.environment = write_environment(out, request, found.settings).main_facts()
    try:
        check(found.environment)
    except LlmtopError as error:
        found.state, found.finished_at = "failed", time.time()
        found.notes.append(str(error))
        _save(found, out)
        raise


def _make_folder(out: Path) -> None:
    if (out / METRICS_FILE).exists():
        raise UnusableInput(f"{out} holds the runs of another bench: give another folder with --out, or remove it")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotPossibleHere(
            f"{out} cannot be created: {error.strerror}; choose another folder with --out"
        ) from None


def _announce(
    variants: Sequence[Variant], settings: BenchSettings, out: Path, say: Callable[[str], None], *, bare: bool
) -> None:
    times = counted(settings.runs * len(variants) + bare, "time")
    what = "the command" if len(variants) == 1 else f"{len(variants)} commands, interleaved:"
    verb = "will be run" if len(variants) == 1 else "will be run, in all"
    say(f"{what} {verb} {times}, with all that it does and writes; artifacts go to {out}")
    if settings.turns is not None:
        say("all commands run at the same time, in turns: one is stopped (SIGSTOP) while another runs")
    say(f"a run ends when no step ends for {duration(settings.step_timeout_seconds)} (--step-timeout)")


def _request(
    number: int,
    variant: Variant,
    settings: BenchSettings,
    out: Path,
    say: Callable[[str], None],
    *,
    attached: bool,
) -> RunRequest:
    return RunRequest(
        number=number,
        folder=out / (f"run-{number}" if attached else "bare"),
        command=variant.command,
        settings=settings,
        variables=variant.variables,
        label=variant.label,
        attached=attached,
        say=say,
    )


def _add(found: Bench, out: Path, requests: Sequence[RunRequest], say: Callable[[str], None]) -> None:
    """Make one run, or one of each command at the same time, and take it in: what it came to, and whether there
    shall be more."""
    say(" and ".join(_run_name(request) for request in requests))
    try:
        if not found.environment:
            found.environment = write_environment(out, requests[0], found.settings).main_facts()
        around = [write_environment(one.folder, one, found.settings) for one in requests]
        whole = [replace(one, surroundings=as_dict(facts)) for one, facts in zip(requests, around, strict=True)]
        runs = [run_once(whole[0])] if found.settings.turns is None else run_together(whole)
    except NotPossibleHere as error:
        found.state = "failed"
        found.notes.append(str(error))
        say(f"llmtop: {error}")
        return
    found.runs += runs
    states = [next_state(run, found.settings) for run in runs]
    found.state = next((state for state in states if state != "running"), "running")
    for run in runs:
        for sentence in (*run.unsteady, *run.notes):
            say(f"run {run.number}: {sentence}")
    found.figures = summarize_runs(found.runs, found.settings)
    found.attach_cost_text = attaching(found.runs, found.settings)
    _save(found, out)


def _run_name(request: RunRequest) -> str:
    if not request.attached:
        return "a run without llmtop"
    return f"run {request.number}{f' ({request.label})' if request.label else ''}"


def next_state(run: BenchRun, settings: BenchSettings) -> State:
    """Return True if there shall be more runs after this one: "running" if so, else how it all ended."""
    if run.ended == "interrupted":
        return "interrupted"
    if not run.attached:
        return "running" if run.ended == "itself" else "failed"
    return "running" if has_enough_steps(run, settings) else "failed"


def summarize_runs(runs: Iterable[BenchRun], settings: BenchSettings) -> dict[str, dict[str, FigureSummary]]:
    """Return median and spread over the runs that count, by variant and figure."""
    values: dict[str, dict[str, list[float]]] = {}
    bounds = set()
    for run in runs:
        if run.attached and has_enough_steps(run, settings):
            for metric in METRICS:
                value = getattr(run.figures, metric.name)
                if value is not None:
                    values.setdefault(run.label, {}).setdefault(metric.name, []).append(float(value))
                    if is_bound(run.figures, metric):
                        bounds.add((run.label, metric.name))
    return {
        label: {name: _summarize(found, is_lower_bound=(label, name) in bounds) for name, found in named.items()}
        for label, named in values.items()
    }


def _summarize(values: list[float], *, is_lower_bound: bool) -> FigureSummary:
    middle, low, high = median(values), min(values), max(values)
    spread = 100.0 * (high - low) / abs(middle) if middle else 0.0
    return FigureSummary(
        median=middle, lowest=low, highest=high, spread_pct=spread, runs=len(values), is_lower_bound=is_lower_bound
    )


def attaching(runs: Sequence[BenchRun], settings: BenchSettings) -> str | None:
    """Cost of being attached for whole runs of the first variant; None without a bare run to compare with."""
    bare = [run for run in runs if not run.attached]
    attached = [run for run in runs if run.attached and has_enough_steps(run, settings) and run.ended == "itself"]
    attached = [run for run in attached if run.label == attached[0].label]
    if not bare or not attached:
        return None
    walls, steps = [run.wall_seconds for run in attached], median(run.steps_seen for run in attached)
    more = median(walls) - bare[0].wall_seconds
    spread, sign = max(walls) - min(walls), "+" if more >= 0 else ""
    noise = "" if abs(more) > spread else ", less than the runs differ by among themselves"
    return (
        f"an attached run took {duration(median(walls))} in all, the bare one {duration(bare[0].wall_seconds)}: "
        f"{sign}{duration(more)}, or {sign}{duration(more / max(steps, 1))} a step "
        f"including the time to attach at the start{noise}"
    )


def _save(found: Bench, out: Path) -> None:
    write(out / METRICS_FILE, msgspec.json.format(encode_json(found), indent=2) + b"\n")
