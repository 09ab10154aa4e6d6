"""How busy each training's GPU is: the GPU's counters over the same seconds as the training's figures.

GPU-Util and SM activity are of a whole GPU, so they are a training's only while it alone computes there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from llmtop.hardware.gpu_specs import pcie_bytes_per_s
from llmtop.model.gpu_busy import COPIES_OF_LINK, WINDOW_SECONDS, BusyEstimate, estimate_busy
from llmtop.model.snapshot import Gpu, Process, Rank, Snapshot
from llmtop.naming.phase_names import role_of
from llmtop.recording.steady import MonotonicTime

MOST_SECONDS: Final = 600.0
POLLED_OF_SECONDS, SAMPLED_OF_SECONDS = 1.0, 2.5
"""A GPU-Util reading covers at most this many seconds before it; so do the driver's samples."""
LEAST_POLLED, LEAST_SECONDS = 3, 1.5
"""Readings of GPU-Util that make a mean, and over what time; the driver's own samples are a mean already."""
OWN_SAMPLES_ERR: Final = 20.0
"""Points between the mean of the driver's samples and that of its readings from which the samples are something
else (no driver is known that does it)."""
COPIES_BYTES_PER_S = 4e9
"""The same as `COPIES_OF_LINK` where the PCIe link is not known: from here on a GPU may spend a tenth of its time
copying, which GPU-Util does not see."""
BLOCKING_BYTES_PER_S, BLOCKING_PCT = 1.5e9, 10.0
"""The same where the host stands in phases of copying for so much of a step: memory that is not pinned comes at a
sixth of what the link carries."""
BUSY_UTIL: Final = 90.0
UNLISTED_BYTES: Final = 1 << 30
"""Memory in use that no listed process has, from which there is one that the driver does not list here."""
UNLISTED_SECONDS: Final = 6.0
"""Grace time: per-process memory is reported some seconds after the total in use."""


_FIELDS: Final = ("gpu_busy_pct", "gpu_busy_source", "gpu_busy_bound", "gpu_busy_seconds")


class _Sample(NamedTuple):
    """A GPU's counters at one time."""

    time: float
    util_pct: float | None
    util_sampled_pct: float | None
    sm_pct: float | None
    rx_bytes_per_s: float | None
    link_bytes_per_s: float | None


class _Means(NamedTuple):
    """Means of the values."""

    seconds: float
    util_pct: float | None
    sm_pct: float | None
    rx_bytes_per_s: float | None
    link_bytes_per_s: float | None


class GpuBusy:
    """A stage: the ranks say how busy their GPUs are (`Rank.gpu_busy_pct`). For one stream of snapshots."""

    def __init__(self) -> None:
        self._clock = MonotonicTime()
        self._gpus: dict[str, deque[_Sample]] = {}
        self._sampled: dict[str, float | None] = {}
        self._last: dict[tuple[str, int, float], dict[str, Any]] = {}
        """Fields that a rank was given last, by name; not the rank, which has all new steps."""
        self._unlisted_since: dict[str, float] = {}
        self._now = 0.0
        self._keep = WINDOW_SECONDS

    def __repr__(self) -> str:
        return "how busy the GPUs are"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the idle share of each rank."""
        now = self._clock.time_of(snapshot)
        if (
            not 0 <= now - self._now <= max(4 * WINDOW_SECONDS, self._keep)
        ):  # another stretch of a recording, or the first snapshot
            self._gpus.clear()
        self._now = now
        self._keep = max(
            [WINDOW_SECONDS, *(min(one.window_seconds or 0.0, MOST_SECONDS) for one in snapshot.ranks)]
        )
        self._add_samples(snapshot.gpus, now)
        if not snapshot.ranks:
            self._last.clear()
            return snapshot
        alone = _exclusive_gpus(snapshot, self._gpus_with_unlisted_users(snapshot, now))
        ranks = tuple(self._with_busy_share(rank, alone, now) for rank in snapshot.ranks)
        self._last = {_key(rank): {name: getattr(rank, name) for name in _FIELDS} for rank in ranks}
        return replace(snapshot, ranks=ranks)

    def _add_samples(self, gpus: Iterable[Gpu], now: float) -> None:
        before, self._gpus = self._gpus, {}
        sampled, self._sampled = self._sampled, {}
        for gpu in gpus:
            samples = self._gpus[gpu.uuid] = before.get(gpu.uuid) or deque(maxlen=1024)
            self._sampled[gpu.uuid] = gpu.sampled_at
            if gpu.error is None and (gpu.sampled_at is None or gpu.sampled_at != sampled.get(gpu.uuid)):
                # DCGM's is of up to half a minute ago, not of these seconds.
                sm = None if gpu.activity_source == "dcgm" else gpu.sm_active_pct
                own = (gpu.util_pct, gpu.util_sampled_pct, sm, gpu.pcie_rx_bytes_per_s)
                samples.append(_Sample(now, *own, pcie_bytes_per_s(gpu.pcie_gen, gpu.pcie_width)))
            while samples and samples[0].time < now - self._keep:
                samples.popleft()

    def _gpus_with_unlisted_users(self, snapshot: Snapshot, now: float) -> set[str]:
        """Return the GPUs used by processes that the driver does not list here, such as in another container."""
        unseen = _gpus_with_unlisted_memory(snapshot)
        self._unlisted_since = {uuid: self._unlisted_since.get(uuid, now) for uuid in unseen}
        return {uuid for uuid, since in self._unlisted_since.items() if now - since >= UNLISTED_SECONDS}

    def _with_busy_share(self, rank: Rank, alone: dict[tuple[str, int], str], now: float) -> Rank:
        if rank.step is None:
            return _with_busy(rank, None, None)
        if rank.state == "gone":
            return replace(rank, **self._last.get(_key(rank), {}))
        uuid = alone.get((rank.host, rank.pid))
        since = _figures_since(rank, now)
        means = None if uuid is None or since is None else _means(self._gpus.get(uuid, ()), since)
        events = events_pct(rank)
        if means is None:
            return _with_busy(
                rank, estimate_busy(util_pct=None, sm_pct=None, events_pct=events), rank.window_seconds
            )
        if _may_copy(means, rank):
            return _with_busy(rank, None, None)
        busy = estimate_busy(
            util_pct=means.util_pct,
            sm_pct=means.sm_pct,
            events_pct=events,
            host_paced_pct=rank.gpu_host_paced_pct,
        )
        return _with_busy(rank, busy, means.seconds)


def _figures_since(rank: Rank, now: float) -> float | None:
    """Return the time since when the rank's own figures exist, by the clock of `now`; None before it has any.

    What the GPU did before the first of those steps, at loading say, is not theirs.
    """
    if rank.kind == "request":
        return now - WINDOW_SECONDS
    return None if rank.window_seconds is None else now - min(rank.window_seconds, MOST_SECONDS)


def events_pct(rank: Rank) -> float | None:
    """Return the upper bound of a rank's GPU busy share by CUDA events; None where unknown.

    `Rank.gpu_idle_pct` is of the time between the steps' own boundaries; what lies outside of all phases may all
    have been busy.
    """
    idle, mean = rank.gpu_idle_pct, rank.step_seconds_mean or rank.step_seconds_p50
    if idle is None or not mean:
        return None
    inside = 1.0 - min(max(rank.outside_seconds or 0.0, 0.0) / mean, 1.0)
    return 100.0 - min(max(idle, 0.0), 100.0) * inside


def _gpus_with_unlisted_memory(snapshot: Snapshot) -> set[str]:
    """Return the GPUs whose memory is used by more than the processes that are listed."""
    held: dict[str, int | None] = {}
    for process in snapshot.processes:
        uuid, mine = process.gpu_uuid, process.gpu_mem_bytes
        if uuid is not None:
            before = held.get(uuid, 0)
            held[uuid] = None if before is None or mine is None else before + mine
    used = {gpu.uuid: gpu.mem_used_bytes for gpu in snapshot.gpus if not gpu.memory_is_system}
    return {
        uuid
        for uuid, mine in held.items()
        if mine is not None and (in_all := used.get(uuid)) is not None and in_all - mine >= UNLISTED_BYTES
    }


def _exclusive_gpus(snapshot: Snapshot, with_unlisted: set[str]) -> dict[tuple[str, int], str]:
    """Return the GPUs on which one training alone computes, by its host and pid."""
    listed: dict[str, list[Process]] = {}
    for process in snapshot.processes:
        if process.gpu_uuid is not None and process.gpu_computes:
            listed.setdefault(process.gpu_uuid, []).append(process)
    wanted: dict[str, list[Rank]] = {}
    for rank in snapshot.ranks:
        if rank.state != "gone" and rank.gpu_uuid is not None:
            wanted.setdefault(rank.gpu_uuid, []).append(rank)
    return {
        (rank.host, rank.pid): uuid
        for uuid, (rank, *others) in wanted.items()
        if not others and uuid not in with_unlisted and _is_exclusive(rank, listed.get(uuid, []))
    }


def _is_exclusive(rank: Rank, there: list[Process]) -> bool:
    if len(there) != 1:
        return False  # none: the driver does not say, or not yet
    (one,) = there
    known = one.started_at is not None or one.command is not None or one.state is not None
    # Where it is not known here, its pid is of another namespace: it can only be the rank.
    return one.pid == rank.pid or not known


def _means(samples: Iterable[_Sample], since: float) -> _Means | None:
    taken = [sample for sample in samples if sample.time >= since + POLLED_OF_SECONDS]
    if not taken:
        return None
    span = taken[-1].time - taken[0].time
    polled = [one.util_pct for one in taken if one.util_pct is not None]
    own = [
        one.util_sampled_pct
        for one in taken
        if one.util_sampled_pct is not None and one.time >= since + SAMPLED_OF_SECONDS
    ]
    by_polling = _mean(polled) if len(polled) >= LEAST_POLLED and span >= LEAST_SECONDS else None
    by_driver = _mean(own)
    if by_driver is not None and by_polling is not None and abs(by_driver - by_polling) > OWN_SAMPLES_ERR:
        by_driver = None
    return _Means(
        seconds=max(span, SAMPLED_OF_SECONDS) if by_driver is not None else span,
        util_pct=by_polling if by_driver is None else by_driver,
        sm_pct=_mean([one.sm_pct for one in taken if one.sm_pct is not None]),
        rx_bytes_per_s=_mean([one.rx_bytes_per_s for one in taken if one.rx_bytes_per_s is not None]),
        link_bytes_per_s=taken[-1].link_bytes_per_s,
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _may_copy(means: _Means, rank: Rank) -> bool:
    """Return True if what the GPU does may be copies, of which neither witness knows. Between ranks kernels
    copy."""
    rx, link = means.rx_bytes_per_s, means.link_bytes_per_s
    if rx is None or (rank.world_size or 1) > 1 or (means.util_pct or 0.0) >= BUSY_UTIL:
        return False
    if rx >= (COPIES_BYTES_PER_S if link is None else COPIES_OF_LINK * link):
        return True
    mean = rank.step_seconds_mean or rank.step_seconds_p50
    copying = sum(phase.host_seconds for phase in rank.phases if role_of(phase.name) == "h2d")
    return rx >= BLOCKING_BYTES_PER_S and bool(mean) and 100.0 * copying >= BLOCKING_PCT * (mean or 0.0)


def _key(rank: Rank) -> tuple[str, int, float]:
    return rank.host, rank.pid, rank.attached_at or 0.0


def _with_busy(rank: Rank, busy: BusyEstimate | None, seconds: float | None) -> Rank:
    return replace(
        rank,
        gpu_busy_pct=None if busy is None else busy.pct,
        gpu_busy_source=None if busy is None else busy.source,
        gpu_busy_bound=busy is not None and busy.bound,
        gpu_busy_seconds=None if busy is None else seconds,
    )
