"""The options of `llmtop bench` for comparison, decision, and CI."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from llmtop.cli.percent_option import parse_percent

_file = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE",
                 help="Compare with what --save-baseline wrote, or with a bench's folder."),
    click.option("--against", metavar="CMD",
                 help="Compare with another command, in quotes: the two are run in turns, as pairs."),
    click.option("--history", type=_file, metavar="FILE",
                 help="Compare with the medians of the last benches in FILE, and add this one."),
    click.option("--window", type=click.IntRange(3, 1000), default=10, show_default=True, metavar="N",
                 help="With --history: how many of the last benches."),
    click.option("--vary", multiple=True, metavar="NAME=V1,V2,…",
                 help="Run with each value of an environment variable, or of {} in COMMAND, in turns; rank them."),
    click.option("--fail-over", callback=parse_percent, metavar="PCT",
                 help="Exit with 1 when it is worse by more than PCT percent (5 or 5%) and than the noise; with 3 "
                 "when noise hides that."),
    click.option("--metric", metavar="NAME",
                 help="What is compared: tokens_per_s, steps_per_s, mean, p50, p95, p99, ttft, …  "
                 "[default: the first rate that there is]"),
    click.option("--strict", is_flag=True, help="Refuse a baseline of another environment (2)."),
    click.option("--capture-on-regression", "capture", is_flag=True,
                 help="After a regression run once more under a profiler, and compare that too; with "
                 "--save-baseline, keep such a capture of the baseline."),
    click.option("--save-baseline", type=_file, metavar="FILE", help="Keep these runs as a baseline."),
    click.option("--force", "-f", is_flag=True, help="Write over an existing baseline."),
    click.option("--summary", type=_file, metavar="FILE", help="Write the outcome as Markdown, for a CI job."),
    click.option("--junit", type=_file, metavar="FILE", help="Write the outcome as JUnit XML."),
)  # fmt: skip
_NAMES = (
    "baseline", "against", "history", "window", "vary", "fail_over", "metric", "strict", "capture",
    "save_baseline", "force", "summary", "junit",
)  # fmt: skip


def gate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options, which it gets as one `gate`: a `GateOptions`."""

    @functools.wraps(command)
    def with_gate(**given: Any) -> Any:
        from llmtop.bench.gate import GateOptions

        return command(gate=GateOptions(**{name: given.pop(name) for name in _NAMES}), **given)

    for option in reversed(_OPTIONS):
        with_gate = option(with_gate)
    return with_gate
