"""Kernels by short name, with what each computes."""

from __future__ import annotations

import numpy as np

from llmtop.kernel_names import KernelKind, kind_of
from llmtop.report.model import KernelTime, KernelVariant
from llmtop.trace import model
from llmtop.trace.intervals import Ns


def kernel_times(trace: model.Trace) -> tuple[KernelTime, ...]:
    """All kernels by short name, whole file, all devices; most time first."""
    kernels = trace.ops.where(trace.ops.kind == model.KERNEL)
    if not len(kernels):
        return ()
    took = kernels.end - kernels.start
    everything = max(int(took.sum()), 1)
    variants = _variants(trace, kernels, took)
    rows = []
    names, of_name = np.unique(kernels.name, return_inverse=True)
    order = np.argsort(of_name.reshape(-1), kind="stable")
    edges = np.searchsorted(of_name.reshape(-1)[order], np.arange(len(names) + 1))
    for index, name in enumerate(names.tolist()):
        times = took[order[edges[index] : edges[index + 1]]]
        total = int(times.sum())
        rows.append(
            KernelTime(
                name=trace.names[name],
                kind=kind_of(variants[name][0].name),
                count=len(times),
                seconds=total / 1e9,
                share_pct=100.0 * total / everything,
                mean_us=total / 1e3 / len(times),
                min_us=int(times.min()) / 1e3,
                max_us=int(times.max()) / 1e3,
                variants=tuple(variants[name]),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _variants(trace: model.Trace, kernels: model.DeviceOps, took: Ns) -> dict[int, list[KernelVariant]]:
    """The full names behind each short one, most time first."""
    pair, which = np.unique(kernels.name * (len(trace.names) + 1) + kernels.full_name, return_inverse=True)
    counts = np.bincount(which.reshape(-1))
    sums = np.bincount(which.reshape(-1), weights=took)
    found: dict[int, list[KernelVariant]] = {}
    for index, key in enumerate(pair.tolist()):
        short, full = divmod(key, len(trace.names) + 1)
        row = KernelVariant(name=trace.names[full], count=int(counts[index]), seconds=float(sums[index]) / 1e9)
        found.setdefault(short, []).append(row)
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
