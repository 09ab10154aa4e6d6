"""A rank that a signal stopped before the monitor started, among real ranks over gloo."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from collectors.trainings.source import StepsSource
from llmtop.model.snapshot import Rank
from llmtop.rules.engine import Rules
from tests.support import snapshots
from tests.support.gloo_ranks import GlooRanks
from tests.support.processes import wait_for


def _stepping(source: StepsSource) -> bool:
    ranks = source.latest().ranks
    return len(ranks) == 2 and all((rank.step or 0) > 3 for rank in ranks)


@pytest.mark.slow(
    "ranks of gloo; test_a_stopped_process_holds_nobody_up_and_is_shown_as_stopped has peers without torch"
)
def test_a_rank_stopped_before_the_monitor_starts_is_named(runtime_dir: Path, tmp_path: Path) -> None:
    with GlooRanks(tmp_path, [runtime_dir], a_node=2) as job:
        first = StepsSource(runtime_dir)
        first.start()
        try:
            job.wait_for(lambda: _stepping(first), "steps of both ranks")
            attached = {rank.rank: rank.pid for rank in first.latest().ranks}
        finally:
            first.close()
        pid = attached[1]
        os.kill(pid, signal.SIGSTOP)
        second = StepsSource(runtime_dir)
        second.start()
        try:
            ranks = wait_for(lambda: _both(second), seconds=30, what="both ranks, one of them stopped")
            (alert,) = Rules().apply(snapshots.snapshot(time.time(), ranks=ranks)).alerts
        finally:
            second.close()
            os.kill(pid, signal.SIGCONT)
        assert job.processes
    stopped = next(rank for rank in ranks if rank.pid == pid)
    assert (stopped.state, stopped.rank, stopped.local_rank, stopped.world_size) == ("stopped", 1, 1, 2)
    assert len({rank.job for rank in ranks}) == 1
    assert (alert.id, alert.pid) == ("stalled", pid)


def _both(source: StepsSource) -> tuple[Rank, ...]:
    ranks = source.latest().ranks
    return ranks if {rank.state for rank in ranks} == {"running", "stopped"} else ()
