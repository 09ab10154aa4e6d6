"""Several runs whose traces lie in one folder, as torch.profiler's handler leaves them: the newest is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from llmtop.format import counted
from llmtop.trace import model
from llmtop.trace.files.windows import processes_of

_WORKER = re.compile(r"(.+?)\.\d{10,}\.pt\.trace\.json(?:\.gz)?")
"""How tensorboard_trace_handler names a file: the host and the pid, then the time of writing."""
_SHOWN = 3

Process: TypeAlias = tuple[int, str]
"""Pid, and the worker that the file's name tells: containers give every run the same pid."""
Place: TypeAlias = tuple[object, ...]
"""Rank of a process or, where ranks are not known, its GPUs: no two processes of a run have the same."""


@dataclass
class _Run:
    """Files of one run, and until when each of its processes was recorded at which place."""

    traces: list[model.Trace] = field(default_factory=list)
    ends: dict[Place, dict[Process, int]] = field(default_factory=dict)


def newest_run(traces: list[model.Trace], folder: Path) -> tuple[list[model.Trace], str]:
    """Return the traces of the newest run of a folder, and a sentence on the others, "" where there are none.

    Another run begins where a process takes the place (the rank or, where ranks are not known, the GPUs) of
    another one whose recording had ended. Several windows of one process are of one run. Files are of one run
    where their times cannot be compared.

    Args:
        traces: of the files of one folder, without copies.
        folder: to which the sentence's paths are relative.
    """
    known = {trace.origin_unix_ns is not None for trace in traces}
    if len(traces) < 2 or len(known) > 1 or any(trace.framework for trace in traces):
        return traces, ""
    runs = [_Run()]
    for trace in sorted(traces, key=_began):
        low, high = (instant + (trace.origin_unix_ns or 0) for instant in trace.window)
        places = _places(trace)
        if any(_follows(runs[-1], process, place, low) for process, place in places.items()):
            runs.append(_Run())
        runs[-1].traces.append(trace)
        for process, place in places.items():
            ends = runs[-1].ends.setdefault(place, {})
            ends[process] = max(high, ends.get(process, high))
    if len(runs) == 1:
        return traces, ""
    newest = runs[-1].traces
    others = [_shown(run.traces, folder) for run in reversed(runs[:-1])]
    kept = {id(trace) for trace in newest}
    chosen = [trace for trace in traces if id(trace) in kept]
    return chosen, run_sentence(folder, _shown(newest, folder), others)


def run_sentence(folder: Path, newest: str, others: Sequence[str]) -> str:
    """Return which run of a folder a report is of, and which runs it leaves out."""
    more = f", and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    return (
        f"{folder} holds {counted(len(others) + 1, 'run')}: this report is of the newest, {newest}; not in it: "
        f"{', '.join(others[:_SHOWN])}{more}"
    )


def _began(trace: model.Trace) -> int:
    return trace.window[0] + (trace.origin_unix_ns or 0)


def _places(trace: model.Trace) -> dict[Process, Place]:
    """Return the place of each process of a file in its run."""
    named = _WORKER.fullmatch(Path(trace.source).name)
    ranks = {one.process: one.rank for one in trace.ranks}
    gpus: dict[int, set[object]] = {}
    for process, device in model.pairs(trace.ops.process, trace.ops.device).tolist():
        gpu = trace.gpu(process, device)
        gpus.setdefault(process, set()).add(device if gpu is None or gpu.uuid is None else gpu.uuid)
    return {
        (pid, named[1] if named else ""): ("rank", ranks[pid])
        if pid in ranks
        else ("GPUs", frozenset(gpus.get(pid, ())))
        for pid in processes_of(trace)
    }


def _follows(run: _Run, process: Process, place: Place, begin: int) -> bool:
    """Return True if a process takes the place of others, all of which had ended before it began."""
    before = run.ends.get(place, {})
    return bool(before) and process not in before and all(end <= begin for end in before.values())


def _shown(traces: list[model.Trace], folder: Path) -> str:
    """Return the name of a run's first file, and how many more it has."""
    path = Path(traces[0].source)
    name = str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name
    return f"{name} and {counted(len(traces) - 1, 'more file')}" if len(traces) > 1 else name
