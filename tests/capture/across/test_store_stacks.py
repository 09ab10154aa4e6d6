"""Stacks of ranks on another node while the job hangs: six gloo ranks of torchrun on two "nodes" here."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtop.capture import targets
from llmtop.capture.across.store_stacks import OtherNodes, stacks_of_other_nodes
from llmtop.postmortem.answer.stack_groups import RankStack, group_ranks, judge_live
from llmtop.postmortem.evidence import CodeLine
from tests.support.processes import wait_for
from tests.support.two_nodes import TwoNodes

pytestmark = pytest.mark.torch

HANGS = """
import os, time, torch
import torch.distributed as dist
from tests.support.light_optimizer import LightSGD
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = LightSGD(model.parameters(), lr=0.01)

def read_shard():
    open(f"stuck{os.getpid()}", "w").close()
    while True:
        time.sleep(3600)

step = 0
while True:
    step += 1
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 20 and dist.get_rank() == 4:
        read_shard()
    dist.all_reduce(torch.ones(4))
    time.sleep(0.02)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lt-") as directory:
        yield Path(directory)


def _stacks(found: OtherNodes) -> list[RankStack]:
    return [
        RankStack(rank, tuple(CodeLine(*_fields(frame)) for frame in told.stack), error=told.detail, host=host)
        for rank, (told, host) in found.ranks.items()
    ]


def _fields(frame: object) -> tuple[str, str, int]:
    return frame.name, frame.file, frame.line  # type: ignore[attr-defined]


@pytest.mark.slow("six trainings of torch; tests/postmortem/test_stack_groups.py has the groups alone")
def test_the_stacks_of_the_other_node_while_all_main_threads_hang(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TwoNodes(folder, HANGS, torchrun=True) as job:
        job.wait_attached()
        wait_for(lambda: list(folder.glob("stuck*")), 120, "the rank that is stuck")
        monkeypatch.setenv("LLMTOP_DIR", str(job.nodes[0]))
        known = targets.list_attached()
        assert sorted(target.rank for target in known) == [0, 1, 2]

        # Ranks 3 and 5 come to the collective a while later, and one that gets no core answers too late.
        def all_that_hang() -> OtherNodes | None:
            found = stacks_of_other_nodes(known, known[0].pid)
            groups = [] if found.silent else group_ranks(_stacks(found))
            hang = [((4,), False), ((3, 5), True)]
            return found if [(group.ranks, group.is_waiting) for group in groups] == hang else None

        found = wait_for(all_that_hang, what="the stacks of rank 4, which is stuck, and of 3 and 5, which wait")
        assert found is not None
        assert not found.problem
        stacks = {one.rank: one for one in _stacks(found)}
        assert {one.host for one in stacks.values()} <= {"node-b", os.uname().nodename}
        groups = group_ranks(list(stacks.values()))
        assert "read_shard" in {frame.function for frame in groups[0].frames}
        report = judge_live(list(stacks.values()), 6)
        assert [one.rank for one in report.culprits] == [4]

        # A rank that is stopped has a node that answers for the others.
        stuck = int(next(folder.glob("stuck*")).name.removeprefix("stuck"))
        os.kill(stuck, signal.SIGSTOP)

        def both_others() -> OtherNodes | None:
            found = stacks_of_other_nodes(known, known[0].pid)
            return found if all(rank in found.ranks and found.ranks[rank][0].stack for rank in (3, 5)) else None

        found = wait_for(both_others, what="the stacks of ranks 3 and 5")
        assert found is not None
        assert 4 in found.silent or found.ranks[4][0].state == "failed"
        os.kill(stuck, signal.SIGCONT)


@pytest.mark.slow("six trainings of torch; tests/postmortem/test_stack_groups.py has the groups alone")
def test_the_other_node_can_be_asked_while_its_ranks_train(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TwoNodes(folder, HANGS.replace("step == 20", "False"), torchrun=True) as job:
        job.wait_attached()
        monkeypatch.setenv("LLMTOP_DIR", str(job.nodes[1]))
        known = targets.list_attached()

        def all_three() -> OtherNodes | None:
            found = stacks_of_other_nodes(known, known[0].pid)
            have_answered = sorted(rank for rank, (answer, _) in found.ranks.items() if answer.stack)
            return found if have_answered == [0, 1, 2] else None

        for _ in range(2):
            found = wait_for(all_three, what="the stacks of ranks 0 to 2")
            assert found is not None
            assert not found.problem
        assert all(process.poll() is None for process in job.processes)
