"""llmtop runs: list, show and delete runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import click

from llmtop.cli.capture.options import json_option
from llmtop.cli.output import print_json, print_text, text_width, write_json, write_text
from llmtop.errors import EXIT_DONE, NotPossibleHere, UnusableInput
from llmtop.format import counted, duration, encode_json, number, pad, percent_text, printable
from llmtop.runs.store import RUNNING, Run


@click.command()
@click.argument("action", type=click.Choice(["list", "show", "open", "delete"]), default="list")
@click.argument("wanted", metavar="[RUN]", required=False)
@json_option
def runs(*, action: Literal["list", "show", "open", "delete"], wanted: str | None, as_json: bool) -> int:
    """List runs, show one, open one on the screen, or delete one.

    Every attached training writes its run to $LLMTOP_RUNS, else ~/.local/state/llmtop/runs. RUN is an id of the
    list, the beginning of one, or the run's name; without RUN, show and open take the newest, also after a crash.
    """
    from llmtop.config import current
    from llmtop.runs import folder, retention, store

    path = folder.runs_folder().path
    limits = current().runs
    try:
        retention.delete_old_runs(path, days=limits.days, most_bytes=int(limits.gib * (1 << 30)))
        if action == "list":
            unreadable: list[Path] = []
            _list(store.list_runs(path, unreadable), path, as_json)
            if unreadable:
                print_text(f"{counted(len(unreadable), 'run')} of other users cannot be read", err=True)
        elif action == "show":
            _show(store.find_run(path, wanted), as_json)
        elif action == "open":
            return _open(store.find_run(path, wanted), as_json)
        elif wanted is None:
            raise UnusableInput("No run given. List the runs: llmtop runs. Then: llmtop runs delete RUN")
        else:
            _delete(store.find_run(path, wanted), as_json)
    except OSError as error:
        raise NotPossibleHere(
            f"{error.filename or path} cannot be read: {error.strerror}; check its permissions"
        ) from None
    return EXIT_DONE


def _list(found: list[Run], path: Path, as_json: bool) -> None:
    from llmtop.runs.document import how_it_ended
    from llmtop.runs.notes_document import moment
    from llmtop.runs.report import report_of

    if found and not as_json:
        print_text(
            f"{'run':<10} {'started':<16} {'lasted':>8} {'ranks':>5} {'starts':>6} {'steps':>9} {'step p50':>9} "
            f"{'GPU h':>7} {'goodput':>7}  {'end':<18} command"
        )
    for run in reversed(found):
        report = report_of(run)
        if as_json:
            print_json(report)
            continue
        end = pad(how_it_ended(report.how, report.attempts[-1].error)[:18], 18)
        command = _short_command(report.command)
        line = (
            f"{report.id:<10} {moment(report.started):<16} {duration(report.wall_seconds):>8} {report.ranks:>5} "
            f"{len(report.attempts):>6} {report.steps:>9} {duration(report.step_seconds_p50):>9} "
            f"{number(report.gpu_hours, 1):>7} {percent_text(report.goodput_pct):>7}  {end} {command}"
        )
        print_text(printable(line, max(text_width(), 130)))
    if not as_json:
        what = f"{len(found)} run{'' if len(found) == 1 else 's'}" if found else "no runs"
        print_text(f"{what} in {printable(str(path))}", err=True)


def _short_command(command: str) -> str:
    """Return a command line with the name alone of the program that it starts: "python train.py"."""
    program, _, rest = command.partition(" ")
    return f"{program.rpartition('/')[2]} {rest}".rstrip()


def _show(run: Run, as_json: bool) -> None:
    from collectors.runs.alerts import add_recomputed
    from llmtop.runs.node_notes import read_notes
    from llmtop.runs.report import report_of

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

    return open_run(run, as_json=as_json)


def _delete(run: Run, as_json: bool) -> None:
    from llmtop.cli.printed import RunRemoval

    if run.how == RUNNING:
        raise UnusableInput(f"Run {run.id} is still running; delete it after its end")
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
