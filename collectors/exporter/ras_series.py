"""Series from NCCL RAS about stuck communicators: ranks that wait, are behind, or do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from collectors.exporter import names
from collectors.exporter.names import ExportedSeries
from collectors.exporter.totals import label
from llmtop.model.snapshot import CommunicatorRank, Rank, Snapshot, StuckCommunicator


class SeriesValue(NamedTuple):
    """One value."""

    series: ExportedSeries
    labels: tuple[str, ...]
    value: float


def ras_values(snapshot: Snapshot) -> Iterator[SeriesValue]:
    """Yield values of each communicator in which ranks are behind or missing; others only wait for one of
    these."""
    for stuck in snapshot.stuck_communicators:
        if not (stuck.behind or stuck.missing):
            continue
        which = _communicator_labels(stuck, snapshot.ranks)
        yield SeriesValue(names.RAS_WAITING, which, stuck.waiting_count)
        for one in stuck.behind:
            yield SeriesValue(
                names.RAS_BEHIND, (*which, *_rank_labels(one)), (stuck.number or 0) - (one.called or 0)
            )
        for one in stuck.missing:
            yield SeriesValue(names.RAS_MISSING, (*which, *_rank_labels(one)), 1)


def _communicator_labels(stuck: StuckCommunicator, ranks: tuple[Rank, ...]) -> tuple[str, ...]:
    """Run, user, communicator, process group and operation; "" is what is not known here."""
    here = [rank for rank in ranks if rank.pid in stuck.pids]
    first = here[0] if here else None
    return (
        label(first.job or "") if first else "",
        "" if first is None or first.uid is None else str(first.uid),
        label(stuck.id),
        _process_group(here),
        label(stuck.operation or ""),
    )


def _process_group(here: list[Rank]) -> str:
    """Return the one process group in which the attached ranks of it wait: torch knows its name, NCCL does not.

    Where they wait in several, the right one is unknown.
    """
    groups = {
        count.group
        for rank in here
        for count in rank.collectives
        if count.completed is not None and count.completed < count.enqueued
    }
    return label(groups.pop()) if len(groups) == 1 else ""


def _rank_labels(one: CommunicatorRank) -> tuple[str, str, str]:
    return str(one.rank), label(one.host), str(one.pid)
