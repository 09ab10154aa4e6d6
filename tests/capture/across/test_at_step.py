"""Captures that begin at the same step in ranks of several nodes: six gloo ranks on two "nodes" of one machine."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtop.capture import targets
from llmtop.protocol import job_store
from llmtop.protocol.job_store import Keys, NodeStatus, StoreRequest
from llmtop.protocol.tcp_store import TcpStore
from tests.support.processes import wait_for
from tests.support.two_nodes import APART, TOGETHER, TOO_LATE, Capturing, TwoNodes

pytestmark = pytest.mark.torch


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lt-") as directory:
        yield Path(directory)


@pytest.mark.slow("test_one_process_begins_at_the_step_that_is_named finds the same fault")
def test_all_that_are_asked_begin_at_that_step_and_no_other_does(folder: Path) -> None:
    with TwoNodes(folder, TOGETHER, torchrun=True) as job:
        job.wait_attached()
        capture, said = job.captured([1, 4], "--at-step", "+20", "--ranks", "1,4")
        info = capture.facts["capture"]
        assert info["first_step"] == info["at_step"]
        assert f"begins at step {info['at_step']}" in said
        traces = sorted(path.name for path in Path(capture.facts["folder"], "traces").iterdir())
        assert traces == ["rank1.pt.trace.json", "rank4.pt.trace.json"]
        assert not (Path(capture.facts["folder"]) / job_store.TOKEN).exists()

        # One node by its name, asked from the other one.
        job.captured([3, 4, 5], "--ranks", "node:node-b")

        # What cannot be is told, and nobody waits for it.
        assert "has passed" in job.capture("--at-step", "3", "--ranks", "0,5").ends(2)
        assert "rank 6 does not exist" in job.capture("--at-step", "+20", "--ranks", "0,6").ends(2)
        assert "no node named node-c" in job.capture("--at-step", "+20", "--ranks", "node:node-c").ends(3)


@pytest.mark.slow("test_a_rank_that_waits_as_most_do finds the same fault")
def test_by_default_it_is_of_the_rank_that_the_others_wait_for_and_of_some_beside_it(folder: Path) -> None:
    with TwoNodes(folder, TOGETHER, "4", torchrun=True) as job:
        job.wait_attached()

        def of_rank_4() -> tuple[Capturing, str] | None:  # that it is late in nearly all steps takes some to see
            capture = job.capture("--at-step", "+20", node=1)
            said = capture.ends(None)
            is_too_late = any(word in said + json.dumps(capture.facts) for word in TOO_LATE)
            return (capture, said) if "names rank 4" in said and not is_too_late else None

        found = wait_for(of_rank_4, what="a capture of rank 4, which is late, and of some beside it")
        assert found is not None
        capture, said = found
        assert "what this node sees names rank 4: capturing ranks" in said
        ranks = capture.facts["capture"]["ranks"]
        assert {3, 4, 5} < set(ranks)
        assert len(ranks) == 4, "and one to compare with"


class _Told:
    """What the nodes have written of the requests of a job."""

    def __init__(self, job: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LLMTOP_DIR", str(job.nodes[0]))
        hello = targets.list_attached()[0].hello
        assert hello is not None
        assert hello.store is not None
        self._where = hello.store

    def of(self, number: int) -> dict[int, str]:
        """The state of each rank of the n-th request."""
        keys = Keys(self._where.prefix)
        with TcpStore.open(self._where.address) as store:
            told = [job_store.decode(NodeStatus, store.get(keys.status(number, node)) or b"") for node in (1, 2)]
        return {one.rank: one.state for node in told if node is not None for one in node.ranks}


@pytest.mark.slow("test_one_process_begins_at_the_step_that_is_named finds the same fault")
def test_a_second_request_is_told_and_one_that_was_killed_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TwoNodes(folder, TOGETHER, torchrun=True) as job:
        job.wait_attached()
        first = job.capture("--at-step", "+100000", "--ranks", "1,4")
        states = _Told(job, monkeypatch)
        wait_for(lambda: states.of(1) == {1: "armed", 4: "armed"}, 60, "two ranks to wait for their step")
        second, _ = job.captured([2], "--at-step", "+20", "--ranks", "2,4", node=1)
        told = next(note for note in second.facts["capture"]["notes"] if note.startswith("rank 4 on "))
        assert "a capture with torch.profiler is running in this process" in told
        first.kill()
        first.wait(100)
        wait_for(lambda: states.of(1) == {}, 60, "both nodes to have given it up")
        job.captured([1, 4], "--at-step", "+20", "--ranks", "1,4", node=1)

        third = job.capture("--at-step", "+100000", "--ranks", "0,5")
        number = len(list(folder.glob("capture*.err")))  # each capture has made one request
        wait_for(lambda: states.of(number) == {0: "armed", 5: "armed"}, 60, "two ranks to wait for their step")
        third.send_signal(signal.SIGINT)
        third.ends(130)
        job.captured([0, 5], "--at-step", "+20", "--ranks", "0,5")
        assert all(one.poll() is None for one in job.processes)


@pytest.mark.slow("test_one_process_begins_at_the_step_that_is_named finds the same fault")
def test_a_dead_rank_is_told_and_not_waited_for(folder: Path) -> None:
    with TwoNodes(folder, APART) as job:
        job.wait_attached()
        job.kill(4)
        capture, _ = job.captured([1, 5], "--at-step", "+20", "--ranks", "1,4,5")
        info, kept = capture.facts["capture"], sorted((folder / "llmtop-captures").iterdir())
        assert info["first_step"] == info["at_step"]
        assert any("rank 4 has not answered" in note for note in info["notes"])
        job.kill(3)  # which hears for its node
        capture = job.capture("--at-step", "+20", "--ranks", "5")
        assert "no rank was captured: rank 5 has not answered" in capture.ends(3)
        assert sorted((folder / "llmtop-captures").iterdir()) == kept


@pytest.mark.slow("two nodes, watched and not; tests/protocol/test_tcp_store.py has torch's server")
@pytest.mark.parametrize("end", ["rank 0 is killed", "all end"])
def test_the_log_is_byte_for_byte_what_it_is_without_llmtop(folder: Path, end: str) -> None:
    logs = []
    for watched in (False, True):
        place = folder / str(int(watched))
        place.mkdir()
        # 600 take 18 s: time for six ranks to attach and for both nodes to listen.
        steps = "100000" if end == "rank 0 is killed" else "600"
        with TwoNodes(place, APART, steps, watched=watched) as job:
            if watched:
                job.wait_attached()
                wait_for(lambda: _heard(job), 60, "both nodes to hear")
            else:
                wait_for(lambda: all(b"begins" in job.log(rank) for rank in range(6)), 60, "six ranks")
            if end == "rank 0 is killed":
                job.kill(0)
                # Time enough for whoever listens to look again, and to find that the store has gone.
                time.sleep(4)
                assert all(job.processes[rank].poll() is None for rank in range(1, 6))
            else:
                wait_for(lambda: all(one.poll() == 0 for one in job.processes), 90, "all to end")
            logs.append([job.log(rank) for rank in range(6)])
    assert logs[0] == logs[1]
    assert b"begins" in logs[1][5]


def _heard(job: TwoNodes) -> bool:
    with TcpStore.open(f"127.0.0.1:{job.port}") as store:
        return store.add(Keys("/llmtop//0").nodes, 0) == 2


@pytest.mark.slow("test_one_process_begins_at_the_step_that_is_named finds the same fault")
def test_a_request_that_names_no_folder_of_the_users_writes_beside_the_training_and_is_cleared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TwoNodes(folder, APART) as job:
        job.wait_attached()
        wait_for(lambda: _heard(job), 60, "both nodes to hear")
        monkeypatch.setenv("LLMTOP_DIR", str(job.nodes[0]))
        hello = targets.list_attached()[0].hello
        assert hello is not None
        assert hello.store is not None
        keys = Keys(hello.store.prefix)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        with TcpStore.open(hello.store.address) as store:
            asked = {"id": "x", "at_step": 10**6, "steps": 2, "engine": "torch.profiler", "ranks": [2]}
            told = _asked(store, keys, 1, StoreRequest(**asked, folder="/etc/..", file="rank{rank}.json"))
            assert told.ranks[0].detail == "the request names no file"
            told = _asked(store, keys, 2, StoreRequest(**asked, folder=str(elsewhere), file="../rank{rank}.json"))
            assert told.ranks[0].state == "failed"
            told = _asked(
                store,
                keys,
                3,
                StoreRequest(**asked, folder=str(elsewhere), file="t/rank{rank}.json", token="guessed"),
            )
            assert (told.shared, told.ranks[0].state) == (False, "armed")
            assert (folder / "llmtop-captures" / "elsewhere" / "t").is_dir()
            # Nobody gives a sign of life for any of them.
            told_keys = [keys.status(3, node) for node in (1, 2)]
            wait_for(lambda: not any(map(store.check, told_keys)), 60, "the request to be given up")
        assert not (folder / "llmtop-captures").exists()
        assert list(elsewhere.iterdir()) == []
        assert all(one.poll() is None for one in job.processes)


def _asked(store: TcpStore, keys: Keys, number: int, ask: StoreRequest) -> NodeStatus:
    assert store.put(keys.ask(number), job_store.encode(ask))

    def told() -> NodeStatus | None:
        found = job_store.decode(NodeStatus, store.get(keys.status(number, 1)) or b"")
        found = found or job_store.decode(NodeStatus, store.get(keys.status(number, 2)) or b"")
        return found if found is not None and found.ranks and found.ranks[0].state != "asked" else None

    return wait_for(told, 60, "the node's answer")
