"""The options of `llmtop bench` for comparison, decision, and CI."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def _parse_limits(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[Any, ...]:
    from llmtop.bench.limits import parse_limit  # not for --help

    return tuple(parse_limit(value) for value in values)


def _parse_turns(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of a turn; 0 for auto."""
    from llmtop.bench.limits import parse_turns  # not for --help

    return None if value is None else parse_turns(value)


_file = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE",
                 help="Compare with a file of --save-baseline, or with the folder of a bench."),
    click.option("--against", metavar="CMD",
                 help="Compare with another command, in quotes; the two commands run alternately."),
    click.option("--turns", callback=_parse_turns, metavar="auto|TIME",
                 help="With --against or --vary: run all commands at the same time, in turns of TIME (100ms, 2s). "
                 "One command is stopped (SIGSTOP) while another runs. For noisy machines; all commands must fit "
                 "in memory together."),
    click.option("--history", type=_file, metavar="FILE",
                 help="Compare with the medians of the last benches in FILE, and add this one."),
    click.option("--window", type=click.IntRange(3, 1000), default=10, show_default=True, metavar="N",
                 help="With --history: compare with the medians of the last N benches."),
    click.option("--vary", multiple=True, metavar="NAME=V1,V2,…",
                 help="Run with each value of an environment variable, or of {} in COMMAND, and rank the values."),
    click.option("--fail-over", multiple=True, callback=_parse_limits, metavar="[NAME=]LIMIT",
                 help="Exit with 1 if the result is worse by more than LIMIT percent (5 or 5%) and more than the "
                 "noise; with 3 if the noise is too large to decide. tokens/s=3 limits that metric; p95=2ms is in "
                 "the unit of the metric. "
                 "Repeatable."),
    click.option("--metric", metavar="NAME",
                 help="Metric to compare: tokens_per_s, steps_per_s, mean, p50, p95, p99, ttft, …  "
                 "[default: the first available rate]"),
    click.option("--strict", is_flag=True, help="Refuse a baseline whose environment (GPU, driver, packages) "
    "differs (exit code 2)."),
    click.option("--capture-on-regression", "capture", is_flag=True,
                 help="After a regression, run once more with a profiler and compare the captures; with "
                 "--save-baseline, store a capture of the baseline."),
    click.option("--save-baseline", type=_file, metavar="FILE", help="Store these runs as a baseline in FILE."),
    click.option("--force", "-f", is_flag=True, help="Overwrite an existing baseline."),
    click.option("--summary", type=_file, metavar="FILE", help="Write the result as Markdown, for a CI job."),
    click.option("--junit", type=_file, metavar="FILE", help="Write the result as JUnit XML."),
)  # fmt: skip
_NAMES = (
    "baseline", "against", "turns", "history", "window", "vary", "fail_over", "metric", "strict", "capture",
    "save_baseline", "force", "summary", "junit",
)  # fmt: skip


def gate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options to a command, which gets them as one `gate`: a `GateOptions`."""

    @functools.wraps(command)
    def with_gate(**given: Any) -> Any:
        from llmtop.bench.gate import GateOptions

        return command(gate=GateOptions(**{name: given.pop(name) for name in _NAMES}), **given)

    for option in reversed(_OPTIONS):
        with_gate = option(with_gate)
    return with_gate
