"""`llmtop report` and `llmtop compare`: what a capture or a recording shows, and what moved between two."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmtop.cli.output import print_encoded, print_json, print_text
from llmtop.cli.percent_option import parse_percent
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.system.inputs import Limits

if TYPE_CHECKING:
    from llmtop.report.model import Report
    from llmtop.report.opaque_report import OwnReport
    from llmtop.stacks.model import StackReport

_COLORS = {"critical": "red", "warning": "yellow"}


def _steps(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | tuple[int, int] | None:
    """The value of --steps: a number of steps (5), or a range of them (2:7)."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+)(?::(\d+))?", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is neither a number of steps (5) nor a range of them (2:7)")
    first, last = (0, int(match[1])) if match[2] is None else (int(match[1]), int(match[2]))
    if last <= first:
        raise click.BadParameter(f"{value!r} holds no step")
    return first, last


_no_limits = click.option(
    "--no-limits",
    is_flag=True,
    help="Read a file whatever memory and time it takes: lift the limits on its unpacked size, events, names, "
    "depth, devices, processes and threads.",
)


@click.command()
@click.argument("paths", metavar="PATH...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--full", is_flag=True, help="Print all of it; without, what is to be read first, in 60 lines.")
@click.option("--markdown", is_flag=True, help="Print it as Markdown.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write one page with a timeline to FILE."
)
@click.option(
    "--steps", callback=_steps, metavar="N|A:B", help="Take only the first N whole steps, or those from A to B."
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
    """Say what a capture or a recording shows: the verdict, findings with evidence, where the step goes.

    PATH is an nsys export (.sqlite), a .nsys-rep, a torch.profiler trace (.json, .json.gz), a folder with one of
    them or one a rank, a recording of llmtop, or a report that was written before. Several captures of one run,
    one a rank, are read as one. Of Python stacks (a capture of py-spy, or folded stacks of any program) it shows
    who works where, as a tree a thread. A snapshot of PyTorch's allocator (.pickle) is told by who holds what, and
    when.
    """
    from llmtop.analysis.load_report import load_reports
    from llmtop.analysis.load_stacks import load_stacks
    from llmtop.cli.report.memory import memory_files, report_memory
    from llmtop.report.model import to_json
    from llmtop.report.opaque_report import OwnReport
    from llmtop.report.render import markdown as render_markdown
    from llmtop.report.render import text as render_text

    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    limits = Limits(lifted=no_limits)
    snapshots = memory_files(paths)
    if snapshots is not None:
        if markdown or html is not None or steps is not None:
            raise UnusableInput(_NOT_OF_MEMORY)
        report_memory(snapshots, limits, _paint if _colored() else None, as_json=as_json, full=full)
        return
    stacks = load_stacks(paths, limits)
    if stacks is not None:
        if html is not None or steps is not None:
            raise UnusableInput(_not_of_stacks(paths[0], "--html" if html is not None else "--steps"))
        _print_stacks(stacks, as_json=as_json, as_markdown=markdown, full=full)
        return
    try:
        found = load_reports(paths, steps, limits, page=html is not None)
    except OwnReport as own:
        if html is not None or steps is not None:
            raise
        _print_own(own, as_json=as_json)
        return
    if html is not None:
        found = _write_page(html, found)
        if not (as_json or markdown):
            return
    if as_json:
        print_encoded(to_json(found))
    elif markdown:
        print_text(render_markdown.render(found), nl=False)
    else:
        width = shutil.get_terminal_size((100, 40)).columns
        render = render_text.render if full else render_text.brief
        print_text(render(found, width, _paint if _colored() else None), nl=False, styled=True)


def _write_page(path: Path, found: Report) -> Report:
    """Returns the report without what is the page's alone."""
    from msgspec import structs

    from llmtop.report.render import html as render_html

    _write(path, render_html.render(found))
    print_text(f"written: {path}", err=True)
    return structs.replace(found, whole_timeline=None)


def _print_own(own: OwnReport, *, as_json: bool) -> None:
    if as_json:
        print_encoded(own.data.encode())
    else:
        print_text("\n".join(own.text.splitlines()))


_NOT_OF_MEMORY = (
    "the report of a memory snapshot is text or JSON: --markdown, --html and --steps need "
    "a capture of another kind"
)


def _print_stacks(stacks: StackReport, *, as_json: bool, as_markdown: bool, full: bool) -> None:
    from llmtop.stacks import text as stacks_text
    from llmtop.stacks.model import to_json

    if as_json:
        print_encoded(to_json(stacks))
    elif as_markdown:
        print_text(stacks_text.markdown(stacks), nl=False)
    else:
        width = shutil.get_terminal_size((100, 40)).columns
        render = stacks_text.render if full else stacks_text.brief
        print_text(render(stacks, width, _paint if _colored() else None), nl=False, styled=True)


def _not_of_stacks(path: Path, option: str) -> str:
    if option == "--html":
        return (
            f"{path} holds Python stacks, of which no page is made: drop the .speedscope.json beside them onto "
            "https://www.speedscope.app, or leave out --html"
        )
    return f"{path} holds Python stacks, which have no steps: leave out {option}"


def _colored() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _paint(text: str, role: str) -> str:
    return click.style(
        text, fg=_COLORS.get(role), bold=role in ("title", "critical") or None, dim=role == "dim" or None
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotPossibleHere(f"{path} cannot be written: {error.strerror}") from None


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("--full", is_flag=True, help="Print all of it; without, what is to be read first, in 60 lines.")
@click.option(
    "--fail-over",
    callback=parse_percent,
    metavar="PCT",
    help="Exit with 1 when the median step became slower by more than PCT percent (5 or 5%), noise respected; "
    "with 3 where two different profilers leave that open.",
)
@_no_limits
def compare(
    *, before: Path, after: Path, as_json: bool, full: bool, fail_over: float | None, no_limits: bool
) -> None:
    """Say what moved between two captures, recordings or reports: the step, what it is lost to, phases, operators,
    kernels and NCCL, a step and device by device.

    Captures that llmtop took are compared by their steps without the profiler, whatever made them. Of two memory
    snapshots it says what grew, with the line.
    """

    from llmtop.analysis.load_report import load_report
    from llmtop.cli.report.memory import compare_memory, memory_files
    from llmtop.compare.compare import compare_reports, regressed, undecided
    from llmtop.compare.render import brief, render
    from llmtop.errors import EXIT_FINDING

    limits = Limits(lifted=no_limits)
    snapshots = memory_files([before]), memory_files([after])
    if any(snapshots):
        if fail_over is not None:
            raise UnusableInput("--fail-over needs the step time of both, and a memory snapshot has none")
        compare_memory(*snapshots, limits, _paint if _colored() else None, as_json=as_json, full=full)
        return
    found = compare_reports(load_report(before, limits=limits), load_report(after, limits=limits))
    if fail_over is not None and found.step is None:
        raise UnusableInput("--fail-over needs the step time of both, and one of them has no whole steps")
    if as_json:
        print_json(found)
    else:
        width = shutil.get_terminal_size((100, 40)).columns
        print_text(
            (render if full else brief)(found, _paint if _colored() else None, width), nl=False, styled=True
        )
    if fail_over is not None and regressed(found, fail_over):
        raise click.exceptions.Exit(EXIT_FINDING)
    if fail_over is not None and undecided(found, fail_over):
        raise NotPossibleHere(
            f"whether the step became slower by more than {fail_over:g}% cannot be decided: two different "
            "profilers took part, and what they cost is not known; capture both with one engine (llmtop capture "
            "--engine)"
        )
