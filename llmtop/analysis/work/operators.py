"""Device time by the framework's operator that launched it, with module, source line and shapes where recorded.

A piece of device work belongs to the innermost operator that was open on the launching thread when its launch
began. torch.profiler writes that as an "External id"; the two agree to the ns wherever the ids are there, and some
versions wrote none, or those of others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmtop.analysis.steps.work_by_step import WorkSteps
from llmtop.analysis.work.nesting import Nesting
from llmtop.analysis.work.tensor_shapes import moved_bytes, shape_text
from llmtop.naming.kernel_names import kind_of
from llmtop.naming.python_frames import is_own_frame
from llmtop.report.device_time import OperatorPart, OperatorTime
from llmtop.report.per_step import PerStep
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, grouped, is_among
from llmtop.trace.intervals import Ns, Numbers

GRAPH, OUTSIDE, UNKNOWN = "(CUDA graph)", "(no operator)", "(launch not recorded)"
"""Placeholders for an operator: work of a replayed CUDA graph; a launch outside of any operator; a launch that
is not in the capture. Work at the beginning of a capture may have been launched before it."""
MOST_PARTS = 8
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|^torch::autograd::|Backward\d*$")
_NODE = re.compile(r"^(?:autograd::engine::evaluate_function: )?(?:.*::)?(\w+?)Backward\d*$")
_GRAPH = re.compile(r"GraphLaunch")
MODULE = "nn.Module: "
"""How the frame of a module's forward begins."""


def launching_operators(trace: model.Trace) -> Numbers:
    """For each of `Trace.ops` a row of `Trace.host`, the operator that launched it; -1 where none did."""
    return trace.once("operators", None, lambda: _find_launching_operators(trace))


def _find_launching_operators(trace: model.Trace) -> Numbers:
    operators = Nesting(trace.host, np.flatnonzero(trace.host.kind == model.OPERATOR))
    known = np.flatnonzero(trace.launched_by >= 0)
    if not len(operators) or not len(known):
        return np.broadcast_to(np.int64(-1), len(trace.ops))
    by, calls = trace.calls, distinct_values(trace.launched_by[known])
    at = operators.innermost(by.process[calls], by.thread[calls], by.start[calls])
    row_of = np.full(len(by), -1, dtype=model.index_type(len(trace.host)))
    row_of[calls] = np.where(at >= 0, operators.rows[at], -1)
    row = np.full(len(trace.ops), -1, dtype=row_of.dtype)
    row[known] = row_of[trace.launched_by[known]]
    return row


@dataclass(frozen=True)
class OperatorCalls:
    """Calls of operators that launched device work themselves."""

    rows: Ns
    """Rows of `Trace.host`, ascending."""
    backward: Ns
    """For each the row of autograd's operator around it, or itself; -1 where there is none."""
    again: npt.NDArray[np.bool_]
    """Which are of a forward pass that backward runs again (activation checkpointing)."""


def operator_calls(trace: model.Trace) -> OperatorCalls:
    """Return the operators that launched something, worked out once for a trace."""
    return trace.once("operator calls", None, lambda: _operator_calls(trace))


def _operator_calls(trace: model.Trace) -> OperatorCalls:
    row = launching_operators(trace)
    rows = distinct_values(row[row >= 0])
    backward = _backward_nodes(trace, rows)
    return OperatorCalls(rows, backward, _recomputed_operators(trace, rows, backward))


def matching_names(trace: model.Trace, matches: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """For each name of a trace whether it matches; only names of the host's rows are tried."""
    fits = np.zeros(len(trace.names), dtype=bool)
    for number in distinct_values(trace.host.name).tolist():
        fits[number] = bool(matches(trace.names[number]))
    return fits


def _backward_nodes(trace: model.Trace, rows: Ns) -> Ns:
    """For each row of `Trace.host` the row of autograd's operator around it, or itself; -1 where there is none."""
    like = trace.once("backward names", None, lambda: matching_names(trace, _BACKWARD.search))
    host = trace.host
    chosen = np.flatnonzero((host.kind == model.OPERATOR) & like[host.name])
    around = trace.once("backward", None, lambda: Nesting(host, chosen))
    at = around.innermost(host.process[rows], host.thread[rows], host.start[rows])
    return np.where(at >= 0, around.rows[at], -1) if len(around) else np.full(len(rows), -1, dtype=np.int64)


def _recomputed_operators(trace: model.Trace, rows: Ns, backward: Ns) -> npt.NDArray[np.bool_]:
    """Return which operators are a forward pass that backward runs again.

    Autograd counts them, or an operator around them, as it does any forward operator; what a backward operator
    calls itself it does not count.
    """
    host = trace.host
    again = np.zeros(len(rows), dtype=bool)
    asked = np.flatnonzero(backward >= 0)
    if not len(asked):
        return again
    counted = Nesting(host, np.flatnonzero((host.kind == model.OPERATOR) & (host.sequence > 0)))
    if not len(counted):
        return again
    own = rows[asked]
    at = counted.innermost(host.process[own], host.thread[own], host.start[own])
    inner = np.where(at >= 0, counted.rows[at], -1)
    like = trace.once("backward names", None, lambda: matching_names(trace, _BACKWARD.search))
    inside = host.start[inner] >= host.start[backward[asked]]
    again[asked] = (inner >= 0) & ~like[host.name[inner]] & inside
    return again


def launched_by_graph(trace: model.Trace) -> npt.NDArray[np.bool_]:
    """For each piece of device work whether a replayed graph launched it."""
    used = distinct_values(trace.calls.name)
    fits = np.zeros(len(trace.names), dtype=bool)
    fits[used] = [bool(_GRAPH.search(trace.names[number])) for number in used.tolist()]
    by = trace.launched_by
    return (by >= 0) & fits[trace.calls.name[by]] if len(trace.calls) else np.zeros(len(by), dtype=bool)


def operator_times(trace: model.Trace, steps: WorkSteps | None = None) -> tuple[OperatorTime, ...]:
    """Self device time by operator, whole file, all devices, most first; empty where no operator launched any.

    Of nsys: of the time in which operators were marked, which begins and ends with a step within its file.

    Args:
        trace: what was read of a capture.
        steps: in which steps its device work lies; None: figures a step are not wanted.
    """
    row, calls = launching_operators(trace), operator_calls(trace)
    used, backward = calls.rows, calls.backward
    if not len(used):
        return ()
    took = trace.ops.end - trace.ops.start
    marked = _work_while_operators_recorded(trace)
    everything = max(int(took[marked].sum()), 1)
    by_operator = row >= 0
    call = np.searchsorted(used, row[by_operator])
    seconds = np.bincount(call, weights=took[by_operator], minlength=len(used)).astype(np.float64)
    launches = np.bincount(call, minlength=len(used))
    modules, sources = _source_places(trace, calls)
    kernels = _kernels_by_name(trace, by_operator, trace.host.name[row], took)
    autograd = bool((backward >= 0).any())
    per_step = {} if steps is None else _per_step(trace, steps, row, used)
    rows = []
    names = trace.host.name[used]
    for number in distinct_values(names).tolist():
        mine = np.flatnonzero(names == number)
        total = float(seconds[mine].sum())
        in_modules = _operator_parts(modules.label, modules.of[mine], seconds[mine])
        in_sources = _operator_parts(sources.label, sources.of[mine], seconds[mine])
        rows.append(
            OperatorTime(
                name=trace.names[number],
                calls=len(mine),
                launches=int(launches[mine].sum()),
                seconds=total / 1e9,
                share_pct=100.0 * total / everything,
                mean_us=total / 1e3 / len(mine),
                backward_pct=100.0 * float(seconds[mine][backward[mine] >= 0].sum()) / max(total, 1.0)
                if autograd
                else None,
                module=next((part.name for part in in_modules), ""),
                source=next((part.name for part in in_sources), ""),
                modules=in_modules,
                sources=in_sources,
                shapes=_parts_by_shape(trace, number, used[mine], seconds[mine], kernels[number]),
                kernels=kernels[number],
                per_step=per_step.get(number, ()),
            )
        )
    rows += _work_without_operator(trace, ~by_operator & marked, took, everything, steps)
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _work_while_operators_recorded(trace: model.Trace) -> npt.NDArray[np.bool_]:
    """Return which device work was launched from its process's first operator to the end of its last."""
    by, host, chosen = trace.launched_by, trace.host, np.ones(len(trace.ops), dtype=bool)
    if not trace.operators_of_a_part:
        return chosen
    operators = host.kind == model.OPERATOR
    for pid in distinct_values(host.process[operators]).tolist():
        mine = operators & (host.process == pid)
        first, last = host.start[mine].min(), host.end[mine].max()
        launched_at = trace.calls.start[by]
        chosen &= (trace.ops.process != pid) | ((by >= 0) & (launched_at >= first) & (launched_at <= last))
    return chosen


def _kernels_by_name(
    trace: model.Trace, chosen: npt.NDArray[np.bool_], group: Numbers, took: Ns
) -> dict[int, tuple[OperatorPart, ...]]:
    """Return the device work of each group by its full name, most time first."""
    keys, which = grouped(group[chosen], trace.ops.full_name[chosen])
    counts = np.bincount(which)
    sums = np.bincount(which, weights=took[chosen])
    found: dict[int, list[OperatorPart]] = {}
    for place, (own, name) in enumerate(keys):
        part = OperatorPart(name=trace.names[name], calls=int(counts[place]), seconds=float(sums[place]) / 1e9)
        found.setdefault(own, []).append(part)
    return {own: _largest_parts(parts) for own, parts in found.items()}


def _largest_parts(parts: list[OperatorPart]) -> tuple[OperatorPart, ...]:
    return tuple(sorted(parts, key=lambda part: -part.seconds)[:MOST_PARTS])


def _operator_parts(labels: list[str], of: Ns, seconds: npt.NDArray[np.float64]) -> tuple[OperatorPart, ...]:
    """Calls and seconds (given in ns) by label; calls without one are left out."""
    counts = np.bincount(of[of >= 0], minlength=1)
    sums = np.bincount(of[of >= 0], weights=seconds[of >= 0], minlength=1)
    return _largest_parts(
        [
            OperatorPart(name=labels[place], calls=int(counts[place]), seconds=float(sums[place]) / 1e9)
            for place in np.flatnonzero(counts).tolist()
        ]
    )


def _parts_by_shape(
    trace: model.Trace,
    name: int,
    calls: Ns,
    seconds: npt.NDArray[np.float64],
    kernels: tuple[OperatorPart, ...],
) -> tuple[OperatorPart, ...]:
    """Return the calls by the shapes of their inputs; with the rate where they only move data."""
    inputs = trace.host.inputs[calls].astype(np.int64)
    moves = bool(kernels) and kind_of(kernels[0].name) == "elementwise"
    found = []
    for number in distinct_values(inputs[inputs > 0]).tolist():
        mine = inputs == number
        total, text = float(seconds[mine].sum()), trace.names[number]
        size = moved_bytes(trace.names[name], text) if moves else None
        rate = size * int(mine.sum()) / total / 1e3 if size and total else None
        part = OperatorPart(name=shape_text(text), calls=int(mine.sum()), seconds=total / 1e9, tb_per_s=rate)
        found.append(part)
    return _largest_parts(found)


def _per_step(trace: model.Trace, steps: WorkSteps, row: Ns, used: Ns) -> dict[int, tuple[PerStep, ...]]:
    """Time per step of each operator, by the number of its name."""
    mine = np.flatnonzero(row >= 0)
    name, took = trace.host.name[row[mine]], (trace.ops.end - trace.ops.start)[mine]
    times = steps.per_step(mine, name, took)
    # One piece of work stands for each call: it lies in the step of its work.
    one = np.empty(len(used), dtype=np.int64)
    one[np.searchsorted(used, row[mine])] = mine
    calls = steps.per_step(one, trace.host.name[used], np.zeros(len(used), dtype=np.int64))
    found: dict[int, tuple[PerStep, ...]] = {}
    for number, figures in times.items():
        counts = {figure.place: figure.count for figure in calls.get(number, ())}
        found[number] = tuple(
            PerStep(figure.place, counts.get(figure.place, 0.0), figure.seconds, figure.deviation)
            for figure in figures
        )
    return found


def _work_without_operator(
    trace: model.Trace, chosen: npt.NDArray[np.bool_], took: Ns, everything: int, steps: WorkSteps | None
) -> list[OperatorTime]:
    """Work that no operator launched, by kind of launch."""
    group = np.where(trace.launched_by < 0, 2, np.where(launched_by_graph(trace), 0, 1))
    kernels = _kernels_by_name(trace, chosen, group, took)
    mine = np.flatnonzero(chosen)
    per_step = {} if steps is None else steps.per_step(mine, group[mine], took[mine])
    rows = []
    for number, name in enumerate((GRAPH, OUTSIDE, UNKNOWN)):
        mine = chosen & (group == number)
        if not mine.any():
            continue
        total, calls = int(took[mine].sum()), trace.launched_by[mine]
        launches = int(mine.sum())
        many = len(distinct_values(calls)) if number != 2 else launches
        rows.append(
            OperatorTime(
                name=name,
                is_operator=False,
                calls=many,
                launches=launches,
                seconds=total / 1e9,
                share_pct=100.0 * total / everything,
                mean_us=total / 1e3 / many,
                kernels=kernels[number],
                per_step=per_step.get(number, ()),
            )
        )
    return rows


@dataclass(frozen=True)
class _Labels:
    label: list[str]
    of: Ns
    """For each call a place in `label`; -1 for none."""


def _source_places(trace: model.Trace, calls: OperatorCalls) -> tuple[_Labels, _Labels]:
    """Return the module and the source line of each call; of a backward one those of its forward."""
    host = trace.host
    python = host.kind == model.PYTHON
    if not python.any():
        none = np.broadcast_to(np.int64(-1), len(calls.rows))
        return _Labels([], none), _Labels([""], none)
    made_for = _forward_operators(trace, calls.backward)
    where = np.where((calls.backward >= 0) & ~calls.again, made_for, calls.rows)
    known = where >= 0
    process, thread, start = host.process[where], host.thread[where], host.start[where]
    is_module = matching_names(trace, lambda name: name.startswith(MODULE))[host.name] & python
    of_user = matching_names(trace, is_own_frame)[host.name] & python
    modules = Nesting(host, np.flatnonzero(is_module))
    at = np.where(known, modules.innermost(process, thread, start), -1)
    frames = Nesting(host, np.flatnonzero(of_user))
    line = np.where(known, frames.innermost(process, thread, start), -1)
    names = np.where(line >= 0, host.name[frames.rows[line]], -1) if len(frames) else line
    different, which = np.unique(names, return_inverse=True)
    sources = [trace.names[number] if number >= 0 else "" for number in different.tolist()]
    which = np.where(names >= 0, which.reshape(-1), -1)
    return _Labels(*_module_paths(trace, modules, at)), _Labels(sources, which)


def _module_paths(trace: model.Trace, modules: Nesting, at: Ns) -> tuple[list[str], Ns]:
    """Return the classes of the modules around each position, outermost first, as places in a list."""
    paths: dict[int, str] = {-1: ""}
    parents = modules.parents

    def path(position: int) -> str:
        chain = []
        while position not in paths:
            chain.append(position)
            position = int(parents[position])
        for inner in reversed(chain):
            name = trace.names[trace.host.name[modules.rows[inner]]].removeprefix(MODULE)
            own = re.sub(r"_\d+$", "", name)
            paths[inner] = f"{paths[position]}/{own}" if paths[position] else own
            position = inner
        return paths[position]

    different, which = np.unique(at, return_inverse=True)
    labels: dict[str, int] = {}
    number = [
        labels.setdefault(path(position), len(labels)) if position >= 0 else -1 for position in different.tolist()
    ]
    return list(labels), np.array(number, dtype=np.int64)[which.reshape(-1)]


def _forward_operators(trace: model.Trace, backward: Ns) -> Ns:
    """For each row of an operator of autograd's the row of the forward operator that it was made for; -1 for none.

    Both have one sequence number. Threads count for themselves, so the names must agree too: AddmmBackward0 is of
    aten::addmm.
    """
    host = trace.host
    candidates = np.flatnonzero((host.sequence > 0) & (host.kind == model.OPERATOR))
    candidates = candidates[_backward_nodes(trace, candidates) < 0]
    found = np.full(len(backward), -1, dtype=np.int64)
    asked = np.flatnonzero((backward >= 0) & (host.sequence[backward] > 0))
    if not len(candidates) or not len(asked):
        return found
    plain = {
        number: _normalized_name(trace.names[number]) for number in distinct_values(host.name[candidates]).tolist()
    }
    made_for: dict[tuple[int, int, str], int] = {}
    candidates = candidates[is_among(host.sequence[candidates], host.sequence[backward[asked]])]
    order = candidates[np.argsort(host.start[candidates], kind="stable")]
    for row, process, sequence, name in zip(
        order.tolist(),
        host.process[order].tolist(),
        host.sequence[order].tolist(),
        host.name[order].tolist(),
        strict=True,
    ):
        made_for[(process, sequence, plain[name])] = row
    rows, which = np.unique(backward[asked], return_inverse=True)
    answers = []
    for row in rows.tolist():
        node = _NODE.match(trace.names[host.name[row]])
        key = (int(host.process[row]), int(host.sequence[row]), _normalized_name(node[1]) if node else "")
        answers.append(made_for.get(key, -1))
    found[asked] = np.array(answers, dtype=np.int64)[which.reshape(-1)]
    return found


def _normalized_name(name: str) -> str:
    """Return an operator's name as autograd's nodes are named after it: aten::_to_copy and ToCopy are "tocopy"."""
    return name.rpartition("::")[2].replace("_", "").lower()
