"""Report on Python stacks from a path: the folder of a capture, a file in it, or any folded stacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from llmtop.errors import UnusableInput
from llmtop.naming import file_names
from llmtop.report.environment import stopped_early_of
from llmtop.system.inputs import DEFAULT, Limits, read_input
from llmtop.trace.files.file_kind import examine

if TYPE_CHECKING:  # every report asks first whether its file holds stacks: what reads them is loaded where it does
    from llmtop.stacks.model import ProcessStacks, StackReport
    from llmtop.stacks.speedscope_file import SpeedscopeFile, Unit

ENDING = file_names.FOLDED_STACKS
_RANK = re.compile(r"rank(\d+)\.folded$")


class _ReportHead(msgspec.Struct):
    """Fields that identify a report on stacks: a trace report has no processes, and a snapshot has no engine."""

    engine: str = ""
    processes: msgspec.Raw = msgspec.Raw()


_opening = msgspec.json.Decoder(_ReportHead)


def load_stacks(paths: Sequence[Path], limits: Limits = DEFAULT) -> StackReport | None:
    """Read captures of Python stacks as one; None where none of the paths is one.

    Raises:
        UnusableInput: one is, but is damaged; or another is not.
    """
    found = [_load(path, limits) for path in paths]
    known = [report for report in found if report is not None]
    if not known:
        return None
    if len(known) < len(found):
        other = paths[found.index(None)]
        raise UnusableInput(
            f"{other} has no Python stacks, and the other files have: run llmtop report for this file alone"
        )
    if len(known) == 1:
        return known[0]
    return replace(
        known[0],
        source=", ".join(report.source for report in known),
        processes=tuple(process for report in known for process in report.processes),
        loading={name: cost for report in known for name, cost in report.loading.items()},
        notes=tuple(dict.fromkeys(note for report in known for note in report.notes)),
    )


def _load(path: Path, limits: Limits) -> StackReport | None:
    if path.is_dir():
        report = _load_folder(path, limits)
        stopped_early = stopped_early_of(path)
        return report if report is None or not stopped_early else replace(report, stopped_early=stopped_early)
    file = examine(path)
    if file.kind == "json":
        return _read_written(path, limits)
    return _load_folded([path], path, limits) if file.kind == "stacks" else None


def _load_folder(folder: Path, limits: Limits) -> StackReport | None:
    written = None
    if (folder / file_names.REPORT).is_file():
        with suppress(UnusableInput):  # damaged: the stacks themselves may be there
            written = _read_written(folder / file_names.REPORT, limits)
    if written is not None:
        return replace(written, source=str(folder))
    found = sorted(path for path in folder.glob(f"*{ENDING}") if path.is_file())
    # Of perf's files one counts microseconds, and cannot stand beside samples.
    files = [path for path in found if not path.name.endswith(f".off-cpu{ENDING}")] or found
    return _load_folded(files, folder, limits) if files else None


def _read_written(path: Path, limits: Limits) -> StackReport | None:
    """Return a report on stacks; None where it is another one, or other JSON."""
    from llmtop.stacks.model import from_json

    data = read_input(path, limits)
    try:
        opening = _opening.decode(data)
        if not bytes(opening.processes) or not opening.engine:
            return None
        return replace(from_json(data), source=str(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _read_stacks(data: bytes, what: str) -> SpeedscopeFile:
    from llmtop.stacks.samples import read_folded
    from llmtop.stacks.speedscope_file import SpeedscopeFile, read_speedscope

    if data.lstrip()[:1] == b"{":
        return read_speedscope(data, what)
    stacks = read_folded(data.decode(errors="replace"), what)
    by_py_spy = any(stack.process is not None for stack in stacks)  # only its stacks begin with the process
    return SpeedscopeFile(stacks, "samples", "py-spy" if by_py_spy else "", None)


def _counted_in(process: ProcessStacks, unit: Unit) -> ProcessStacks:
    """Return the process with threads that count so."""
    return replace(process, threads=tuple(replace(thread, unit=unit) for thread in process.threads))


def _load_folded(files: list[Path], source: Path, limits: Limits) -> StackReport:
    from llmtop.loading.cost import decide
    from llmtop.loading.seen import LoaderSamples
    from llmtop.stacks.fold import fold
    from llmtop.stacks.model import StackReport

    processes: list[ProcessStacks] = []
    loading = {}
    read: list[SpeedscopeFile] = []
    for file in files:
        read.append(_read_stacks(read_input(file, limits), str(file)))
        stacks, unit = read[-1].stacks, read[-1].unit
        if not stacks:
            raise UnusableInput(f"{file} holds no stacks")
        asked = next((s.process.started_by or s.process.pid for s in stacks if s.process is not None), None)
        rank = _RANK.search(file.name)
        ranks = {asked: int(rank[1])} if rank is not None and asked is not None else {}
        processes += (_counted_in(process, unit) for process in fold(stacks, ranks, {}))
        # The file records no thread states: time blocked in C cannot be separated from time running in C.
        cost = decide(LoaderSamples(pid=asked or 0, stacks=tuple(stacks)))
        if cost is not None:
            loading[processes[-1].name if asked is None else f"pid {asked}"] = cost
    return StackReport(
        source=str(source),
        taken_by="file",
        exporter=", ".join(dict.fromkeys(one.exporter for one in read if one.exporter)),
        rate_hz=read[0].rate_hz if len({one.rate_hz for one in read}) == 1 else None,
        processes=tuple(processes),
        loading=loading,
    )
