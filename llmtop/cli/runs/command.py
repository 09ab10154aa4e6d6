"""llmtop runs: list, show and delete runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from llmtop.cli.capture.options import json_option
from llmtop.cli.output import print_json, print_text, text_width, write_json, write_text
from llmtop.errors import EXIT_DONE, NotPossibleHere, UnusableInput
from llmtop.format import counted, duration, encode_json, number, pad, percent_text, printable, width_of
from llmtop.runs.store import RUNNING, Run

if TYPE_CHECKING:
    from llmtop.runs.report import RunReport


@click.command()
@click.argument("action", type=click.Choice(["list", "show", "open", "delete"]), default="list")
@click.argument("wanted", metavar="[RUN]", required=False)
@click.option("--all", "show_all", is_flag=True, help="List the runs of llmtop bench too.")
@json_option
def runs(
    *, action: Literal["list", "show", "open", "delete"], wanted: str | None, show_all: bool, as_json: bool
) -> int:
    """List runs, show one, open one on the screen, or delete one.

    Every attached training writes its run to $LLMTOP_RUNS, else ~/.local/state/llmtop/runs. RUN is an id of the
    list, the beginning of one, or the run's name; without RUN, show and open take the newest, also after a crash.
    Runs of llmtop bench are listed with --all, and are never the newest.
    """
    from llmtop.config import current
    from llmtop.runs import folder, retention, store

    path = folder.runs_folder().path
    limits = current().runs
    with _errors_named(path):
        retention.delete_old_runs(path, days=limits.days, most_bytes=int(limits.gib * (1 << 30)))
    if action == "list":
        _list(path, as_json, with_bench=show_all)
        return EXIT_DONE
    if action == "delete" and wanted is None:
        raise UnusableInput("No run given. List the runs: llmtop runs. Then: llmtop runs delete RUN")
    with _errors_named(path):
        run = store.find_run(path, wanted, least_characters=_LEAST_TO_DELETE if action == "delete" else 1)
    if action == "open":
        return _open(run, as_json)
    if action == "show":
        _show(run, as_json)
    else:
        _delete(run, as_json)
    return EXIT_DONE


_LEAST_TO_DELETE = 4
"""Characters of an id without which no run is deleted."""


@contextmanager
def _errors_named(path: Path, verb: str = "read") -> Iterator[None]:
    """Raise an error of a file as a sentence. Nothing is printed inside: an error of the output is none of a run's
    files.

    Args:
        path: the folder of all runs, for errors that name no file.
        verb: participle of what failed.
    """
    try:
        yield
    except OSError as error:
        raise NotPossibleHere(
            f"{error.filename or path} cannot be {verb}: {error.strerror}; check its permissions"
        ) from None


_LESS_NEEDED = ("starts", "GPU h", "ranks", "step p50", "goodput", "steps", "lasted")
"""Columns that a narrow terminal has no room for, in the order in which they are left out."""
_LEFT = ("run", "started", "end", "command")
_LEAST_COMMAND = 16
_PIPE_WIDTH = 10_000
"""Most cells of a line that goes to a file or a pipe."""


def _list(path: Path, as_json: bool, *, with_bench: bool) -> None:
    from llmtop.runs import store
    from llmtop.runs.report import report_of

    unreadable: list[Path] = []
    with _errors_named(path):
        found = store.list_runs(path, unreadable)
        shown = [run for run in found if with_bench or not run.is_bench]
        reports = [report_of(run) for run in reversed(shown)]
    _print_list(reports, path, as_json)
    if len(shown) < len(found):
        what = counted(len(found) - len(shown), "run")
        print_text(f"{what} of llmtop bench left out; llmtop runs --all lists them", err=True)
    if unreadable:
        print_text(f"{counted(len(unreadable), 'run')} of other users cannot be read", err=True)


def _print_list(reports: list[RunReport], path: Path, as_json: bool) -> None:
    if as_json:
        for report in reports:
            print_json(report)
        return
    if reports:
        width = text_width() if sys.stdout.isatty() else _PIPE_WIDTH
        cells = [_cells(report, 36 if width >= 80 else 12) for report in reports]
        for line in _lines(cells, width):
            print_text(printable(line, width))
    what = counted(len(reports), "run") if reports else "no runs"
    print_text(f"{what} in {printable(str(path))}", err=True)


def _cells(report: RunReport, end_width: int) -> dict[str, str]:
    """Return the texts of a row by column; the end of the run in at most so many cells."""
    from llmtop.runs.document import how_it_ended
    from llmtop.runs.notes_document import moment

    last = report.attempts[-1]
    return {
        "run": report.id,
        "started": moment(report.started),
        "lasted": duration(report.wall_seconds),
        "ranks": str(report.ranks),
        "starts": str(len(report.attempts)),
        "steps": str(report.steps),
        "step p50": duration(report.step_seconds_p50),
        "GPU h": number(report.gpu_hours, 1),
        "goodput": percent_text(report.goodput_pct),
        "end": printable(how_it_ended(report.how, last.error, last.signal), end_width),
        "command": _short_command(report.command),
    }


def _lines(rows: list[dict[str, str]], width: int) -> Iterator[str]:
    """Yield the lines of a table, without the columns that a line of that width has no room for."""
    rows = [{name: name for name in rows[0]}, *rows]
    widths = {name: max(width_of(row[name]) for row in rows) for name in rows[0]}
    room = {**widths, "command": min(widths["command"], _LEAST_COMMAND)}
    for name in _LESS_NEEDED:
        if sum(room.values()) + 2 * (len(room) - 1) > width:
            del room[name]
    for row in rows:
        cells = [pad(row[name], widths[name], right=name not in _LEFT) for name in room]
        yield "  ".join(cells).rstrip()


def _short_command(command: str) -> str:
    """Return a command line with the name alone of the program that it starts: "python train.py"."""
    program, _, rest = command.partition(" ")
    return f"{program.rpartition('/')[2]} {rest}".rstrip()


def _show(run: Run, as_json: bool) -> None:
    from collectors.runs.alerts import add_recomputed
    from llmtop.runs.node_notes import read_notes
    from llmtop.runs.report import report_of

    with _errors_named(run.folder):
        notes = read_notes(run)
        add_recomputed(run, notes)
        report = report_of(run, notes)
    if as_json:
        write_json(encode_json(report))
        return
    from llmtop.document.text import write_text as as_text
    from llmtop.runs.document import document_of

    write_text(as_text(document_of(report), text_width()))


def _open(run: Run, as_json: bool) -> int:
    from llmtop.cli.live.opened_run import open_run
    from llmtop.runs.node_notes import read_notes

    with _errors_named(run.folder):
        notes = read_notes(run)
    return open_run(run, notes, as_json=as_json)


def _delete(run: Run, as_json: bool) -> None:
    from llmtop.cli.printed import RunRemoval

    if run.how == RUNNING:
        raise UnusableInput(f"Run {run.id} is still running; delete it after its end")
    with _errors_named(run.folder, "deleted"):
        for process in run.processes:
            for path in process.folder.glob(process.name.text + ".*"):
                path.unlink(missing_ok=True)
        for path in {process.folder for process in run.processes}:
            if not any(one.suffix != ".node" for one in path.iterdir()):
                shutil.rmtree(path)
    if as_json:
        print_json(RunRemoval(removed=run.id))
    else:
        print_text(f"removed run {run.id}")
