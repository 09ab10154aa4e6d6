"""What listens in the directory and is no training of ours: one sentence each, and the others go on."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collectors.trainings import source as steps_module
from collectors.trainings.source import StepsSource
from llmtop.model.snapshot import Rank
from llmtop.protocol import wire
from tests.support import wire_peer
from tests.support.processes import wait_for

Peer = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "ROUND_SECONDS", 0.1)


@pytest.fixture
def peer(runtime_dir: Path) -> Iterator[Peer]:
    """Start a peer whose socket carries its number; all are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(data: bytes, then: str = "hold") -> subprocess.Popen[str]:
        started.append(
            wire_peer.start(runtime_dir / f"{4000000 + len(started)}-0000000{len(started)}.sock", data, then)
        )
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait(100)


@pytest.fixture
def source(runtime_dir: Path) -> Iterator[StepsSource]:
    source = StepsSource(runtime_dir)
    yield source
    source.close()


def hello(**fields: object) -> bytes:
    return wire.encode(wire.Hello(pid=1, version="1", **fields))


def steps(count: int, *, history: bool = False) -> bytes:
    now = time.time_ns()
    done = [
        wire.StepDone(
            index=i, started_unix_ns=now + (i - count) * 10**9, host_ns=10**9, interval_ns=10**9, tokens=10
        )
        for i in range(count)
    ]
    return wire.encode(wire.Steps(steps=done, history=history))


def only_rank(source: StepsSource) -> Rank | None:
    ranks = source.latest().ranks
    return ranks[0] if len(ranks) == 1 else None


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "bytes was announced"),
        (struct.pack("<I", 20) + os.urandom(20), "another program"),
        (struct.pack("<I", 0xFFFFFFFF), "bytes was announced"),
        (wire.encode(wire.Steps(steps=[])), "not an attached training"),
        (wire.encode(wire.Hello(protocol=wire.PROTOCOL + 1, version="9.9")), "upgrade this llmtop"),
        (wire.encode(wire.Hello(protocol=0, version="0.0")), "restart the training"),
        (wire.encode(wire.Refused(reason="too many monitors")), "too many monitors"),
    ],
    ids=["text", "garbage", "oversized", "no hello", "newer", "older", "refused"],
)
def test_a_stranger_is_refused_in_one_sentence_and_a_training_beside_it_is_shown(
    source: StepsSource, peer: Peer, data: bytes, word: str
) -> None:
    peer(data)
    peer(hello(rank=0) + steps(3))
    source.start()
    wait_for(lambda: only_rank(source) is not None and source.latest().notes)
    notes = source.latest().notes
    assert len(notes) == 1
    assert word in notes[0]
    assert "\n" not in notes[0]


def test_garbage_after_good_steps_ends_the_connection_and_keeps_the_steps(source: StepsSource, peer: Peer) -> None:
    peer(hello() + steps(3), struct.pack("<I", 1 << 30).hex())
    source.start()
    rank = wait_for(lambda: only_rank(source))
    assert rank.step == 2
    wait_for(lambda: source.latest().notes)


def test_half_a_frame_is_waited_for_and_harms_nobody(source: StepsSource, peer: Peer) -> None:
    peer(hello() + steps(3) + steps(3)[:-5])
    peer(hello()[:-3])
    source.start()
    rank = wait_for(lambda: only_rank(source))
    assert rank.step == 2
    # After 2 s, which pass on a busy machine, the one that waits is said to be silent.
    assert all("does not answer" in note for note in source.latest().notes)


@pytest.mark.slow("measures processor time for two seconds")
def test_one_that_hangs_up_again_and_again_does_not_spin_the_monitor(source: StepsSource, peer: Peer) -> None:
    peer(hello() + steps(3, history=True), "close")
    source.start()
    rank = wait_for(lambda: only_rank(source))
    new = len(rank.new_steps)
    before = os.times()
    for _ in range(20):
        rank = only_rank(source) or rank
        new += len(rank.new_steps)
        time.sleep(0.1)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 0.5
    assert new == 3  # each step once, however often it is sent again


def test_a_stopped_process_holds_nobody_up_and_is_shown_as_stopped(source: StepsSource, peer: Peer) -> None:
    stopped = [peer(hello()) for _ in range(3)]
    for one in stopped:
        one.send_signal(signal.SIGSTOP)
    peer(hello(rank=5) + steps(1))
    source.start()
    wait_for(lambda: any(rank.rank == 5 and rank.step == 0 for rank in source.latest().ranks))
    wait_for(lambda: sum(rank.state == "stopped" for rank in source.latest().ranks) == 3)
    for one in stopped:
        one.send_signal(signal.SIGCONT)
    wait_for(lambda: sum(rank.state == "running" for rank in source.latest().ranks) == 4)


def test_a_socket_that_nobody_listens_on_is_removed(source: StepsSource, runtime_dir: Path) -> None:
    stale = runtime_dir / "3999999-deadbeef.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(stale))
        server.listen()
    (runtime_dir / "notes.txt").write_text("of the user")
    source.start()
    wait_for(lambda: not stale.exists())
    assert (runtime_dir / "notes.txt").exists()
    assert source.latest().notes == ()


def test_a_directory_that_others_can_write_is_refused_until_it_is_mended(
    source: StepsSource, runtime_dir: Path, peer: Peer
) -> None:
    peer(hello() + steps(1))
    runtime_dir.chmod(0o777)
    source.start()
    wait_for(lambda: source.latest().notes)
    assert "chmod 700" in source.latest().notes[0]
    assert source.latest().ranks == ()
    runtime_dir.chmod(0o700)
    wait_for(lambda: source.latest().ranks)
    assert source.latest().notes == ()


def test_a_directory_that_is_a_link_is_refused(runtime_dir: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(runtime_dir)
    source = StepsSource(link)
    source.start()
    wait_for(lambda: source.latest().notes)
    assert "symbolic link" in source.latest().notes[0]
    source.close()


def test_no_directory_yet_is_no_fault_and_is_found_when_it_comes(tmp_path: Path) -> None:
    source = StepsSource(tmp_path / "later")
    source.start()
    wait_for(source.is_settled)
    assert source.latest().notes == ()
    source.close()
