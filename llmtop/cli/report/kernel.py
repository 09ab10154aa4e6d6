"""llmtop kernel: the ncu command for the hot kernels of a capture, its run where asked for, and any .ncu-rep
read."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmtop.cli.output import print_json, print_text
from llmtop.cli.report.rendered import html_option, markdown_option, print_rendered, refuse_both
from llmtop.errors import EXIT_DONE, NotPossibleHere, UnusableInput
from llmtop.format import count, counted, duration, percent, printable

if TYPE_CHECKING:
    from llmtop.ncu.judge import NcuReport
    from llmtop.report.model import KernelTime, Report


@click.command()
@click.argument("path", metavar="REPORT", type=click.Path(path_type=Path))
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--top", type=click.IntRange(1, 10), default=1, metavar="N", help="Number of kernels, longest first."
)
@click.option("--run", "run_it", is_flag=True, help="Run the command under ncu, once per kernel; asks first.")
@click.option("--yes", is_flag=True, help="With --run: start without asking.")
@click.option(
    "--timeout",
    type=click.FloatRange(5.0, 86_400.0),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Stop each run after S seconds.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the reports of ncu; by default beside the capture.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@markdown_option
@html_option
def kernel(
    *,
    path: Path,
    command: tuple[str, ...],
    top: int,
    run_it: bool,
    yes: bool,
    timeout: float,
    out: Path | None,
    as_json: bool,
    markdown: bool,
    html: Path | None,
) -> int:
    """Profile the hottest kernels of a capture with ncu, and show the result.

    REPORT is a capture or its report: the ncu command is printed, and --run runs the training again under ncu,
    from its beginning, with its usual output files. If REPORT is an .ncu-rep, the limits of its kernels are shown.
    COMMAND is the training command, if the capture does not contain it or a shorter one is enough.
    """
    from llmtop.ncu.read import SUFFIX
    from llmtop.report_kinds.kernels_kind import KernelsDocument
    from llmtop.report_kinds.kind import ReadOptions
    from llmtop.report_kinds.kinds import read_document

    refuse_both(as_json=as_json, markdown=markdown)
    if path.suffix == SUFFIX:
        if run_it or command:
            raise click.UsageError(f"{path} is a report of ncu: --run and a command need a capture instead")
        found = read_document([path], ReadOptions(), "kernel")
        print_rendered(found, as_json=as_json, full=True, markdown=markdown, html=html)
        return EXIT_DONE
    if (markdown or html is not None) and not run_it:
        raise click.UsageError("--markdown and --html need results of ncu: add --run, or pass an .ncu-rep file")
    report, rows = read_hot_kernels(path, top)
    words = list(command) or _command_words(report)
    if not run_it:
        _print_commands(path, report, rows, words, as_json)
        return EXIT_DONE
    if not command and report.environment is not None and (report.environment.ranks or 1) > 1:
        raise UnusableInput(
            f"{path} has {report.environment.ranks} ranks, but not the command that started them: pass the "
            "command: llmtop kernel … --run -- torchrun … train.py"
        )
    if not words:
        raise UnusableInput(
            f"{path} does not contain the training command: pass it: llmtop kernel {path} --run -- python train.py"
        )
    folder = (out or _folder_of(path)).absolute()
    measured = KernelsDocument(_run(report, rows, words, timeout, folder, yes=yes))
    print_rendered(measured, as_json=as_json, full=True, markdown=markdown, html=html)
    return EXIT_DONE


def read_hot_kernels(path: Path, top: int) -> tuple[Report, list[KernelTime]]:
    """Return the report and its hottest kernels, collectives left out: a rank that is replayed alone would wait
    for ever.

    Raises:
        UnusableInput: no capture with kernels, or not of a GPU of NVIDIA's.
    """
    from llmtop.analysis.load_report import load_report

    report = load_report(path)
    if report.makeup is not None and report.makeup.vendor == "AMD":
        raise UnusableInput(f"{path} is from an AMD GPU, which ncu does not support: use rocprof-compute profile")
    if report.makeup is not None and report.makeup.vendor == "Google":
        raise UnusableInput(
            f"{path} is from a TPU, which ncu does not support: use xprof for its operations and roofline"
        )
    rows = [row for row in report.kernels if row.kind != "NCCL"][:top]
    if not rows:
        raise UnusableInput(f"{path} has no kernels: use a capture of nsys or torch.profiler on a GPU")
    return report, rows


def _command_words(report: Report) -> list[str]:
    """Return the words of the training's command; its quotes are not recorded."""
    told = report.environment.command if report.environment is not None else None
    return told.split() if told else []


def _print_commands(path: Path, report: Report, rows: list[KernelTime], words: list[str], as_json: bool) -> None:
    from llmtop.analysis.capture_info import UNKNOWN_COMMAND
    from llmtop.cli.printed import KernelCommand, KernelCommands
    from llmtop.ncu.command import command_line, file_stem, launches_of
    from llmtop.ncu.read import SUFFIX

    command = shlex.join(words) if words else UNKNOWN_COMMAND
    found: list[KernelCommand] = []
    for row in rows:
        launches = launches_of(row, report.kernels)
        found.append(
            KernelCommand(
                kernel=row.name,
                kind=row.kind,
                kernel_time_pct=row.share_pct,
                count=row.count,
                mean_us=row.mean_us,
                launches=launches.description,
                skips_warm_up=launches.skip is not None,
                command=command_line(launches, file_stem(row), command),
            )
        )
    if as_json:
        print_json(KernelCommands(source=str(path), kernels=found))
        return
    for number, (row, one) in enumerate(zip(rows, found, strict=True), 1):
        print_text(
            f"{number}. {printable(row.name)} ({printable(row.kind, 40)}): "
            f"{percent(row.share_pct, 1)} of kernel time, {count(row.count)} x {duration(row.mean_us / 1e6)}"
        )
        unsure = "" if one.skips_warm_up else "; the capture has no steps, so warm-up is not skipped"
        print_text(f"   profiled: {printable(one.launches)}{unsure}")
        print_text(f"   {printable(one.command)}")
    if not words:
        print_text("The capture does not contain the training command: replace python train.py with it.")
    print_text(
        f"--run runs {'it' if len(rows) == 1 else 'them'}; llmtop kernel FILE{SUFFIX} shows the report of ncu."
    )
    for old in sorted(_folder_of(path).glob(f"*{SUFFIX}")):
        print_text(f"measured before: llmtop kernel {printable(str(old))}")


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _run(
    report: Report,
    rows: list[KernelTime],
    words: list[str],
    seconds: float,
    folder: Path,
    *,
    yes: bool,
) -> list[NcuReport]:
    """Run the command under ncu for each kernel, one after the other.

    Raises:
        NotPossibleHere: ncu, ncu-report, the counters or a free GPU cannot be had.
        UnusableInput: no terminal for the confirmation.
    """
    from llmtop.cli.run.gpus_in_use import refuse_used_gpus
    from llmtop.ncu import read, tool
    from llmtop.ncu.command import file_stem, launches_of
    from llmtop.ncu.run import run

    ncu = tool.find_ncu()
    refused = tool.counters_refused()
    if refused:
        raise NotPossibleHere(f"{refused}: {tool.REMEDY}")
    if read.ncu_report_folder() is None:
        raise NotPossibleHere(
            f"reports of ncu need the package ncu-report, which is not installed: {read.INSTALL}"
        )
    refuse_used_gpus()
    _announce(words, len(rows), seconds, folder)
    if not yes:
        if not sys.stdin.isatty():
            raise UnusableInput("standard input is not a terminal, so the question cannot be answered: add --yes")
        click.confirm("Run it now?", abort=True, err=True)
    _make(folder)
    found: list[NcuReport] = []
    for row in rows:
        if found:
            refuse_used_gpus()
        launches = launches_of(row, report.kernels)
        print_text(f"ncu: {printable(launches.description)} …", err=True)
        written = run(ncu, launches, folder / file_stem(row), words, seconds)
        print_text(f"written: {written}", err=True)
        found.append(_read_one(written, row))
    return found


def _announce(words: list[str], runs: int, seconds: float, folder: Path) -> None:
    """Print the changes to the user's files and the time that the command takes."""
    often = "once more" if runs == 1 else f"{runs} times more, once for each kernel"
    print_text(
        f"This runs the command {often}, from its beginning, in {printable(os.getcwd())}:\n"
        f"  {printable(shlex.join(words))}\n"
        "It writes what it always writes, to where it always does: checkpoints, logs, experiment trackers. "
        "Launches that are measured run some forty times each; ncu ends the command after the last of them, "
        f"at the latest after {duration(seconds)}.\n"
        f"ncu writes into {printable(str(folder))}.",
        err=True,
    )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotPossibleHere(
            f"{folder} cannot be created: {error.strerror}; choose another folder with --out"
        ) from None
    if not os.access(folder, os.W_OK):
        raise NotPossibleHere(f"{folder} is not writable: choose another folder with --out")


def _read_one(path: Path, row: KernelTime) -> NcuReport:
    """Return ncu's measurement of one kernel: that kernel alone, if the run contains it.

    Raises:
        UnusableInput, NotPossibleHere: as `llmtop.ncu.read.read`.
    """
    from llmtop.ncu.judge import ncu_report_of_one
    from llmtop.ncu.read import read
    from llmtop.ncu.run import select_launch

    kernels, _left_out = read(path)
    wanted = select_launch(row, kernels)
    if wanted is None:
        others = ", ".join(dict.fromkeys(printable(kernel.demangled or kernel.name, 80) for kernel in kernels[:3]))
        note = (
            f"None of the {counted(len(kernels), 'launch')} that ncu measured is {row.name}: the command "
            f"launches others first ({others}); what follows is of those. With a larger --launch-count, by hand, "
            "it is found."
        )
        return ncu_report_of_one(path, kernels, 0, note)
    place = kernels.index(wanted)
    note = (
        f"{row.name}: measured launch {place + 1} of the {len(kernels)} in the file, {duration(wanted.seconds)} "
        f"under ncu; in the capture {duration(row.mean_us / 1e6)} on average, {duration(row.min_us / 1e6)} to "
        f"{duration(row.max_us / 1e6)}."
    )
    return ncu_report_of_one(path, kernels, place, note)
