"""llmtop bench: run a command several times, measure a steady window of each run, keep the artifacts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from click.core import ParameterSource

from llmtop.bench.model.results import Bench, BenchSettings
from llmtop.cli.bench.options import gate_options
from llmtop.cli.live.command import range_check
from llmtop.cli.output import print_encoded, print_text, text_width
from llmtop.errors import UnusableInput
from llmtop.format import encode_json

if TYPE_CHECKING:
    from llmtop.bench.gate import Gate, GateOptions

INTERRUPTED = 130
"""Exit code of a shell after ctrl+c."""
PARENT = "llmtop-bench"
"""Where benches go by default, each in a folder named for the time."""


@click.command(
    context_settings={"allow_interspersed_args": False},
    short_help="Run a training several times, and measure a steady window of each.",
)
@click.option("--warmup", type=click.IntRange(0, 1_000_000), default=10, show_default=True, metavar="N",
              help="Steps to drop at the start.")  # fmt: skip
@click.option("--steps", type=click.IntRange(2, 1_000_000), metavar="N",
              help="Steps of the window (default: 100).")  # fmt: skip
@click.option("--seconds", type=float, callback=range_check(0.1, 86400.0), metavar="S",
              help="Measure for S seconds instead of --steps.")  # fmt: skip
@click.option("--runs", type=click.IntRange(1, 1000), default=3, show_default=True, metavar="N",
              help="Number of runs; use 5 or more to compare.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help=f"Folder for the artifacts (default: {PARENT}/<time>).")  # fmt: skip
@click.option(
    "--to-end", is_flag=True, help="Wait until each run exits; without this option, interrupt it (SIGINT)."
)
@click.option("--bare", is_flag=True, help="Also run once without llmtop, to measure the overhead of llmtop; "
              "needs --to-end.")  # fmt: skip
@click.option("--step-timeout", type=float, callback=range_check(1.0, 86400.0), default=1800.0, show_default=True,
              metavar="S", help="End a run, and the bench, if no step ends for this long.")  # fmt: skip
@click.option(
    "--kill",
    is_flag=True,
    help="Kill a run that has not exited 30 s after SIGINT; without this option, wait for it.",
)
@click.option("--keep-diff", is_flag=True, help="Store the filtered text of git diff in "
              "environment.json (mode 0600). Default: only its hash and --stat.")  # fmt: skip
@click.option("--no-diff", is_flag=True, help="Store neither the hash nor --stat of git diff.")
@click.option("--json", "as_json", is_flag=True, help="Print metrics.json; messages go to stderr.")
@gate_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGS]...")
def bench(
    *,
    warmup: int,
    steps: int | None,
    seconds: float | None,
    runs: int,
    out: Path | None,
    to_end: bool,
    bare: bool,
    step_timeout: float,
    kill: bool,
    keep_diff: bool,
    no_diff: bool,
    as_json: bool,
    gate: GateOptions,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND --runs times, attached as by llmtop run, and measure each after its warm-up.

    llmtop ends each run as by ctrl+c once its window is complete, and waits for it. Exit codes: 0 all runs were
    measured; 2 wrong usage, or no such command; 3 a run crashed, made too few steps or none, or nothing could be
    written; 130 the bench was interrupted. With --fail-over: 1 a regression, 3 the noise is too large to decide.
    """
    from llmtop.bench import protocol
    from llmtop.bench.gate import RUNS_COMPARED, Gate

    if not command:
        raise UnusableInput("No command given. Add the training command: llmtop bench -- python train.py")
    if steps is not None and seconds is not None:
        raise UnusableInput("--steps and --seconds exclude each other: pass one of them")
    if keep_diff and no_diff:
        raise UnusableInput("--keep-diff and --no-diff exclude each other: pass one of them")
    _check_ends(gate, to_end=to_end, bare=bare)
    if gate.compares and click.get_current_context().get_parameter_source("runs") == ParameterSource.DEFAULT:
        runs = RUNS_COMPARED
    judge = Gate(gate, command, runs)
    settings = BenchSettings(
        warmup=warmup,
        steps=None if seconds is not None else steps or 100,
        seconds=seconds,
        runs=runs,
        to_end=to_end,
        turns=gate.turns,
        step_timeout_seconds=step_timeout,
        kill=kill,
        diff=not no_diff,
        keep_diff=keep_diff,
    )
    folder = (out or Path(PARENT) / time.strftime("%Y%m%d-%H%M%S")).absolute()
    found = protocol.measure(
        judge.variants, settings, folder, _print_stderr, bare=bare, check=judge.check_environment
    )
    try:
        return _exit_code(judge, found, folder)
    finally:
        judge.write(found)
        _show(found, as_json=as_json)


def _check_ends(gate: GateOptions, *, to_end: bool, bare: bool) -> None:
    """Refuse options on the end of a run that contradict each other."""
    if bare and not to_end:
        raise UnusableInput(
            "--bare measures whole runs, because steps are not counted without llmtop: add --to-end, and use a "
            "command that exits"
        )
    if gate.turns is not None and to_end:
        raise UnusableInput("--turns excludes --to-end and --bare: it interrupts all commands together")


def _exit_code(judge: Gate, found: Bench, folder: Path) -> int:
    """Compare and decide; ctrl+c meanwhile is noted."""
    try:
        code = judge.judge(found, folder, _print_stderr)
    except KeyboardInterrupt:
        found.notes.append("interrupted before the comparison was done; the runs are kept")
        return INTERRUPTED
    return INTERRUPTED if found.state == "interrupted" else code


def _print_stderr(sentence: str) -> None:
    print_text(sentence, err=True)


def _show(found: Bench, *, as_json: bool) -> None:
    from llmtop.bench.output.document import bench_document
    from llmtop.document.text import write_text

    if as_json:
        print_encoded(msgspec.json.format(encode_json(found), indent=2))
    else:
        print_text(write_text(bench_document(found), text_width()), nl=False)
