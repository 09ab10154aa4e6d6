"""One process on one GPU: its device work, its whole steps on the device's own time line, and what lay idle."""

from __future__ import annotations

import collections
import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmtop.analysis.steps.step_finder import ProcessSteps
from llmtop.naming.kernel_names import is_collective
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import distinct_values, grouped, is_among
from llmtop.trace.intervals import Ns, Numbers, Spans

_BETWEEN_HOST_AND_DEVICE = (model.HOST_TO_DEVICE, model.DEVICE_TO_HOST)

_FIRST_TO_LAST = "the time from first to last device activity"


@dataclass(frozen=True)
class DeviceTimeline:
    """Timeline of one process on one GPU, in ns of the trace's clock."""

    trace: model.Trace
    process: int
    device: int
    rows: Numbers
    """Rows of `trace.ops`, in order of their start."""
    steps: ProcessSteps
    bounds: Ns
    """Instants that divide the device's time line into whole steps: one more than there are steps; two (the first
    and the last instant of any activity) when there are none."""
    counted: int
    """How many whole steps lie between them; 0 when the bounds are those of the whole capture."""
    launched_from: int = 0
    launched_until: int = 0
    """Instants between which the host launched these steps, in ns of the trace's clock: the host may be far
    ahead."""
    slow_first_ns: int = 0
    """How long the first whole step was, where it is left out because it carries the start of the capture."""
    begins_after: str = ""
    """Part before the bounds that is left out, in words: only without steps."""
    alone: bool = True
    """True if its process worked on no other GPU."""

    @functools.cached_property
    def ops(self) -> model.DeviceOps:
        """The device work of this timeline, by start."""
        return self.trace.ops.select(self.rows)

    @functools.cached_property
    def launched_by(self) -> Ns:
        """Row of `trace.calls` for each of `ops`; -1 where unknown."""
        return model.take_rows(self.trace.launched_by, self.rows)

    @functools.cached_property
    def is_nccl(self) -> npt.NDArray[np.bool_]:
        """Which of `ops` are kernels that communicate, by NCCL or another library."""
        like = self.trace.once("collective", None, lambda: _communication_names(self.trace))
        return np.asarray((self.ops.kind == model.KERNEL) & like[self.ops.full_name])

    @property
    def begin_ns(self) -> int:
        """Begin of the first whole step, in ns of the trace's clock."""
        return int(self.bounds[0])

    @property
    def end_ns(self) -> int:
        """End of the last whole step, in ns of the trace's clock."""
        return int(self.bounds[-1])

    @property
    def slow_first(self) -> bool:
        """Return True if the first whole step was left out because it carries the start of the capture."""
        return self.slow_first_ns > 0

    @property
    def extent_text(self) -> str:
        """Return the base of the shares, without steps."""
        return f"the time after {self.begins_after}" if self.begins_after else _FIRST_TO_LAST

    @property
    def length(self) -> int:
        """Return the time from the begin of the first whole step to the end of the last, in ns."""
        return max(self.end_ns - self.begin_ns, 1)

    def share(self, nanoseconds: float) -> float:
        """Return a time as a percentage of the whole steps.

        Args:
            nanoseconds: time within the whole steps.
        """
        return 100.0 * nanoseconds / self.length

    def per_step_ms(self, nanoseconds: float) -> float | None:
        """Return a time as milliseconds per step.

        Args:
            nanoseconds: time within the whole steps.

        Returns:
            None without whole steps.
        """
        return nanoseconds / 1e6 / self.counted if self.counted else None

    def _union(self, chosen: npt.NDArray[np.bool_]) -> Spans:
        return iv.union(model.take_rows(self.ops.start, chosen), model.take_rows(self.ops.end, chosen))

    @functools.cached_property
    def busy(self) -> Spans:
        """When a kernel, copy, memset or whole graph ran, in the whole file."""
        return iv.union(self.ops.start, self.ops.end)

    @functools.cached_property
    def kernels(self) -> Spans:
        """Merged times in which any kernel ran, over the whole file."""
        return self._union(self.ops.kind == model.KERNEL)

    @functools.cached_property
    def graphs(self) -> int:
        """How many CUDA graphs were traced as a whole: what ran in them is not known."""
        return int((self.ops.kind == model.GRAPH).sum())

    @functools.cached_property
    def kernels_known(self) -> bool:
        """Return True if more time was recorded kernel by kernel than as whole graphs."""
        return not self.graphs or self._union(self.ops.kind == model.GRAPH).total < self.kernels.total

    @functools.cached_property
    def host_copies(self) -> Spans:
        """When a copy between host and device ran, in the whole file."""
        return self._union(self._is_host_copy)

    @functools.cached_property
    def pageable_copies(self) -> Spans:
        """When a copy between the device and pageable memory of the host ran, in the whole file."""
        pageable = (self.ops.source_memory == model.PAGEABLE) | (self.ops.target_memory == model.PAGEABLE)
        return self._union(self._is_host_copy & pageable)

    @functools.cached_property
    def _is_host_copy(self) -> npt.NDArray[np.bool_]:
        copies = self.ops.kind == model.MEMCPY
        return np.asarray(copies & is_among(self.ops.direction, _BETWEEN_HOST_AND_DEVICE))

    @functools.cached_property
    def copies(self) -> Spans:
        """When a copy of any direction ran, in the whole file."""
        return self._union(self.ops.kind == model.MEMCPY)

    @functools.cached_property
    def only_host_copies(self) -> Spans:
        """Time in which nothing but copies between host and device ran, whole file."""
        return iv.difference(self.host_copies, self._union(~self._is_host_copy))

    @functools.cached_property
    def nccl(self) -> Spans:
        """When a NCCL kernel ran, in the whole file."""
        return self._union(self.is_nccl)

    @functools.cached_property
    def exposed_nccl(self) -> Spans:
        """NCCL while nothing else ran on this device, whole file."""
        return iv.difference(self.nccl, self._union(~self.is_nccl))

    @functools.cached_property
    def idle(self) -> Spans:
        """Time within whole steps in which this process ran nothing on this device."""
        return iv.complement(self.busy, self.begin_ns, self.end_ns)

    def ns_in_steps(self, spans: Spans) -> int:
        """Return how much of a set lies in whole steps, ns."""
        return iv.clip(spans, self.begin_ns, self.end_ns).total

    @functools.cached_property
    def launchers(self) -> Ns:
        """The threads whose launches make up the step: those with at least a twentieth of the kernels (NCCL's
        aside), so neither a thread that prefetches nor one that watches NCCL."""
        computes = is_among(self.ops.kind, (model.KERNEL, model.GRAPH)) & ~self.is_nccl
        called = self.launched_by[computes & (self.launched_by >= 0)]
        if not len(called):
            called = self.launched_by[self.launched_by >= 0]
        found, which = grouped(self.trace.calls.thread[called])
        threads, counts = np.array(found, dtype=np.int64).reshape(-1), np.bincount(which)
        kept = threads[counts >= 0.05 * counts.sum()] if len(threads) else threads
        if self.steps.thread is not None:
            kept = distinct_values(np.append(kept, self.steps.thread))
        return kept


def _communication_names(trace: model.Trace) -> npt.NDArray[np.bool_]:
    """For each name of the trace whether it is a kernel's that communicates."""
    like = np.zeros(len(trace.names), dtype=bool)
    for number in distinct_values(trace.ops.full_name).tolist():
        like[number] = is_collective(trace.names[number])
    return like


def device_timelines(trace: model.Trace, steps: dict[int, ProcessSteps]) -> list[DeviceTimeline]:
    """Return a timeline for every (process, GPU) with device work, in order of GPU and pid."""
    ops = trace.ops
    order = _rows_by_device(ops)
    device, process = model.take_rows(ops.device, order), model.take_rows(ops.process, order)
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (device[1:] != device[:-1]) | (process[1:] != process[:-1])
    first = np.flatnonzero(begins)
    pairs = np.stack([device[first], process[first]], axis=1)
    del device, process
    devices = collections.Counter(pairs[:, 1].tolist())
    timelines = []
    for (gpu, pid), rows in zip(pairs.tolist(), np.split(order, first[1:]) if len(order) else [], strict=True):
        own = steps[pid]
        bounds, edges, counted = _step_bounds(trace, rows, own)
        slow_first = 0
        if counted >= 3 and not own.cut_before and _is_first_step_slow(bounds):
            slow_first = int(bounds[1] - bounds[0])
            bounds, edges, counted = bounds[1:], edges[1:], counted - 1
        timelines.append(
            DeviceTimeline(
                trace,
                pid,
                gpu,
                rows,
                own,
                bounds,
                counted,
                launched_from=int(edges.min()),
                launched_until=int(edges.max()),
                slow_first_ns=slow_first,
                alone=devices[pid] == 1,
            )
        )
    return timelines


def _rows_by_device(ops: model.DeviceOps) -> Numbers:
    """Return the rows of device work in order of GPU, pid and start."""
    runs = model.runs_of_values(ops.process)
    if not len(ops) or runs is None or int(ops.device.min()) != int(ops.device.max()):
        order = np.lexsort((ops.start, ops.process, ops.device))
        return order.astype(model.index_type(len(ops)))
    # One GPU number and one process after another, as several files have them: each is sorted by itself.
    parts = [np.argsort(ops.start[runs[pid]], kind="stable") + runs[pid].start for pid in sorted(runs)]
    return np.concatenate(parts, dtype=model.index_type(len(ops)), casting="same_kind")


def _is_first_step_slow(bounds: Ns) -> bool:
    """Return True if the first step took much longer than the others: the start of a capture slows a step down
    (by 19 of 75 ms in a trace of torch.profiler on an H200, where the others took 57)."""
    lengths = np.diff(bounds)
    return bool(lengths[0] > 1.15 * np.median(lengths[1:]) and lengths[0] > np.max(lengths[1:]))


def _step_bounds(trace: model.Trace, rows: Numbers, steps: ProcessSteps) -> tuple[Ns, Ns, int]:
    """Return where the steps begin on the device, where the host began them, and how many they are.

    The host runs ahead of the device, and work that was launched before the capture began is not in the file. So
    a step begins on the device where the first work that the host launched in it starts, not where the host began
    it: between two such places lies a whole step of device time, whatever the lag.
    """
    starts = trace.ops.start[rows]
    whole = np.array([int(starts[0]), int(trace.ops.end[rows].max())], dtype=np.int64)
    if not len(steps):
        return whole, whole, 0
    called = trace.launched_by[rows]
    known = called >= 0
    if not known.any():
        return _host_bounds(steps, whole, launches_known=False)
    launched_at = trace.calls.start[called[known]]
    order = np.argsort(launched_at, kind="stable")
    launched_at, began = launched_at[order], starts[known][order]
    edges = np.append(steps.starts, steps.ends[-1])
    at = np.searchsorted(launched_at, edges)
    nexts = np.append(steps.starts[1:], [steps.ends[-1], np.iinfo(np.int64).max])
    # A step without any device work has no place of its own on the device: its edge is dropped, and so it counts
    # with the step before it.
    usable = (at < len(launched_at)) & (launched_at[np.minimum(at, len(launched_at) - 1)] < nexts)
    bounds, first = np.unique(began[at[usable]], return_index=True)
    used = edges[usable][first]
    if steps.closed and len(bounds) and not usable[-1]:
        bounds, used = np.append(bounds, whole[1]), np.append(used, edges[-1])
    if len(bounds) < 2:
        within = np.searchsorted(launched_at, edges[-1]) > np.searchsorted(launched_at, edges[0])
        return _host_bounds(steps, whole, launches_known=bool(within))
    return bounds, used, len(bounds) - 1


_LEAST_COVERED = 0.5
"""Share of the device's activity. A range without a known launch that covers less (a `ProfilerStep` of 36 µs
around 105 ms of kernels) shows nothing about the device's steps."""


def _host_bounds(steps: ProcessSteps, whole: Ns, *, launches_known: bool) -> tuple[Ns, Ns, int]:
    """Return the host's own edges, when the device's cannot be had (no API calls in the file, or one step only).

    Args:
        steps: of the process.
        whole: the device's first and last instant.
        launches_known: whether device work is known to be launched within the steps.
    """
    first, last = max(int(steps.starts[0]), int(whole[0])), min(int(steps.ends[-1]), int(whole[1]))
    if last <= first:
        return whole, whole, 0
    if not launches_known and last - first < _LEAST_COVERED * int(whole[1] - whole[0]):
        return whole, whole, 0
    edges = np.append(steps.starts, steps.ends[-1])
    return edges, edges, len(steps)
