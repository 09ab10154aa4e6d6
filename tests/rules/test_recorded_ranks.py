"""What must be said of trainings with a rank on each GPU, as tests/gpu/check_eight.py recorded them on two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmtop.model.snapshot import Alert, Snapshot
from llmtop.recording.reader_writer import Reader
from llmtop.rules.engine import Rules
from tests.support.data import DATA

WITHIN_SECONDS = 10.0


def judged(name: str) -> Iterator[Snapshot]:
    """The snapshots of a recording, with the alerts of today's rules."""
    rules = Rules()
    reader = Reader(DATA / "many_gpus" / f"{name}.llmtop")
    try:
        for _, snapshot in reader.snapshots():
            yield rules.apply(snapshot)
    finally:
        reader.close()


def first(name: str, what: str) -> tuple[Snapshot, Alert]:
    """When an alert came first."""
    return next((one, alert) for one in judged(name) for alert in one.alerts if alert.id == what)


def test_an_attached_rank_that_hangs_is_named_with_group_and_collective_within_ten_seconds() -> None:
    snapshot, alert = first("hang_attached", "hung_collective")
    last = max(rank.last_step_at or 0.0 for rank in snapshot.ranks)
    assert snapshot.time - last <= WITHIN_SECONDS
    assert alert.pid == next(rank.pid for rank in snapshot.ranks if rank.rank == 1)
    told = {
        name: alert.evidence[name] for name in ("rank", "process_group", "operation", "collective", "last_called")
    }
    assert told == {
        "rank": 1,
        "process_group": "0 default_pg",
        "operation": "nccl:all_reduce",
        "collective": 40,
        "last_called": 39,
    }


def test_one_that_is_not_attached_is_named_by_nccl() -> None:
    _, alert = first("hang_unattached", "hung_collective")
    told = {name: alert.evidence[name] for name in ("rank", "operation", "collective", "last_called")}
    assert told == {"rank": 1, "operation": "AllReduce", "collective": 40, "last_called": 39}


@pytest.mark.parametrize("name", ["capture", "capture_nsys"])
def test_the_rank_that_computes_longer_is_accused_before_and_after_its_capture(name: str) -> None:
    accused = {alert.evidence["rank"] for one in judged(name) for alert in one.alerts if alert.id == "straggler"}
    assert accused == {1}


@pytest.mark.parametrize(("name", "said"), [("monitor", {"power_capped"}), ("export", set())])
def test_nobody_is_accused_of_anything_in_a_known_load_and_among_equal_ranks(name: str, said: set[str]) -> None:
    assert {alert.id for one in judged(name) for alert in one.alerts} == said
