"""The stage that keeps the exported state: the last snapshot, and totals over all before it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from collectors.dcgm.page import UntrustedListener
from collectors.exporter import gpu_series, health_series, names, ras_series
from collectors.exporter.names import ExportedSeries
from collectors.exporter.totals import RankTotals, label
from llmtop.model.links import Link
from llmtop.model.snapshot import Alert, Rank, Snapshot
from llmtop.version import __version__

STALE_SECONDS = 10.0
STALE_INTERVALS = 3.0
"""A snapshot older than max(OLD_SECONDS, OLD_INTERVALS times the interval) is not exported: stale values must not
pass for current ones."""
_RankLabels = tuple[str, str]
_Others = Callable[[], Collection[tuple[str, str]] | None]


class ExportStage:
    """A stage for the hub, and a collector for Prometheus' client: any thread may call `collect`."""

    def __init__(
        self,
        *,
        interval: float,
        others: _Others = lambda: (),
        ignored: Callable[[], UntrustedListener | None] = lambda: None,
    ) -> None:
        """Begin to count.

        Args:
            interval: seconds between snapshots.
            others: which series of GPUs a dcgm-exporter gives, as pairs of UUID and name; None while that is not
                known.
            ignored: who listens on the dcgm-exporter's port and is not believed.
        """
        self._ignored = ignored
        self._old = max(STALE_SECONDS, STALE_INTERVALS * interval)
        self._others = others
        self._started = time.monotonic()
        self._elapsed = 0.0
        """Seconds from the start of this stage to the snapshot."""
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._totals: dict[tuple[int, float | None], RankTotals] = {}
        self._xids = gpu_series.LastXids()
        self.number = 0
        """Number of snapshots so far: the page stays the same until it grows, or snapshots stop."""

    def __repr__(self) -> str:
        return "the exporter"

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Take in what is new, and hand the snapshot on as it is."""
        with self._lock:
            self._elapsed = (snapshot.monotonic or time.monotonic()) - self._started
            since = snapshot.time - self._elapsed  # when this stage began, by the wall clock as it is now
            known = self._totals
            self._totals = {}
            for rank in _one_per_process(snapshot.ranks):
                mine = known.get(_key(rank)) or RankTotals(since)
                mine.add(rank)
                self._totals[_key(rank)] = mine
            self._xids.update(snapshot.gpus)
            self._snapshot = snapshot
            self.number += 1
        return snapshot

    @property
    def is_stale(self) -> bool:
        """Return True if the snapshots have stopped coming."""
        snapshot = self._snapshot
        return snapshot is not None and time.monotonic() - (snapshot.monotonic or 0.0) > self._old

    def collect(self) -> Iterator[Metric]:
        """Return all exported values; of an old snapshot only its age."""
        with self._lock:
            found = list(self._collect())
        yield from found

    def _collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        if snapshot is None:
            return
        yield _family(names.SNAPSHOT, [((), snapshot.time)])
        yield _family(names.SNAPSHOT_LIMIT, [((), self._old)])
        host = snapshot.host
        yield _family(names.NODE_INFO, [((host.name, __version__, host.driver_version or ""), 1)])
        if self.is_stale:
            return
        yield _family(names.SNAPSHOT_SECONDS, [((), max(0.0, self._elapsed))])
        yield from _link_families(host.links)
        ignored = self._ignored()
        if ignored is not None:
            yield _family(names.DCGM_IGNORED, [((str(uid),), 1) for uid in ignored.uids] or [(("",), 1)])
        others = self._others()
        if others is not None:
            yield from gpu_series.families(snapshot.gpus, host.name, self._xids, others)
        ranks = [rank for rank in _one_per_process(snapshot.ranks) if rank.state != "gone"]
        yield from self._rank_families(ranks, {gpu.uuid: gpu.number for gpu in snapshot.gpus})
        yield from _alerts(snapshot)
        found = list(ras_series.ras_values(snapshot))
        for series in (names.RAS_WAITING, names.RAS_BEHIND, names.RAS_MISSING):
            yield from _family_with_values(
                series, ((one.labels, one.value) for one in found if one.series is series)
            )

    def _rank_families(self, ranks: list[Rank], gpus: dict[str, str]) -> Iterator[Metric]:
        pairs = [(_rank_labels(rank), self._totals[_key(rank)]) for rank in ranks]
        for series, field in _TOTALS:
            yield from _family_with_values(series, ((who, getattr(of, field)) for who, of in pairs))
        yield from _family_with_values(names.STEPS_LOST, ((_rank_labels(rank), rank.lost) for rank in ranks))
        for series, field in _BY_PHASE:
            yield from _family_with_values(
                series,
                (((*who, phase), seconds) for who, of in pairs for phase, seconds in getattr(of, field).items()),
            )
        yield from _family_with_values(
            names.RECENT_STEP_SECONDS,
            (
                ((*_rank_labels(rank), percentile), getattr(rank, field))
                for rank in ranks
                for percentile, field in _PERCENTILES
            ),
        )
        yield from _family_with_values(
            names.LAST_STEP, ((_rank_labels(rank), rank.last_step_at) for rank in ranks)
        )
        yield from _family_with_values(
            names.LAST_WORK, ((_rank_labels(rank), rank.last_work_at) for rank in ranks)
        )
        yield from _family_with_values(
            names.RANK_STATE, (((*_rank_labels(rank), rank.state), 1) for rank in ranks)
        )
        for series, field in _COLLECTIVES:
            yield from _family_with_values(
                series,
                (
                    ((*_rank_labels(rank), label(count.group)), getattr(count, field))
                    for rank in ranks
                    for count in rank.collectives
                ),
            )
        yield from _family_with_values(names.WORLD_SIZE, ((_rank_labels(rank), rank.world_size) for rank in ranks))
        found = list(health_series.health_values([(_rank_labels(rank), rank) for rank in ranks]))
        for series in health_series.ALL:
            yield from _family_with_values(
                series, ((one.labels, one.value) for one in found if one.series is series)
            )
        yield from _family_with_values(names.RANK_INFO, ((_rank_info(rank, gpus), 1) for rank in ranks))


_TOTALS = (
    (names.STEPS, "steps"),
    (names.STEP_SECONDS, "step_seconds"),
    (names.OUTSIDE_SECONDS, "outside_seconds"),
    (names.GPU_TIMED_STEPS, "gpu_timed_steps"),
    (names.COMM_WAIT_SECONDS, "comm_wait_seconds"),
    (names.COMM_WAIT_GPU_SECONDS, "comm_wait_gpu_seconds"),
    (names.TOKENS, "tokens"),
)
_LINK_FIELDS = (
    (names.LINK_RECEIVED, "received_bytes"),
    (names.LINK_SENT, "sent_bytes"),
    (names.LINK_RATE, "rate_bytes_per_s"),
)
_BY_PHASE = ((names.PHASE_HOST_SECONDS, "host_phases"), (names.PHASE_GPU_SECONDS, "gpu_phases"))
_COLLECTIVES = ((names.COLLECTIVE_ENQUEUED, "enqueued"), (names.COLLECTIVE_COMPLETED, "completed"))
_PERCENTILES = (("50", "step_seconds_p50"), ("95", "step_seconds_p95"), ("99", "step_seconds_p99"))


def _key(rank: Rank) -> tuple[int, float | None]:
    return rank.pid, rank.attached_at


def _rank_labels(rank: Rank) -> _RankLabels:
    return "" if rank.rank is None else str(rank.rank), str(rank.pid)


def _one_per_process(ranks: Iterable[Rank]) -> list[Rank]:
    """Return one of each process: a series that stands twice in an answer makes it void for those who fetch it."""
    found: dict[int, Rank] = {}
    for rank in ranks:
        known = found.get(rank.pid)
        if known is None or (known.state == "gone" and rank.state != "gone"):
            found[rank.pid] = rank
    return list(found.values())


def _rank_info(rank: Rank, gpus: dict[str, str]) -> tuple[str, ...]:
    def text(value: object) -> str:
        return "" if value is None else label(str(value))

    return (
        *(text(rank.job), text(rank.rank), text(rank.local_rank), text(rank.world_size)),
        *(gpus.get(rank.gpu_uuid or "", ""), text(rank.gpu_uuid), text(rank.pid), text(rank.uid), rank.kind),
    )


def clock_family() -> Metric:
    """Return the node's clock as it is now."""
    return _family(names.CLOCK, [((), time.time())])


def _link_families(links: Iterable[Link]) -> Iterator[Metric]:
    ports = [((label(link.device), str(link.port)), link) for link in links]
    for series, field in _LINK_FIELDS:
        yield from _family_with_values(series, ((who, getattr(link, field)) for who, link in ports))
    yield from _family_with_values(
        names.LINK_ERRORS,
        (((*who, label(error)), count) for who, link in ports for error, count in link.errors.items()),
    )
    yield from _family_with_values(
        names.LINK_STATE,
        (((*who, label(link.layer or ""), label(link.state)), 1) for who, link in ports if link.state is not None),
    )


def _alerts(snapshot: Snapshot) -> Iterator[Metric]:
    numbers = {gpu.uuid: gpu.number for gpu in snapshot.gpus}
    ranks = {rank.pid: rank for rank in snapshot.ranks}

    def labels(alert: Alert) -> tuple[str, ...]:
        rank = ranks.get(alert.pid) if alert.pid is not None else None
        number = alert.evidence.get("rank") if rank is None else rank.rank
        return (
            *(alert.id, alert.severity, numbers.get(alert.gpu or "", ""), label(alert.gpu or "")),
            *(str(number) if isinstance(number, int) else "", "" if alert.pid is None else str(alert.pid)),
        )

    yield from _family_with_values(names.ALERT, ((one, 1) for one in dict.fromkeys(map(labels, snapshot.alerts))))


def _family_with_values(
    series: ExportedSeries, values: Iterable[tuple[tuple[str, ...], float | None]]
) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    """Yield the family, if there is anything in it: what is absent is left out."""
    known = {labels: value for labels, value in values if value is not None}
    if known:
        yield _family(series, known.items())


def _family(
    series: ExportedSeries, values: Iterable[tuple[tuple[str, ...], float]]
) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    family = kind(series.name, series.help, labels=series.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family
