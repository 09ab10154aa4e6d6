"""Kernels by short name and functor, with what each computes and which operator launched it."""

from __future__ import annotations

import numpy as np

from llmtop.analysis.steps.work_by_step import WorkSteps
from llmtop.analysis.work.operators import launching_operators
from llmtop.naming.kernel_names import KernelKind, kind_of
from llmtop.naming.readable_kernels import KernelLabel, label_of
from llmtop.report.model import KernelTime, KernelVariant
from llmtop.trace import model
from llmtop.trace.groups import count_and_sum, grouped, least_and_most
from llmtop.trace.intervals import Ns, Numbers


def kernel_times(trace: model.Trace, steps: WorkSteps) -> tuple[KernelTime, ...]:
    """Return all kernels by short name and functor, whole file, all devices; most time first.

    Args:
        trace: what was read of a capture.
        steps: in which steps its device work lies.
    """
    mine = np.flatnonzero(trace.ops.kind == model.KERNEL).astype(model.index_type(len(trace.ops)))
    if not len(mine):
        return ()
    kernels = trace.ops.select(mine)
    took = kernels.end - kernels.start
    everything = max(int(took.sum()), 1)
    group, names = _groups(trace, kernels)
    variants = _kernel_variants(trace, kernels, group, took)
    operators = _launching_operators(trace, mine, group, took)
    per_step = steps.per_step(mine, group, took)
    counts, sums = (column.tolist() for column in count_and_sum(group, took, len(names)))
    least, most = (column.tolist() for column in least_and_most(group, took, len(names)))
    rows = []
    for index, label in enumerate(names):
        count, total = counts[index], int(sums[index])
        rows.append(
            KernelTime(
                name=label.name,
                short_name=label.tool_name,
                functor=label.functor,
                pattern=label.pattern,
                operator=operators.get(index, ""),
                kind=kind_of(variants[index][0].name),
                count=count,
                seconds=total / 1e9,
                share_pct=100.0 * total / everything,
                mean_us=total / 1e3 / count,
                min_us=least[index] / 1e3,
                max_us=most[index] / 1e3,
                variants=tuple(variants[index]),
                per_step=per_step.get(index, ()),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _groups(trace: model.Trace, kernels: model.DeviceOps) -> tuple[Numbers, list[KernelLabel]]:
    """For each kernel the number of its group, and what each group is called: no two alike."""
    pairs, which = grouped(kernels.name, kernels.full_name)
    labels = [label_of(trace.names[short], trace.names[full]) for short, full in pairs]
    tools: dict[str, set[str]] = {}
    for label in labels:
        tools.setdefault(label.name, set()).add(label.tool_name)
    # A shortened name that several functions would share is no name of either.
    labels = [
        label if len(tools[label.name]) == 1 else label._replace(name=f"{label.name} ({label.tool_name})")
        for label in labels
    ]
    names: dict[tuple[str, str], int] = {}
    numbers = [names.setdefault((label.name, label.tool_name), len(names)) for label in labels]
    first: dict[int, KernelLabel] = {}
    for number, label in zip(numbers, labels, strict=True):
        first.setdefault(number, label)
    return np.array(numbers, dtype=np.int32)[which], [first[number] for number in range(len(names))]


def _launching_operators(trace: model.Trace, mine: Numbers, group: Numbers, took: Ns) -> dict[int, str]:
    """Return the operator that launched most of the time of each group; a group without operators is left out."""
    row = launching_operators(trace)[mine]
    known = row >= 0
    if not known.any():
        return {}
    keys, which = grouped(group[known], trace.host.name[row[known]])
    sums = np.bincount(which, weights=took[known])
    whole = count_and_sum(group, took, int(group.max()) + 1)[1]
    return {
        own: trace.names[name]
        for (own, name), seconds in zip(keys, sums.tolist(), strict=True)
        if 2 * seconds > whole[own]
    }


def _kernel_variants(
    trace: model.Trace, kernels: model.DeviceOps, group: Numbers, took: Ns
) -> dict[int, list[KernelVariant]]:
    """Return the full names in each group, most time first."""
    pairs, which = grouped(group, kernels.full_name)
    counts, sums = count_and_sum(which, took, len(pairs))
    found: dict[int, list[KernelVariant]] = {}
    for index, (own, full) in enumerate(pairs):
        row = KernelVariant(name=trace.names[full], count=int(counts[index]), seconds=float(sums[index]) / 1e9)
        found.setdefault(own, []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: -row.seconds)
    return found


def seconds_by_kind(kernels: tuple[KernelTime, ...]) -> dict[KernelKind, float]:
    """Seconds of kernel time by what they compute; the variants of one short name may differ in that."""
    sums: dict[KernelKind, float] = {}
    for kernel in kernels:
        for variant in kernel.variants:
            kind = kind_of(variant.name)
            sums[kind] = sums.get(kind, 0.0) + variant.seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
