"""Report from any path that llmtop writes or captures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from llmtop.analysis.load_stacks import load_stacks
from llmtop.errors import UnusableInput
from llmtop.format import printable
from llmtop.naming import file_names
from llmtop.report.environment import read_environment, stopped_early_of
from llmtop.report.model import Report, from_json
from llmtop.report.opaque_report import OpaqueReport
from llmtop.system.inputs import DEFAULT, Limits, nesting_depth, read_input
from llmtop.trace.files.file_kind import examine
from llmtop.trace.files.foreign_files import CAPTURE

_NEXT = f"next: a trace of the training: {CAPTURE}"
"""Next step where JSON is no trace."""


def load_reports(
    paths: Sequence[Path],
    steps: int | tuple[int, int] | None = None,
    limits: Limits = DEFAULT,
    page: bool = False,
) -> Report:
    """Return a report on one path, as `load_report` does, or on the captures of several ranks as one.

    Args:
        paths: one path, or one capture for each rank.
        steps: number of first whole steps to analyse, or whole steps a to b (b excluded); None for all.
        limits: how much memory and time the input may need.
        page: whether to build the timeline of all steps too.

    Raises:
        UnusableInput: as `load_report`; or several paths of which one is no capture.
        NotPossibleHere: as `load_report`.
    """
    if len(paths) == 1:
        return load_report(paths[0], steps, limits, page)
    files = [examine(path) for path in paths]
    for file in files:
        if file.kind in ("json", "recording", "stacks"):
            raise UnusableInput(f"{file.path} is no capture: only captures of several ranks can be read together")
    from llmtop.analysis.analyze import analyze_files

    report = analyze_files(files, steps, limits, page=page)
    stopped_early = stopped_early_of(paths[0])
    return structs.replace(report, environment=read_environment(paths[0]), stopped_early=stopped_early)


def load_report(
    path: Path, steps: int | tuple[int, int] | None = None, limits: Limits = DEFAULT, page: bool = False
) -> Report:
    """Analyse a capture or a recording, or read a report that was written before.

    Args:
        path: a file, or the folder of a capture.
        steps: as in `llmtop.analysis.analyze.analyze`; a report or a recording cannot be cut.
        limits: how much of memory and time the file may ask for.
        page: whether to make the timeline of all steps too, where there is a capture.

    Raises:
        UnusableInput: none of what llmtop reads, damaged, or beyond a limit; `OpaqueReport` where there is text.
        NotPossibleHere: it needs an nsys that is not here.
    """
    file = examine(path)
    if file.kind == "json":
        return _read_report(path, limits)
    if file.kind == "recording":
        from llmtop.analysis.analyze_recording import analyze_recording

        return analyze_recording(path, limits)
    if file.kind == "stacks":
        raise UnusableInput(stacks_only_message(path))
    from llmtop.analysis.analyze import analyze

    try:
        return structs.replace(analyze(file, steps, limits, page=page), stopped_early=stopped_early_of(path))
    except UnusableInput:
        # Of a trace that has gone the report may still be there.
        written = path / file_names.REPORT
        if file.kind != "folder" or not written.is_file():
            raise
        if load_stacks([path], limits) is not None:
            raise UnusableInput(stacks_only_message(path)) from None
        return _read_report(written, limits)


def stacks_only_message(path: Path) -> str:
    """Return the sentence on a capture of Python stacks where one with steps is needed."""
    return f"{path} holds Python stacks, which have no steps and no verdict; llmtop report {path} shows them"


def _read_report(path: Path, limits: Limits) -> Report:
    data = read_input(path, limits)
    if data.startswith(b"\x1f\x8b"):
        raise UnusableInput(
            f"{path} is JSON packed by gzip, but no trace and no report of llmtop, which is not packed; {_NEXT}"
        )
    try:
        report = from_json(data)
    except msgspec.ValidationError as error:
        text = path.with_name(file_names.REPORT_TEXT)
        if path.name == file_names.REPORT and text.is_file():
            words, found = (one.decode(errors="replace") for one in (read_input(text, limits), data))
            raise OpaqueReport(path.parent, words, found) from None
        raise UnusableInput(
            f"{path} is JSON but no report of llmtop and no trace ({printable(str(error), 160)}); {_NEXT}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableInput(
            f"{path} is damaged JSON ({printable(str(error), 160)}): neither a trace nor a report can be read; "
            f"copy it again, or: {_NEXT}"
        ) from None
    except RecursionError:
        raise UnusableInput(
            f"{path} is JSON nested deeper than any parser's limit on depth: llmtop wrote no such report; {_NEXT}"
        ) from None
    # What is in capture.json was completed after the report was written.
    report = structs.replace(
        report,
        environment=read_environment(path) or report.environment,
        stopped_early=stopped_early_of(path) or report.stopped_early,
    )
    # Beyond what is typed only the evidence of findings has depth.
    for finding in report.findings:
        limits.check_number(path, "json_depth", nesting_depth(finding.evidence, limits.json_depth))
    return report
