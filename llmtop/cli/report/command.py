"""`llmtop report` and `llmtop compare`: what a capture or a recording shows, and what moved between two."""

from __future__ import annotations

import re
from pathlib import Path

import click

from llmtop.cli.percent_option import parse_percent
from llmtop.cli.report.rendered import html_option, markdown_option, print_rendered, refuse_both
from llmtop.system.inputs import Limits


def _steps(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | tuple[int, int] | None:
    """Return the value of --steps: a number of steps (5), or a range of them (2:7)."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+)(?::(\d+))?", value)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is neither a number of steps, such as 5, nor a range of steps, such as 2:7"
        )
    first, last = (0, int(match[1])) if match[2] is None else (int(match[1]), int(match[2]))
    if last <= first:
        raise click.BadParameter(f"{value!r} is an empty range of steps; pass the lower number first, such as 2:7")
    return first, last


_no_limits = click.option(
    "--no-limits",
    is_flag=True,
    help="Remove the limits on unpacked size, events, names, depth, devices, processes and threads; "
    "reading may take much memory and time.",
)


@click.command()
@click.argument("paths", metavar="PATH...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--full", is_flag=True, help="Print the whole report. Default: the most important 60 lines.")
@markdown_option
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report with a timeline to FILE, as one HTML page.",
)
@click.option(
    "--steps", callback=_steps, metavar="N|A:B", help="Use only the first N whole steps, or steps A to B."
)
@_no_limits
def report(
    *,
    paths: tuple[Path, ...],
    as_json: bool,
    full: bool,
    markdown: bool,
    html: Path | None,
    steps: int | tuple[int, int] | None,
    no_limits: bool,
) -> None:
    """Report on a capture or a recording: the verdict, findings with evidence, where the step goes.

    PATH is an nsys report (.nsys-rep, .sqlite), a torch.profiler trace (.json, .json.gz), a recording, or a saved
    report. A folder may hold one file per rank: these are read as one capture. Python stacks (py-spy, or folded
    stacks of any program) are shown as one tree per thread. An allocator snapshot of PyTorch (.pickle) is
    shown by holder and time.
    """
    from llmtop.report_kinds.kind import ReadOptions
    from llmtop.report_kinds.kinds import read_document

    refuse_both(as_json=as_json, markdown=markdown)
    options = ReadOptions(Limits(lifted=no_limits), steps, html=html is not None, markdown=markdown)
    document = read_document(paths, options)
    print_rendered(document, as_json=as_json, full=full, markdown=markdown, html=html)


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("--full", is_flag=True, help="Print the whole report. Default: the most important 60 lines.")
@click.option(
    "--fail-over",
    callback=parse_percent,
    metavar="PCT",
    help="Exit with 1 if the median step is slower by more than PCT percent (5 or 5%) and more than the noise; "
    "with 3 if it cannot be decided: two different profilers, or other hardware, precision or work.",
)
@markdown_option
@html_option
@_no_limits
def compare(
    *,
    before: Path,
    after: Path,
    as_json: bool,
    full: bool,
    fail_over: float | None,
    markdown: bool,
    html: Path | None,
    no_limits: bool,
) -> None:
    """Compare two captures, recordings, reports or runs: the step, its losses, phases, operators, kernels, NCCL.

    Captures that llmtop took are compared by their steps without the profiler, whichever engine took them. For two
    memory snapshots, the report lists what grew, with the source line. run:NAME is a run that llmtop runs lists;
    run: or run:-1 is the newest, run:-2 the one before it.
    """
    from llmtop.errors import EXIT_FINDING
    from llmtop.report_kinds.kinds import compare_documents

    refuse_both(as_json=as_json, markdown=markdown)
    found = compare_documents(before, after, Limits(lifted=no_limits), fail_over)
    print_rendered(found, as_json=as_json, full=full, markdown=markdown, html=html)
    if fail_over is not None and found.is_slower_by(fail_over):
        raise click.exceptions.Exit(EXIT_FINDING)
