"""What the host of Kineto's fabric answers to trainings and to monitors, and what it withstands."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmtop.capture.base.job import CaptureJob, Plan, Target
from llmtop.capture.base.step_listener import StepListener
from llmtop.capture.kineto import daemon, messages
from llmtop.capture.kineto import engine as kineto_engine
from llmtop.capture.kineto.daemon import FabricHost
from llmtop.capture.kineto.messages import Frames
from llmtop.errors import NotPossibleHere
from llmtop.protocol import wire
from tests.support.processes import REPOSITORY, environment, wait_for


@pytest.fixture
def host(runtime_dir: Path) -> Iterator[FabricHost]:
    """A host in this process."""
    host = FabricHost(*daemon.bind())
    host.start()
    yield host
    host.close()


def connected(host: FabricHost) -> socket.socket:
    """A monitor's end of a connection on which nothing was said."""
    monitor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    monitor.connect(str(host.directory / "control"))
    monitor.settimeout(30)
    return monitor


def ask(host: FabricHost, kind: int = 3, body: bytes | None = None) -> socket.socket:
    """Put a question to the host as Kineto does."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.settimeout(30)
    client.bind(str(host.directory / f"dynoconfigclient{os.urandom(4).hex()}"))
    question = struct.pack("@iiq1i", kind, 1, 0, os.getpid()) if body is None else body
    client.sendto(struct.pack("@Q32s", len(question), b"req") + question, str(host.directory / "dynolog"))
    return client


def answer(client: socket.socket) -> bytes:
    data = client.recv(4096)
    size, kind = struct.unpack_from("@Q32s", data)
    assert kind.rstrip(b"\0") == b"req"
    assert len(data) == 40 + size
    return data[40:]


def test_every_question_is_answered_and_with_nothing_while_nobody_wishes(host: FabricHost) -> None:
    assert answer(ask(host)) == b""


def test_a_wish_is_told_once_and_only_to_a_process_that_can_trace(host: FabricHost) -> None:
    monitor = kineto_engine.HostConnection(host.directory)
    answer(ask(host))
    monitor.send(messages.TraceRequest(pid=os.getpid(), path="/tmp/trace.json", steps=7))
    wait_for(lambda: kineto_engine.list_pollers(host.directory))
    assert answer(ask(host, kind=1)) == b"", "it is busy: a wish sent now would be lost"
    text = answer(ask(host)).decode()
    assert "ACTIVITIES_ITERATIONS=7\n" in text
    assert "ACTIVITIES_LOG_FILE=/tmp/trace.json\n" in text
    assert monitor.receive(30) == messages.Sent(own_pid=os.getpid())
    assert answer(ask(host)) == b""
    monitor.close()


def test_hanging_up_takes_a_wish_back(host: FabricHost) -> None:
    monitor = kineto_engine.HostConnection(host.directory)
    monitor.send(messages.TraceRequest(pid=os.getpid(), path="/tmp/trace.json", steps=7))
    monitor.close()
    kineto_engine.list_pollers(host.directory)  # the host has heard the hanging up when it answers this
    assert answer(ask(host)) == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"garbage\n",
        b"\xff" * 5000,
        b'{"type":"look"}\n',
        (4097).to_bytes(4, "little"),
        wire.add_length(b"garbage"),
        wire.add_length(b"\x82\xa4type\xa4look\xa4more" + b"\x91" * 3000 + b"\x00"),
        wire.add_length(b"\x84\xa4type\xa4wish\xa3pid\x01\xa4path\xa2/\xff\xa5steps\x01"),
        Frames().encode(messages.TraceRequest(pid=1, path="relative", steps=1)),
        Frames().encode(messages.TraceRequest(pid=1, path="/a\nKEY=1", steps=1)),
        Frames().encode(messages.TraceRequest(pid=1, path="/a")),
        Frames().encode(wire.Refused(reason="a host says that")),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_wish_is_refused_and_the_host_serves_on(host: FabricHost, sent: bytes) -> None:
    neighbour = kineto_engine.HostConnection(host.directory)
    with connected(host) as bad:
        bad.sendall(sent)
        assert b"refused" in bad.recv(4096)
    assert answer(ask(host)) == b""
    neighbour.send(messages.ListPollers())
    assert isinstance(neighbour.receive(30), messages.Pollers)
    neighbour.close()


def test_a_crowd_of_monitors_is_sent_away_and_those_that_are_in_are_served(host: FabricHost) -> None:
    answer(ask(host))
    crowd = [connected(host) for _ in range(100)]
    assert crowd[-1].recv(1) == b"", "it was hung up on"
    assert answer(ask(host)) == b"", "the training is answered meanwhile"
    crowd[0].sendall(Frames().encode(messages.ListPollers()))
    assert b"pollers" in crowd[0].recv(4096)
    for one in crowd:
        one.close()
    assert [one.pid for one in kineto_engine.list_pollers(host.directory)] == [os.getpid()]


def test_what_comes_in_pieces_is_understood(host: FabricHost) -> None:
    answer(ask(host))
    with connected(host) as monitor:
        for byte in Frames().encode(messages.ListPollers()) * 2:
            monitor.sendall(bytes([byte]))
        mine, heard = Frames(), list[messages.FromHost]()
        while len(heard) < 2:
            heard += map(mine.from_host.decode, mine.feed(monitor.recv(7)))
    assert [type(one) for one in heard] == [messages.Pollers] * 2


@pytest.mark.parametrize("body", [b"", b"x", struct.pack("@iiq", 3, 1 << 30, 0), struct.pack("@iiq", 3, -1, 0)])
def test_a_damaged_question_does_not_stop_the_host(host: FabricHost, body: bytes) -> None:
    ask(host, body=body).close()
    assert answer(ask(host)) == b""


def test_a_datagram_from_elsewhere_is_not_answered(host: FabricHost, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.bind(str(host.directory.parent / f"stranger-{os.getpid()}"))
        question = struct.pack("@iiq1i", 3, 1, 0, 1)
        stranger.sendto(struct.pack("@Q32s", len(question), b"req") + question, str(host.directory / "dynolog"))
        assert answer(ask(host)) == b""
        with pytest.raises(BlockingIOError):  # it was before that question, and has got no answer
            stranger.recv(4096, socket.MSG_DONTWAIT)


def test_the_directory_is_private_and_short_even_where_llmtop_dir_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 60)
    monkeypatch.setenv("LLMTOP_DIR", str(deep))
    directory, service, control = daemon.bind()
    with service, control:
        assert len(str(directory)) <= daemon.MAX_DIRECTORY
        assert directory.stat().st_mode & 0o777 == 0o700
    subprocess.run(["rm", "-r", str(directory)], check=True, timeout=240)


def test_launchers_and_spawned_workers_are_no_trainings(
    host: FabricHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "FRESH_SECONDS", 600.0)  # each asks once
    script = tmp_path / "ask.py"
    script.write_text(
        "import os, socket, struct, sys, time\n"
        "d = sys.argv[1]\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "s.bind(f'{d}/dynoconfigclient{os.getpid()}')\n"
        "q = struct.pack('@iiq1i', 3, 1, 0, os.getpid())\n"
        "s.sendto(struct.pack('@Q32s', len(q), b'req') + q, d + '/dynolog')\n"
        "s.recv(4096)\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    names = {"launcher": "torchrun", "rank": "train.py"}
    running = {
        name: subprocess.Popen(
            [sys.executable, str(script), str(host.directory), word],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        for name, word in names.items()
    }
    try:
        for process in running.values():
            assert process.stdout is not None
            process.stdout.readline()
        asking = {poller.pid for poller in kineto_engine.list_pollers(host.directory)}
        assert asking == {process.pid for process in running.values()}
        assert kineto_engine.training_pids(host.directory) == [running["rank"].pid]
    finally:
        for process in running.values():
            process.kill()
            process.wait(100)


@contextmanager
def dropping(host: FabricHost, how_many: int, *how: str) -> Iterator[int]:
    """The pid of a process that drops so many configurations."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.capture.kineto.drops_configs", str(how_many), *how],
        env=environment(**daemon.environment(host.directory)),
        stdout=subprocess.DEVNULL,
        cwd=REPOSITORY,
    ) as process:
        try:
            wait_for(lambda: process.pid in [one.pid for one in kineto_engine.list_pollers(host.directory)])
            yield process.pid
        finally:
            process.kill()


def _job(pid: int, folder: Path, **length: float) -> CaptureJob:
    plan = Plan("kineto", (Target(pid),), folder, **length)  # type: ignore[arg-type]
    return CaptureJob(plan, folder, StepListener([]))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits as for a process that asks ten times a second."""
    monkeypatch.setattr(kineto_engine, "START_SECONDS", 0.5)
    monkeypatch.setattr(kineto_engine, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(kineto_engine, "UNFINISHED_SECONDS", 0.5)


@pytest.mark.slow("one length stands for both", kept=("length0",))
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("length", [{"seconds": 0.5}, {"steps": 5}])
def test_a_configuration_that_the_process_dropped_is_sent_again(
    host: FabricHost, tmp_path: Path, length: dict[str, float]
) -> None:
    with dropping(host, 2) as pid:
        recorded = kineto_engine.KinetoEngine().record(_job(pid, tmp_path, **length))
    assert [path.is_file() for path in recorded.traces] == [True]


@pytest.mark.usefixtures("impatient")
def test_a_file_that_the_process_has_begun_and_left_is_asked_for_again(host: FabricHost, tmp_path: Path) -> None:
    with dropping(host, 1, "unfinished") as pid:
        recorded = kineto_engine.KinetoEngine().record(_job(pid, tmp_path, seconds=0.5))
    assert [path.is_file() for path in recorded.traces] == [True]
    assert list(tmp_path.rglob("*.tmp")) == []


@pytest.mark.slow("six requests; test_a_configuration_that_the_process_dropped_is_sent_again has two")
@pytest.mark.usefixtures("impatient")
def test_one_that_drops_each_configuration_is_given_up_in_one_sentence(
    host: FabricHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The six requests have twelve times this in all. On a quiet machine each takes once this and 0.3 s.
    monkeypatch.setattr(kineto_engine, "START_SECONDS", 1.5)
    with dropping(host, -1) as pid, pytest.raises(NotPossibleHere, match=r"dropped the request 6 times in .* s"):
        kineto_engine.KinetoEngine().record(_job(pid, tmp_path, seconds=0.5))
    assert answer(ask(host)) == b"", "and nothing is left to be sent"
