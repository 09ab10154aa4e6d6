"""Kineto captures of an unmodified PyTorch script, and what the host of the fabric must withstand."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from llmtop.capture import take, targets
from llmtop.capture.job import Cancelled, Plan, Progress, Target
from llmtop.capture.kineto import daemon as kineto
from llmtop.capture.kineto import engine as kineto_engine
from llmtop.capture.kineto import spawn as kineto_spawn
from llmtop.errors import NotPossibleHere
from tests.capture.conftest import Start, Training
from tests.support.processes import environment, wait_for

BEHIND = (sys.executable, str(Path(__file__).with_name("launch_with_kineto.py")))


@pytest.fixture(scope="module")
def training(start_once: Start) -> Training:
    """A script that imports nothing of llmtop; one for all tests that must leave it running."""
    pytest.importorskip("torch")
    training = start_once("--torch", "--plain", "--step-ms", "50", behind=BEHIND)
    wait_for(lambda: _asks(training), what="the first question to the host")
    return training


def _asks(training: Training) -> bool:
    directory = kineto_engine.directory_of(training.pid)
    return directory is not None and training.pid in [one.pid for one in kineto_engine.pollers(directory)]


def plan(training: Training, parent: Path, **more: object) -> Plan:
    return Plan(**{"engine": "kineto", "targets": (Target(training.pid),), "parent": parent, "steps": 5, **more})  # type: ignore[arg-type]


@pytest.mark.torch
class TestCapture:
    def test_five_steps_of_an_unmodified_script(self, training: Training, captures: Path) -> None:
        assert Target(training.pid) in targets.unattached(), "it is found without being named"
        result = take.take(plan(training, captures))
        assert result.trace == result.folder / f"pid{training.pid}.json"
        assert result.report.steps.count == 5
        assert result.report.engine == "kineto"
        training.wait_for_steps(3)

    def test_by_the_clock(self, training: Training, captures: Path) -> None:
        result = take.take(plan(training, captures, steps=None, seconds=0.5))
        assert 4 <= result.report.steps.count <= 14

    def test_cancelled_before_the_process_was_told(self, training: Training, captures: Path) -> None:
        cancelled = threading.Event()

        def cancel(progress: Progress) -> None:
            if progress.stage == "start":
                cancelled.set()

        with pytest.raises(Cancelled):
            take.take(plan(training, captures), cancel, cancelled)
        assert list(captures.iterdir()) == []
        training.wait_for_steps(3)

    def test_a_folder_that_goes_while_it_records_does_not_harm_the_training(
        self, training: Training, captures: Path
    ) -> None:
        cancelled = threading.Event()

        def cancel(progress: Progress) -> None:
            if progress.stage == "record":
                cancelled.set()

        with pytest.raises(Cancelled):
            take.take(plan(training, captures, steps=20), cancel, cancelled)
        training.wait_for_steps(40)
        assert take.take(plan(training, captures)).report.steps.count == 5, "and it can be captured again"

    def test_a_killed_host_does_not_harm_the_training(self, start: Start, captures: Path) -> None:
        training = start("--torch", "--plain", "--step-ms", "50", behind=BEHIND)
        wait_for(lambda: _asks(training))
        directory = kineto_engine.directory_of(training.pid)
        assert directory is not None
        os.kill(_host_of(directory), signal.SIGKILL)
        with pytest.raises(NotPossibleHere, match="that reaches Kineto has ended"):
            take.take(plan(training, captures))
        training.wait_for_steps(30)
        assert training.end() == 0
        assert not any("ERROR" in line for line in training.lines)

    def test_a_training_that_ends_before_its_trace_is_written(self, start: Start, captures: Path) -> None:
        training = start("--torch", "--plain", "--steps", "40", behind=BEHIND)
        wait_for(lambda: _asks(training))
        with pytest.raises(NotPossibleHere, match="ended before its trace was written"):
            take.take(plan(training, captures, steps=500))


def test_the_host_is_no_child_and_goes_with_the_training(start: Start) -> None:
    training = start("--plain", behind=BEHIND)
    directory = kineto_engine.directory_of(training.pid)
    assert directory is not None
    host = _host_of(directory)
    parent = Path(f"/proc/{host}/stat").read_text().rpartition(")")[2].split()[1]
    assert int(parent) != training.pid
    assert os.readlink(f"/proc/{host}/fd/1") == "/dev/null"
    assert training.end() == 0
    wait_for(lambda: not directory.exists(), what="the host to end")


def _host_of(directory: Path) -> int:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        words = entry.read_bytes().split(b"\0")
        if b"llmtop.capture.kineto.spawn" in words and os.fsencode(directory) in words:
            return int(entry.parent.name)
    raise AssertionError(f"nobody hosts {directory}")


def test_the_users_own_kineto_settings_are_left_alone() -> None:
    mine = {"KINETO_USE_DAEMON": "1"}
    assert not kineto_spawn.start_host(mine, os.getpid())
    assert mine == {"KINETO_USE_DAEMON": "1"}


@pytest.fixture
def host(runtime_dir: Path) -> Iterator[kineto.FabricHost]:
    """A host in this process."""
    host = kineto.FabricHost(*kineto.bind())
    host.start()
    yield host
    host.close()


def ask(host: kineto.FabricHost, kind: int = 3, body: bytes | None = None) -> socket.socket:
    """Put a question to the host as Kineto does."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.settimeout(5)
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


def test_every_question_is_answered_and_with_nothing_while_nobody_wishes(host: kineto.FabricHost) -> None:
    assert answer(ask(host)) == b""


def test_a_wish_is_told_once_and_only_to_a_process_that_can_trace(host: kineto.FabricHost) -> None:
    monitor = kineto_engine.HostConnection(host.directory)
    answer(ask(host))
    monitor.send(kineto.Wish(pid=os.getpid(), path="/tmp/trace.json", steps=7))
    wait_for(lambda: kineto_engine.pollers(host.directory))
    assert answer(ask(host, kind=1)) == b"", "it is busy: a wish sent now would be lost"
    text = answer(ask(host)).decode()
    assert "ACTIVITIES_ITERATIONS=7\n" in text
    assert "ACTIVITIES_LOG_FILE=/tmp/trace.json\n" in text
    assert monitor.receive(5) == kineto.Sent(own_pid=os.getpid())
    assert answer(ask(host)) == b""
    monitor.close()


def test_hanging_up_takes_a_wish_back(host: kineto.FabricHost) -> None:
    monitor = kineto_engine.HostConnection(host.directory)
    monitor.send(kineto.Wish(pid=os.getpid(), path="/tmp/trace.json", steps=7))
    monitor.close()
    kineto_engine.pollers(host.directory)  # the host has heard the hanging up when it answers this
    assert answer(ask(host)) == b""


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b"\xff" * 5000,
        msgspec.json.encode({"type": "wish", "pid": 1, "path": "relative", "steps": 1}) + b"\n",
        msgspec.json.encode({"type": "wish", "pid": 1, "path": "/a\nKEY=1", "steps": 1}) + b"\n",
        msgspec.json.encode({"type": "wish", "pid": 1, "path": "/a"}) + b"\n",
    ],
)
def test_what_is_no_wish_is_refused_and_the_host_serves_on(host: kineto.FabricHost, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bad:
        bad.settimeout(5)
        bad.connect(str(host.directory / "control"))
        bad.sendall(line)
        refused = bad.recv(4096)
    assert refused == b"" or b"refused" in refused
    assert answer(ask(host)) == b""


@pytest.mark.parametrize("body", [b"", b"x", struct.pack("@iiq", 3, 1 << 30, 0), struct.pack("@iiq", 3, -1, 0)])
def test_a_damaged_question_does_not_stop_the_host(host: kineto.FabricHost, body: bytes) -> None:
    ask(host, body=body).close()
    assert answer(ask(host)) == b""


def test_a_datagram_from_elsewhere_is_not_answered(host: kineto.FabricHost, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(0.3)
        stranger.bind(str(host.directory.parent / f"stranger-{os.getpid()}"))
        question = struct.pack("@iiq1i", 3, 1, 0, 1)
        stranger.sendto(struct.pack("@Q32s", len(question), b"req") + question, str(host.directory / "dynolog"))
        with pytest.raises(TimeoutError):
            stranger.recv(4096)
    assert answer(ask(host)) == b""


def test_the_directory_is_private_and_short_even_where_llmtop_dir_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 60)
    monkeypatch.setenv("LLMTOP_DIR", str(deep))
    directory, service, control = kineto.bind()
    with service, control:
        assert len(str(directory)) <= kineto.MAX_DIRECTORY
        assert directory.stat().st_mode & 0o777 == 0o700
    subprocess.run(["rm", "-r", str(directory)], check=True)


def test_launchers_and_spawned_workers_are_no_trainings(host: kineto.FabricHost, tmp_path: Path) -> None:
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
        asking = {poller.pid for poller in kineto_engine.pollers(host.directory)}
        assert asking == {process.pid for process in running.values()}
        assert kineto_engine.trainings(host.directory) == [running["rank"].pid]
    finally:
        for process in running.values():
            process.kill()
            process.wait()
