"""Damaged messages, in both directions, and damaged snapshots: refused or passed over, and nothing else raised.

LLMTOP_FUZZ (400) is how many are damaged of each kind; LLMTOP_FUZZ=10000 takes some minutes.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from collectors.base.gpu_lookup import GpuLookup
from collectors.trainings.training import Training as Watched
from llmtop.cli.live.snapshot_text import render
from llmtop.errors import LlmtopError, UnusableInput
from llmtop.model.snapshot import Host, Snapshot, from_json, to_json
from llmtop.protocol import wire
from llmtop.protocol.client import Connection, ConnectionClosed
from llmtop.rules.engine import Rules
from tests.fuzz.mutate import mutate
from tests.support import attackers
from tests.support.processes import wait_for
from tests.support.trainings import STEPPING, Heard, Training, connect, socket_of

ROUNDS = int(os.environ.get("LLMTOP_FUZZ", "400"))

FROM_MONITOR: Sequence[wire.FromMonitor] = (
    wire.Subscribe(version="1", history=64),
    wire.CaptureRequest(id="a", engine="torch.profiler", path="/nowhere/a", steps=3, options={"stacks": True}),
    wire.CaptureCancel(id="a"),
    wire.Pause(id="b", finished=1 << 40, seconds=0.0, drain_seconds=0.0),
    wire.Resume(id="b"),
    wire.OpRanges(id="d", want="on", seconds=1.0),
    wire.SampleStacks(id="c", seconds=0.1, rate_hz=20.0),
    wire.StopSampling(id="c"),
    wire.Refused(reason="no"),
)
STEPS = wire.Steps(
    steps=[
        wire.StepDone(n, 10**18 + n * 10**7, 10**7, 10**7, 4096.0, 8.0, [wire.PhaseTime("forward", 4 * 10**6)])
        for n in range(8)
    ],
    metrics={"loss": 1.5, "lr": 1e-4},
    lost=2,
    first_ordinal=30,
)
FROM_TRAINING: Sequence[wire.FromTraining] = (
    wire.Hello(version="1", pid=7, host="h", command="python train.py", rank=0, world_size=2, total_steps=100,
               flops_per_token=1e9, dtype="bf16", started_at=1e9, engines=["torch.profiler"], note="so"),
    STEPS,
    wire.GpuTimes(times=[wire.GpuTime(3, 9 * 10**6, 10**6, [("forward", 10**6)], 10**5)]),
    wire.Memory(allocated_bytes=1 << 30, reserved_bytes=1 << 31, peak_bytes=1 << 31, alloc_retries=0, ooms=0),
    wire.CaptureState(id="a", state="armed"),
    wire.PauseState(id="b", state="paused", finished=9),
    wire.OpRangesState(id="d", state="failed", detail="no"),
    wire.SampledStacks(id="c", looks=1, frames=[wire.SampledFrame("f", "/a.py", 3)],
                    threads=[wire.SampledThread("MainThread", 7)], stacks=[wire.SampledStack(0, [0], 1)]),
    wire.Refused(reason="no"),
)  # fmt: skip


class _OneModel(GpuLookup):
    """Every GPU is of one model, whatever its UUID."""

    def name(self, uuid: str) -> str | None:
        return "NVIDIA H200"


def test_the_same_seed_does_the_same_damage() -> None:
    data = wire.encode(STEPS)
    assert [mutate(data, seed) for seed in range(50)] == [mutate(data, seed) for seed in range(50)]
    assert sum(mutate(data, seed) != data for seed in range(50)) > 45
    assert max(len(mutate(data, seed)) for seed in range(500)) <= 1 << 20


def test_damaged_requests_end_no_publishing(runtime_dir: Path) -> None:
    frames = [wire.encode(message) for message in FROM_MONITOR]
    with Training(STEPPING) as training:
        neighbour = Heard(connect(runtime_dir, training))
        path = str(socket_of(runtime_dir, training.pid))
        for seed in range(ROUNDS):
            whole = frames[seed % len(frames)]
            # Half of them keep a length that is right, so that the damage is in the message.
            body = mutate(whole[4:], seed)
            data = struct.pack("<I", len(body)) + body if seed % 2 else mutate(whole, seed)
            with attackers.connect(path) as channel, suppress(BrokenPipeError, ConnectionResetError):
                channel.settimeout(20)
                channel.sendall(data)
                channel.shutdown(socket.SHUT_WR)
            if seed % 100 == 99:
                here = len(neighbour.steps)
                neighbour.until(lambda here=here: len(neighbour.steps) > here + 20, 60)  # type: ignore[misc]
        here = len(neighbour.steps)
        neighbour.until(lambda: len(neighbour.steps) > here + 20, 60)
        late = Heard(wait_for(lambda: _open(path)))
        late.until(lambda: len(late.steps) > 20)
        training.kill()
        assert training.communicate(timeout=240)[1] == ""


def _open(path: str) -> Connection | None:
    with suppress(LlmtopError, ConnectionError):
        return Connection.open(Path(path), timeout_s=20)
    return None


def test_damaged_answers_end_no_more_than_their_connection(tmp_path: Path) -> None:
    """What a monitor's thread does with the bytes of a training, over a real pair of sockets."""
    frames = [wire.encode(message) for message in FROM_TRAINING]
    rules = Rules()
    neighbour = Watched(0)
    for seed in range(ROUNDS):
        near, far = socket.socketpair()
        with near, far:
            near.settimeout(20)
            connection = Connection(near, tmp_path / "1-00000000.sock", 1)
            connection.hello = wire.Hello(rank=0)
            watched = Watched(0)
            watched.attach(connection)
            whole = frames[seed % len(frames)]
            body = mutate(whole[4:], seed)
            damaged = struct.pack("<I", len(body)) + body if seed % 2 else mutate(whole, seed)
            _send(far, frames[1] + damaged + frames[1])
            far.close()
            with suppress(ConnectionClosed, UnusableInput):
                while True:
                    watched.take_in(connection.receive(0.0))
        neighbour.take_in([msgspec.structs.replace(STEPS)])
        ranks = tuple(one.take(_OneModel()) for one in (watched, neighbour))
        snapshot = rules.apply(Snapshot(time=1e9 + seed, host=Host(name="here"), ranks=ranks))
        line = to_json(snapshot)
        assert len(line) < 4 << 20
        assert from_json(line).ranks[1].step == 7
        assert render(snapshot)


def _send(channel: socket.socket, data: bytes) -> None:
    import threading

    def send() -> None:
        with suppress(OSError):
            channel.sendall(data)

    # More than the socket holds would block for as long as nobody reads.
    if len(data) < 100_000:
        send()
    else:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        thread = threading.Thread(target=send)
        thread.start()
        thread.join(0.05)


@pytest.mark.parametrize("part", ["rank", "whole"])
def test_damaged_snapshots_are_refused_or_can_be_judged_and_shown(part: str) -> None:
    watched = Watched(0)
    watched.stats.hello = wire.Hello(rank=0, world_size=2, started_at=1e9)
    watched.take_in([msgspec.structs.replace(STEPS)])
    rank = watched.take(GpuLookup())
    ranks = (rank,) if part == "rank" else (rank, msgspec.structs.replace(rank, pid=2, rank=1))
    line = to_json(Snapshot(time=1e9, host=Host(name="here", notes=("so",)), ranks=ranks))
    read = 0
    for seed in range(ROUNDS):
        try:
            snapshot = from_json(mutate(line, seed))
        except msgspec.DecodeError:
            continue
        read += 1
        assert render(Rules().apply(snapshot))
    assert read, "some damage is in a number or a name, and nobody can tell"
