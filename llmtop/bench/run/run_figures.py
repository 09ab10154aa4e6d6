"""Figures of a window: rates and percentiles of its steps, and the signals of its GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from llmtop.bench.model.results import MeasuredSteps, RunFigures
from llmtop.bench.run.run_steps import RankSteps
from llmtop.model.gpu_busy import BusyEstimate, estimate_busy
from llmtop.model.snapshot import Gpu, Snapshot
from llmtop.step_history.whole_steps import WholeStep

LOOK_BACK_SECONDS = 1.0
"""Time that the driver's counters look back: the first sample of a window describes its warm-up."""
MIN_SAMPLES = 3
"""Fewer samples of a counter in the window say nothing of it."""


def window_figures(
    window: MeasuredSteps,
    measured: Sequence[WholeStep],
    ranks: Sequence[RankSteps],
    snapshots: Sequence[Snapshot],
    shared: frozenset[str],
) -> RunFigures:
    """Return the figures of a window.

    Args:
        window: first and last step, and the time of each; it ends with a step.
        measured: whole steps of the measured rank in that window.
        ranks: all processes of the run that made steps, the measured one first.
        snapshots: of the run, oldest first; those within the window are used.
        shared: UUIDs of GPUs on which other processes computed as well; their idle share is then None.
    """
    seconds = sum(window.step_seconds)
    tokens = None if window.step_tokens is None else sum(window.step_tokens)
    samples = None if window.step_samples is None else sum(window.step_samples)
    uuids = [rank.rank.gpu_uuid for rank in ranks if rank.rank.gpu_uuid]
    during = [one for one in snapshots if _is_within(one, window)]
    gpus = {uuid: _gpu_samples(uuid, during) for uuid in dict.fromkeys(uuids)}
    joules = _energy([_energy_readings(uuid, snapshots) for uuid in gpus], window)
    busy = _busy(gpus, measured, ranks) if not shared else None
    mfu_pct, mfu_note = _mfu(ranks, None if tokens is None else tokens / seconds, during)
    peaks = [one.memory_peak_bytes for one in ranks if one.memory_peak_bytes is not None]
    costs = [one.overhead_seconds for one in ranks if one.overhead_seconds is not None]
    return RunFigures(
        steps_per_s=len(window.step_seconds) / seconds,
        tokens_per_s=None if tokens is None else tokens / seconds,
        samples_per_s=None if samples is None else samples / seconds,
        step_seconds_mean=seconds / len(window.step_seconds),
        **_percentiles("step_seconds", window.step_seconds),
        **_percentiles("ttft_seconds", [whole.step.ttft_seconds for whole in measured]),
        **_percentiles("tpot_seconds", [whole.step.tpot_seconds for whole in measured]),
        gpu_idle_pct=None if busy is None else max(0.0, 100.0 - busy.pct),
        gpu_idle_bound=busy is not None and busy.bound,
        gpu_idle_source=None if busy is None else busy.source,
        power_watts=_power(gpus, joules, window),
        energy_joules=joules,
        energy_joules_per_token=None if joules is None or not tokens else joules / tokens,
        memory_peak_bytes=max(peaks, default=None),
        mfu_pct=mfu_pct,
        mfu_note=mfu_note,
        overhead_seconds=max(costs, default=None),
    )


def _percentiles(name: str, values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    if not known:
        return {}
    found = np.percentile(known, (50, 95, 99))
    return {f"{name}_p{share}": float(value) for share, value in zip((50, 95, 99), found, strict=True)}


def _is_within(snapshot: Snapshot, window: MeasuredSteps) -> bool:
    """Return True if what a snapshot's counters say is of the window."""
    since = window.started_at + LOOK_BACK_SECONDS
    return since <= snapshot.time <= window.started_at + window.seconds + LOOK_BACK_SECONDS / 2


def _gpu_samples(uuid: str, during: Sequence[Snapshot]) -> list[Gpu]:
    found = [gpu for one in during for gpu in one.gpus if gpu.uuid == uuid and gpu.error is None]
    return list({gpu.sampled_at or -place: gpu for place, gpu in enumerate(found)}.values())


def _energy_readings(uuid: str, snapshots: Sequence[Snapshot]) -> list[tuple[float, float]]:
    """Return the readings of a GPU's energy counter with their times, oldest first.

    It is read less often than the rest of a sample, and its last value is repeated in between with the sample's
    time. The first sample with a new value has the time at which it was read.
    """
    found = sorted(
        {
            gpu.sampled_at or one.time: gpu.energy_joules
            for one in snapshots
            for gpu in one.gpus
            if gpu.uuid == uuid and gpu.energy_joules is not None
        }.items()
    )
    return found[:1] + [now for before, now in pairwise(found) if now[1] != before[1]]


def _energy(counters: Sequence[list[tuple[float, float]]], window: MeasuredSteps) -> float | None:
    """Joules over the window, from the readings of the counter within it; None unless all GPUs report it.

    A run is interrupted at the window's end, so that often no reading follows, and the first second of the counter
    is of the time before. Therefore the rate between the readings that describe the window alone is taken for all
    of it, if they span half of it.
    """
    if not counters:
        return None
    total = 0.0
    begins, ends = window.started_at, window.started_at + window.seconds
    for counter in counters:
        inside = [(at, joules) for at, joules in counter if begins + LOOK_BACK_SECONDS <= at <= ends]
        if len(inside) < 2:
            return None
        (first, before), (last, after) = inside[0], inside[-1]
        if last - first < window.seconds / 2:
            return None
        total += (after - before) * window.seconds / (last - first)
    return total if total > 0 else None


def _power(gpus: dict[str, list[Gpu]], joules: float | None, window: MeasuredSteps) -> float | None:
    if joules is not None:
        return joules / window.seconds
    means = []
    for samples in gpus.values():
        watts = [gpu.power_watts for gpu in samples if gpu.power_watts is not None]
        if not watts:
            return None
        means.append(fmean(watts))
    return sum(means) if means else None


def _busy(
    gpus: dict[str, list[Gpu]], measured: Sequence[WholeStep], ranks: Sequence[RankSteps]
) -> BusyEstimate | None:
    """Return how busy the GPUs were, by the witness that is believed; the mean where there are several."""
    found = []
    events = _events_pct(measured)
    paced = ranks[0].rank.gpu_host_paced_pct
    for samples in gpus.values():
        util = [gpu.util_pct for gpu in samples if gpu.util_pct is not None]
        sm = [gpu.sm_active_pct for gpu in samples if gpu.sm_active_pct is not None]
        busy = estimate_busy(
            util_pct=fmean(util) if len(util) >= MIN_SAMPLES else None,
            sm_pct=fmean(sm) if len(sm) >= MIN_SAMPLES else None,
            events_pct=events,
            host_paced_pct=paced,
        )
        if busy is None:
            return None
        found.append(busy)
    if not found:
        return None
    return BusyEstimate(fmean(one.pct for one in found), found[0].source, any(one.bound for one in found))


def _events_pct(measured: Sequence[WholeStep]) -> float | None:
    """Return the upper bound of the GPU's busy share by CUDA events; steps without GPU times are not used."""
    timed = [whole for whole in measured if whole.step.gpu_idle_seconds is not None]
    seconds = sum(whole.seconds for whole in timed)
    if not timed or len(timed) < len(measured) / 20 or seconds <= 0:
        return None
    idle = sum(whole.step.gpu_idle_seconds or 0.0 for whole in timed)
    return 100.0 * min(max(1.0 - idle / seconds, 0.0), 1.0)


def _mfu(
    ranks: Sequence[RankSteps], tokens_per_s: float | None, during: Sequence[Snapshot]
) -> tuple[float | None, str | None]:
    """Return the MFU of the window: a rank's MFU of its last seconds, scaled by the window's rate over theirs."""
    note = ranks[0].rank.mfu_note
    if tokens_per_s is None:
        return None, note
    pids = {one.rank.pid for one in ranks}
    for snapshot in reversed(during):
        reported = [rank for rank in snapshot.ranks if rank.pid in pids and rank.mfu_pct and rank.tokens_per_s]
        if len(reported) == len(pids):
            rate = sum(rank.tokens_per_s or 0.0 for rank in reported)
            mean = fmean(rank.mfu_pct or 0.0 for rank in reported)
            value = mean * tokens_per_s / rate
            return (value, reported[0].mfu_note) if math.isfinite(value) else (None, note)
    return None, note
