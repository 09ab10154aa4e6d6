"""Where an alert about an NCCL communicator points to."""

from __future__ import annotations

import pytest

from llmtop.model.snapshot import CommunicatorRank, StuckCommunicator
from llmtop.rules.state.communicator import CommunicatorState
from llmtop.rules.state.gpu import GpuState
from llmtop.rules.state.rank import RankState
from tests.support.snapshots import gpu, rank


def _gpu(index: int, *pids: int, foreign: tuple[int, ...] = ()) -> GpuState:
    state = GpuState(gpu(index), 0.0)
    state.pids += pids
    state.foreign_pids += foreign
    return state


def _rank(pid: int, on: GpuState | None = None) -> RankState:
    state = RankState(rank(pid, gpu_uuid=None if on is None else on.gpu.uuid), 0.0)
    state.gpu = on
    return state


def _state(
    pids: tuple[int, ...], behind: tuple[int, ...], ranks: list[RankState], gpus: list[GpuState]
) -> CommunicatorState:
    late = tuple(CommunicatorRank(rank=place, host="node", pid=pid) for place, pid in enumerate(behind))
    stuck = StuckCommunicator(id="0xabc", size=8, waiting_count=4, behind=late, pids=pids)
    return CommunicatorState(stuck, ranks, gpus, False, 50.0)


FIRST, SECOND = _gpu(0, 11), _gpu(1, 12)


@pytest.mark.parametrize(
    ("pids", "behind", "pid", "uuid"),
    [
        ((11, 12), (12,), 12, SECOND.gpu.uuid),
        ((11, 12), (12, 11), 11, FIRST.gpu.uuid),
        ((11, 12), (99,), 11, FIRST.gpu.uuid),
        ((12, 11), (), 12, SECOND.gpu.uuid),
        ((77,), (), 77, None),
        ((), (12,), None, None),
    ],
)
def test_the_process_that_is_behind_is_named_where_it_runs_here(
    pids: tuple[int, ...], behind: tuple[int, ...], pid: int | None, uuid: str | None
) -> None:
    assert _state(pids, behind, [], [FIRST, SECOND]).alert_target() == (uuid, pid)


def test_the_gpu_is_that_of_the_attached_rank() -> None:
    ranks = [_rank(11, FIRST), _rank(12, _gpu(5))]
    assert _state((11, 12), (12,), ranks, [FIRST, SECOND]).alert_target() == (gpu(5).uuid, 12)


def test_a_pid_that_only_the_driver_knows_has_its_gpu() -> None:
    assert _state((13,), (), [], [FIRST, _gpu(2, foreign=(13,))]).alert_target() == (gpu(2).uuid, 13)


def test_its_ranks_and_gpus_are_concerned() -> None:
    attached = _rank(11, FIRST)
    state = _state((11, 12), (), [attached], [SECOND])
    assert state.concerned_keys() == {SECOND.key, FIRST.key, attached.key}
    assert state.key == ("communicator", "0xabc")
    assert state.is_updated
