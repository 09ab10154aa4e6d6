"""Series about what a training logs, its last checkpoint, and its ranks' roles: a fixed number of each rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from collectors.exporter import names
from collectors.exporter.names import ExportedSeries
from collectors.exporter.ras_series import SeriesValue
from collectors.exporter.totals import label
from llmtop.instrument.identity.roles import MOST_ROLES
from llmtop.model import jobs
from llmtop.model.health import Checkpoint
from llmtop.model.snapshot import Rank
from llmtop.naming.metric_names import metric_kind

_LOGGED = {"loss": names.LOSS, "grad_norm": names.GRAD_NORM, "loss_scale": names.LOSS_SCALE}
ALL = (
    *_LOGGED.values(),
    names.CHECKPOINT_AT,
    names.CHECKPOINT_RISK,
    names.CHECKPOINT_SECONDS,
    names.CHECKPOINT_BLOCKED,
    names.CHECKPOINT_INTERVAL,
    names.CHECKPOINT_BYTES,
    names.CHECKPOINT_FREE,
    names.RANK_ROLE,
)


def health_values(ranks: Sequence[tuple[tuple[str, str], Rank]]) -> Iterator[SeriesValue]:
    """Return the values of all ranks.

    Args:
        ranks: each with the values of its labels `rank` and `pid`.
    """
    together = [rank for _, rank in ranks]
    for labels, rank in ranks:
        logged: set[ExportedSeries] = set()
        for name, value in rank.metrics.items():
            series = _LOGGED.get(metric_kind(name) or "")
            if series is not None and series not in logged:  # one of each: names are the script's own
                logged.add(series)
                yield SeriesValue(series, labels, math.nan if value is None else value)
        saved = jobs.latest_checkpoint(rank, together)
        if saved is not None:
            yield from _checkpoint_values(labels, rank, saved)
        for role, at in list(rank.roles.items())[:MOST_ROLES]:
            yield SeriesValue(names.RANK_ROLE, (*labels, label(role), str(at)), 1)


def _checkpoint_values(labels: tuple[str, str], rank: Rank, saved: Checkpoint) -> Iterator[SeriesValue]:
    for series, value in (
        (names.CHECKPOINT_AT, saved.at),
        (names.CHECKPOINT_RISK, jobs.steps_at_risk(rank, saved)),
        (names.CHECKPOINT_SECONDS, saved.seconds),
        (names.CHECKPOINT_BLOCKED, saved.blocked_seconds),
        (names.CHECKPOINT_INTERVAL, saved.interval_seconds),
        (names.CHECKPOINT_BYTES, saved.size_bytes),
        (names.CHECKPOINT_FREE, saved.disk_free_bytes),
    ):
        if value is not None:
            yield SeriesValue(series, labels, value)
