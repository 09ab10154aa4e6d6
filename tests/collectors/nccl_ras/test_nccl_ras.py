"""NCCL's RAS, by a stand-in that speaks as it does: asked only where nothing goes on, and believed with care."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors.nccl_ras import stage as ras_stage
from collectors.nccl_ras.client import RasAnswer, ask
from collectors.nccl_ras.stage import NcclRas, suspect_processes
from collectors.nccl_ras.stuck import stuck_communicators
from llmtop.errors import NotPossibleHere
from llmtop.model.snapshot import Gpu, Host, Process, Rank, Snapshot
from llmtop.rules.engine import Rules
from tests.support.other_user import listening_as
from tests.support.ports import free_port
from tests.support.processes import wait_for
from tests.support.ras_server import RasServer, communicator, missing, rank

NOW = 10_000.0
OTHER = 4141


@pytest.fixture
def server() -> Iterator[RasServer]:
    server = RasServer()
    yield server
    server.close()


def training(pid: int, number: int = 0, **fields: object) -> Rank:
    told = {
        "rank": number,
        "world_size": 4,
        "step": 39,
        "step_seconds_p50": 0.1,
        "last_step_at": NOW - 8,
        **fields,
    }
    return Rank(pid=pid, host="node", attached_at=NOW - 100, **told)  # type: ignore[arg-type]


def snapshot(*ranks: Rank, **fields: object) -> Snapshot:
    return Snapshot(time=NOW, host=Host(name="node"), ranks=ranks, **fields)  # type: ignore[arg-type]


def hung(size: int = 4, late: int = 2) -> dict[str, object]:
    ranks = [rank(n, 100 + n, f"10.0.0.{n // 8}", AllReduce=39 if n == late else 40) for n in range(size)]
    return communicator(*ranks)


def found(answer: RasAnswer, *pids: int) -> list[tuple[int, int, int | None]]:
    """Of each stuck communicator, how many are behind and missing, and who is named first."""
    stuck = stuck_communicators(answer, answer, {pid: pid for pid in pids})
    return [
        (one.behind_count, one.missing_count, next((r.rank for r in (*one.missing, *one.behind)), None))
        for one in stuck
    ]


def test_the_rank_that_is_behind_is_named_also_on_another_node(server: RasServer) -> None:
    server.communicators = [hung(size=512, late=300)]
    answer = ask(server.address)
    (stuck,) = stuck_communicators(answer, answer, {100: 100})
    assert (stuck.size, stuck.operation, stuck.number, stuck.waiting_count) == (512, "AllReduce", 40, 511)
    assert [(one.rank, one.host, one.pid, one.called) for one in stuck.behind] == [(300, "10.0.0.37", 400, 39)]


def test_one_that_does_not_answer_comes_first(server: RasServer) -> None:
    level = [rank(n, 100 + n, AllReduce=40) for n in range(3)]
    server.communicators = [communicator(*level, gone=(missing(3, 103, dead=True),)), {**hung(), "hash": "0x2"}]
    assert found(ask(server.address), 100) == [(0, 1, 3), (1, 0, 2)]


def test_other_jobs_those_that_go_on_and_those_of_one_rank_are_not_told(server: RasServer) -> None:
    server.communicators = [hung(), communicator(rank(0, 100, AllReduce=5), name="0x9")]
    before = ask(server.address)
    assert found(before, 999) == []
    server.communicators = [communicator(*(rank(n, 100 + n, AllReduce=41 - (n == 2)) for n in range(4)))]
    assert stuck_communicators(before, ask(server.address), {100: 100}) == ()


def test_what_it_calls_a_process_is_translated_into_this_host_s_pid(server: RasServer) -> None:
    server.communicators = [hung()]
    answer = ask(server.address)
    (stuck,) = stuck_communicators(answer, answer, {100: 5100, 101: 5101})
    assert stuck.pids == (5100, 5101)


def test_the_rank_behind_is_known_here_though_its_gpu_is_idle_and_no_namesake_on_another_node_is(
    server: RasServer,
) -> None:
    """On two H100s nothing was attached: the alert had the pid of the rank that waited."""
    server.communicators = [hung(size=16, late=2)]
    answer = ask(server.address)
    everyone = {pid: pid + 5000 for pid in range(100, 116)}
    (stuck,) = stuck_communicators(answer, answer, {100: 5100}, everyone)
    assert stuck.pids == tuple(range(5100, 5108)), "eight ranks a node; 108 to 115 are the other node's"
    assert [(one.rank, one.pid) for one in stuck.behind] == [(2, 5102)]
    (alert,) = Rules().apply(snapshot(stuck_communicators=(stuck,))).alerts
    assert alert.pid == 5102


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\x00" * 500])
def test_another_program_behind_the_port_is_one_sentence(said: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(60)

    def answer() -> None:
        connection, _ = listener.accept()
        connection.settimeout(60)
        connection.recv(100)
        connection.sendall(said)
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(NotPossibleHere, match="NCCL RAS at 127"):
        ask(listener.getsockname())
    listener.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as two users")
def test_another_users_listener_is_not_read_unless_a_process_that_stands_is_that_users() -> None:
    port = free_port()
    with listening_as(OTHER, "127.0.0.1", port, b""):
        with pytest.raises(NotPossibleHere, match=f"is ignored: user {OTHER} listens there"):
            ask(("localhost", port))
        with pytest.raises(NotPossibleHere, match="does not support"):
            ask(("localhost", port), owners={OTHER})


def test_an_old_nccl_without_json_and_a_closed_port_are_one_sentence() -> None:
    old = RasServer(json_known=False)
    with pytest.raises(NotPossibleHere, match="set format json"):
        ask(old.address)
    old.close()
    with pytest.raises(NotPossibleHere, match="does not reply"):
        ask(old.address)


def test_one_that_never_answers_is_given_up() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(NotPossibleHere, match="does not reply"):
        ask(listener.getsockname(), seconds=0.3)
    listener.close()


def test_only_those_are_suspected_that_do_not_go_on() -> None:
    ranks = (
        training(1),
        training(2, last_step_at=NOW - 3),
        training(3, step_seconds_p50=2.0),
        training(4, state="stopped"),
        training(5, state="paused"),
        training(6, world_size=1),
        training(7, kind="request"),
        training(8, last_step_at=None),
    )
    inside = (
        Process(pid=1, container_pid=41),
        Process(pid=9, gpu_uuid="spins"),
        Process(pid=10, gpu_uuid="works"),
    )
    gpus = tuple(
        Gpu(
            index=i,
            uuid=uuid,
            name="H100",
            util_pct=100.0,
            power_watts=watts,
            power_limit_watts=700.0,
            sm_active_pct=sm,
        )
        for i, (uuid, watts, sm) in enumerate([("spins", 120.0, 18.0), ("works", 600.0, 90.0)])
    )
    now = snapshot(*ranks, processes=inside, gpus=gpus)
    assert suspect_processes(now) == {1: 1, 41: 1, 9: 9}
    for age, found in ((14.0, {1: 1, 41: 1, 9: 9}), (16.0, {1: 1, 41: 1})):
        sampled = tuple(replace(one, sampled_at=now.time - age) for one in gpus)
        assert suspect_processes(replace(now, gpus=sampled)) == found, (
            "a driver that is silent tells of no spinning"
        )


def test_a_healthy_job_is_not_asked(server: RasServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras_stage, "DEFAULT", server.address)
    asked = NcclRas()
    for _ in range(5):
        assert asked(snapshot(training(100, last_step_at=NOW - 1))).stuck_communicators == ()
    assert server.asked == 0


def test_from_the_port_to_the_alert(server: RasServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server.communicators = [hung()]
    monkeypatch.setattr(ras_stage, "DEFAULT", server.address)
    monkeypatch.setattr(ras_stage, "SECOND_QUERY_SECONDS", 0.1)
    stage = NcclRas()
    two = snapshot(training(100, 0), training(101, 1))
    wait_for(lambda: bool(stage(two).stuck_communicators), 30)
    (alert,) = Rules().apply(stage(two)).alerts
    assert alert.id == "hung_collective"
    assert alert.summary == (
        "No step for 8.00 s: in an NCCL communicator of 4 ranks, rank 2 (10.0.0.0, pid 102) is at AllReduce #39, "
        "the other ranks at #40."
    )
    assert alert.evidence["rank"] == 2
    assert alert.evidence["host"] == "10.0.0.0"
    assert alert.evidence["behind_by"] == 1
    assert alert.pid in (100, 101)
    assert stage(replace(two, ranks=())).stuck_communicators == (), "over"


def test_a_rank_that_runs_here_is_the_alert_s_pid(server: RasServer) -> None:
    server.communicators = [hung()]
    answer = ask(server.address)
    stuck = stuck_communicators(answer, answer, {pid: pid for pid in range(100, 104)})
    ranks = tuple(training(100 + n, n) for n in range(4))
    (alert,) = Rules().apply(snapshot(*ranks, stuck_communicators=stuck)).alerts
    assert alert.pid == 102
