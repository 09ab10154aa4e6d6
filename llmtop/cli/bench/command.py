"""llmtop bench: run a command several times, measure a steady window of each run, keep the artifacts."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from click.core import ParameterSource

from llmtop.bench.model.results import Bench, BenchSettings
from llmtop.cli.bench.options import gate_options
from llmtop.cli.live.command import range_check
from llmtop.cli.output import print_encoded, print_text
from llmtop.errors import UnusableInput
from llmtop.format import encode_json

if TYPE_CHECKING:
    from llmtop.bench.gate import GateOptions

INTERRUPTED = 130
"""What a shell makes of ctrl+c."""
PARENT = "llmtop-bench"
"""Where benches go by default, each in a folder named for the time."""


@click.command(
    context_settings={"allow_interspersed_args": False},
    short_help="Run a training several times, and measure a steady window of each.",
)
@click.option("--warmup", type=click.IntRange(0, 1_000_000), default=10, show_default=True, metavar="N",
              help="Steps that are dropped first.")  # fmt: skip
@click.option("--steps", type=click.IntRange(2, 1_000_000), metavar="N",
              help="Steps of the window (default: 100).")  # fmt: skip
@click.option("--seconds", type=float, callback=range_check(0.1, 86400.0), metavar="S",
              help="Measure for so long, instead of --steps.")  # fmt: skip
@click.option("--runs", type=click.IntRange(1, 1000), default=3, show_default=True, metavar="N",
              help="How often the command is run; 5 where runs are compared.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help=f"Folder for the artifacts (default: {PARENT}/<time>).")  # fmt: skip
@click.option("--to-end", is_flag=True, help="Let each run end by itself; else it gets what ctrl+c sends.")
@click.option("--bare", is_flag=True, help="Run once without llmtop besides, to say what being attached costs; "
              "needs --to-end.")  # fmt: skip
@click.option(
    "--kill", is_flag=True, help="Kill a run that has not ended 30 s after ctrl+c; else it is waited for."
)
@click.option("--keep-diff", is_flag=True, help="Store the text of the difference to the git commit, filtered, in "
              "environment.json (mode 0600); else only its hash and --stat are.")  # fmt: skip
@click.option("--no-diff", is_flag=True, help="Store no hash and no --stat of the difference to the git commit.")
@click.option("--json", "as_json", is_flag=True, help="Print metrics.json; all words go to stderr.")
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
    kill: bool,
    keep_diff: bool,
    no_diff: bool,
    as_json: bool,
    gate: GateOptions,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND --runs times, attached as by llmtop run, and measure each after its warm-up.

    A run ends as by ctrl+c once its window is whole, and is waited for. Exit codes: 0 all runs were measured; 2
    wrong usage, or no such command; 3 a run crashed, made too few steps or none, or nothing could be written; 130
    it was interrupted. With --fail-over: 1 a regression, 3 noise hides whether it is one.
    """
    from llmtop.bench import protocol
    from llmtop.bench.gate import RUNS_COMPARED, Gate

    if not command:
        raise UnusableInput("llmtop bench needs a command, as in: llmtop bench -- python train.py")
    if steps is not None and seconds is not None:
        raise UnusableInput("--steps and --seconds both say how long the window is: give one")
    if keep_diff and no_diff:
        raise UnusableInput("--keep-diff and --no-diff exclude each other: give one")
    if bare and not to_end:
        raise UnusableInput(
            "--bare times whole runs, since nobody counts steps without llmtop: add --to-end, and a command that "
            "ends by itself"
        )
    if gate.compares and click.get_current_context().get_parameter_source("runs") == ParameterSource.DEFAULT:
        runs = RUNS_COMPARED
    judge = Gate(gate, command, runs)
    settings = BenchSettings(
        warmup=warmup,
        steps=None if seconds is not None else steps or 100,
        seconds=seconds,
        runs=runs,
        to_end=to_end,
        kill=kill,
        diff=not no_diff,
        keep_diff=keep_diff,
    )
    folder = (out or Path(PARENT) / time.strftime("%Y%m%d-%H%M%S")).absolute()
    found = protocol.measure(
        judge.variants, settings, folder, _print_stderr, bare=bare, check=judge.check_environment
    )
    try:
        code = judge.judge(found, folder, _print_stderr)
        return INTERRUPTED if found.state == "interrupted" else code
    finally:
        judge.write(found)
        _show(found, as_json=as_json)


def _print_stderr(sentence: str) -> None:
    print_text(sentence, err=True)


def _show(found: Bench, *, as_json: bool) -> None:
    from llmtop.bench.output.document import bench_document
    from llmtop.document.text import write_text

    if as_json:
        print_encoded(msgspec.json.format(encode_json(found), indent=2))
    else:
        width = shutil.get_terminal_size((100, 40)).columns
        print_text(write_text(bench_document(found), width), nl=False)
