"""Trainings run for weeks: an old one and a new monitor keep talking, and so do an old monitor and a new training.

What each side of an old version says is played from its own bytes, which `tests.support.record_wire` recorded, and
what it hears is decoded by its own wire.py. Its files are those that it wrote.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from llmtop.errors import UnusableInput
from llmtop.protocol import wire
from llmtop.protocol.client import Connection
from tests.support.data import DATA
from tests.support.installed import needs
from tests.support.processes import environment, wait_for
from tests.support.trainings import Heard, socket_of
from tests.support.wire_player import Said, framed, start, talk, trace

OLD = DATA / "wire_0.1.0"
TALKS = ("watch", "capture", "orders", "refused")
SOCKET = "4000000-00000000.sock"
FROM_TRAINING = {"hello", "steps", "gpu", "memory", "capture_state", "pause_state", "refused"}
FROM_MONITOR = {"subscribe", "capture", "capture_cancel", "pause", "resume"}
UNREAD = {"ring_steps"}
"""Fields that no monitor ever read."""
OF_EACH = {"pid", "new_steps", "gpu_updates", "last_step_at"}
"""Of a rank, what two monitors do not agree on if one hears it from another process, and later."""
MADE_ANEW = {
    *("step_seconds", "step_seconds_p50", "step_seconds_p95", "step_seconds_p99", "steps_per_s", "eta_seconds"),
    *("tokens_per_s", "samples_per_s", "mfu_pct", "phases", "gpu_idle_pct", "gpu_host_paced_pct"),
}
"""Of a rank, what its whole steps came to: the old version took others."""


Snapshot = dict[str, Any]
Play = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def played(runtime_dir: Path) -> Iterator[Play]:
    """Start the old training, as it was in these talks."""
    started: list[subprocess.Popen[str]] = []

    def play(*talks: str) -> subprocess.Popen[str]:
        started.append(start(runtime_dir / SOCKET, OLD, *talks))
        return started[-1]

    yield play
    for one in started:
        one.kill()
        one.wait()


def llmtop(*arguments: str | Path, code: int = 0) -> str:
    """What the command prints, looking at its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def watched(directory: Path, until: Callable[[Snapshot], bool]) -> list[Snapshot]:
    """What the live monitor tells until `until(its last snapshot)` holds."""
    monitor = subprocess.Popen(
        [sys.executable, "-m", "llmtop", "--json", "-i", "0.2"],
        env=environment(LLMTOP_DIR=str(directory)),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert monitor.stdout is not None
    snapshots = []
    with monitor:
        try:
            for line in monitor.stdout:
                snapshots.append(json.loads(line))
                if until(snapshots[-1]):
                    return snapshots
        finally:
            monitor.kill()
    raise AssertionError("the monitor ended")


def recorded() -> list[Snapshot]:
    """What the old monitor recorded, as it wrote it."""
    with gzip.open(OLD / "run.llmtop") as lines:
        return [json.loads(line) for line in lines][1:]


def steps_of(snapshots: list[Snapshot], pid: int) -> dict[int, dict[str, Any]]:
    """Each step that was told of a training, with the GPU times that came later."""
    ranks = [rank for snapshot in snapshots for rank in snapshot["ranks"] if rank["pid"] == pid]
    return {step["index"]: step for rank in ranks for step in (*rank["new_steps"], *rank["gpu_updates"])}


def rank_of(snapshots: list[Snapshot], pid: int) -> dict[str, Any]:
    """A training as it was told last."""
    return next(rank for rank in snapshots[-1]["ranks"] if rank["pid"] == pid)


def holds(new: Any, old: Any) -> bool:
    """Whether all that the old one says stands in the new one, which may say more."""
    if isinstance(old, dict):
        return all(name in new and holds(new[name], old[name]) for name in old)
    if isinstance(old, list):
        # What stands in a list by its place gets more places, of which an old message says nothing.
        return all(one is None for one in new[len(old) :]) and len(new) >= len(old) and all(map(holds, new, old))
    if isinstance(old, float):
        return bool(new == pytest.approx(old, rel=1e-12))  # sums in another order differ in their last bit
    return bool(new == old)


def adds_up(rank: dict[str, Any]) -> bool:
    """Whether the figures of a training's steps, which are made anew, are all of the same whole steps."""
    mean, inside = rank["step_seconds_mean"], [one for one in rank["phases"] if "/" not in one["name"]]
    parts = sum(phase["host_seconds"] for phase in inside) + rank["outside_seconds"]
    return bool(
        parts == pytest.approx(mean, rel=1e-6)
        and rank["window_steps"] * mean == pytest.approx(rank["window_seconds"])
    )


# --- an old training, a new monitor ------------------------------------------------------------------------------


def test_every_message_of_an_old_version_is_understood() -> None:
    kinds: dict[bool, set[str]] = {True: set(), False: set()}
    for said in (said for name in TALKS for said in talk(OLD / f"{name}.jsonl.xz") if said.body):
        message = (wire.decode_from_training if said.by_training else wire.decode_from_monitor)(said.body)
        kinds[said.by_training].add(said.kind)
        understood = msgspec.to_builtins(message)
        told = {name: value for name, value in said.fields.items() if name not in UNREAD}
        assert holds(understood, told), told
    assert kinds == {True: FROM_TRAINING, False: FROM_MONITOR}


def test_a_monitor_shows_of_an_old_training_what_the_old_monitor_showed(played: Play, runtime_dir: Path) -> None:
    old = recorded()
    (old_pid,) = {rank["pid"] for snapshot in old for rank in snapshot["ranks"]}
    training = subprocess.Popen(
        [sys.executable, "-m", "tests.support.toy_training"], env=environment(), stdout=subprocess.PIPE
    )
    try:
        socket_of(runtime_dir, training.pid)
        player = played("watch")
        both = {player.pid: "gone", training.pid: "running"}
        new = watched(runtime_dir, lambda now: {rank["pid"]: rank["state"] for rank in now["ranks"]} == both)
    finally:
        training.kill()
        training.wait()
    expected, shown = rank_of(old, old_pid), rank_of(new, player.pid)
    for name in expected.keys() - OF_EACH - MADE_ANEW:
        assert holds(shown[name], expected[name]), name
    assert adds_up(shown)
    assert {phase["name"] for phase in shown["phases"]} == {phase["name"] for phase in expected["phases"]}
    assert (shown["step"], shown["total_steps"]) == (max(steps_of(old, old_pid)), 2_000_000)
    assert holds(steps_of(new, player.pid), steps_of(old, old_pid))
    assert len(steps_of(new, training.pid)) > 0


def test_a_monitor_captures_an_old_training(played: Play, runtime_dir: Path, tmp_path: Path) -> None:
    player = played("capture")
    arguments = ("--pid", str(player.pid), "-e", "torch.profiler", "--steps", "2", "--out", tmp_path, "--json")
    told = json.loads(llmtop("capture", *arguments))
    written = Path(told["trace"]).read_bytes()
    assert json.loads(written).pop("distributedInfo")["rank"] == told["capture"]["ranks"][0]
    assert written.endswith(trace(OLD).lstrip().removeprefix(b"{").lstrip()), "all that the training wrote"
    assert told["capture"]["state"] == "done"
    assert told["capture"]["last_step"] - told["capture"]["first_step"] == 2
    assert told["report"]["steps"]["count"] == 2


def test_a_monitor_pauses_an_old_training_and_calls_its_capture_off(played: Play, runtime_dir: Path) -> None:
    played("orders", "capture")
    with Connection.open(runtime_dir / SOCKET) as connected:
        heard = Heard(connected)

        def states(name: str) -> list[str]:
            known = (wire.CaptureState, wire.PauseState)
            return [one.state for one in heard.messages if isinstance(one, known) and one.id == name]

        connected.send(wire.Pause(id="mine"))
        heard.until(lambda: states("mine") == ["armed", "paused"])
        connected.send(wire.Resume(id="mine"))
        heard.until(lambda: states("mine") == ["armed", "paused", "resumed"])
        connected.send(wire.CaptureRequest(id="trace", engine="torch.profiler", path="/nowhere"))
        heard.until(lambda: "recording" in states("trace"))
        connected.send(wire.CaptureCancel(id="trace"))
        heard.until(lambda: states("trace")[-1] == "cancelled")
    ended = next(one for one in heard.messages if isinstance(one, wire.PauseState) and one.state == "resumed")
    assert ended.paused_ns is not None


def test_an_old_training_that_refuses_says_why(played: Play, runtime_dir: Path) -> None:
    played("refused")
    with (
        Connection.open(runtime_dir / SOCKET) as refused,
        pytest.raises(UnusableInput, match="refused: it speaks"),
    ):
        Heard(refused).to_the_end()


# --- an old monitor, a new training ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def old_wire() -> ModuleType:
    """The old version's own wire.py."""
    module = ModuleType("old_wire")
    sys.modules["old_wire"] = module  # where msgspec looks for what annotations name
    SourceFileLoader("old_wire", str(OLD / "wire.py.txt")).exec_module(module)
    return module


@pytest.fixture(scope="module")
def training() -> Iterator[Path]:
    """The socket of a training of this version; all tests share it, for importing torch takes seconds."""
    needs("torch")
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.record_wire", "--train"],
            env=environment(LLMTOP_DIR=folder, RANK="1", WORLD_SIZE="2"),
        )
        try:
            yield wait_for(lambda: list(Path(folder).glob("*.sock")), 100, "an attached training")[0]
        finally:
            process.kill()
            process.wait()


class OldMonitor:
    """Says what an old monitor said on one connection, and hears with its ears."""

    def __init__(self, path: Path, old: ModuleType, *said: Said) -> None:
        self.heard: list[Any] = []
        self._wire = old
        self._framer = old.Framer()
        self._said = [one for one in said if not one.by_training]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(30)
        self._socket.connect(os.fspath(path))

    def __enter__(self) -> OldMonitor:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def say(self, kind: str, **changed: object) -> None:
        """Say the next thing it said, which is of that type, but with these fields changed."""
        said = self._said.pop(0)
        assert said.kind == kind
        body = msgspec.msgpack.encode({**said.fields, **changed}) if changed else said.body
        self._socket.sendall(framed(body))

    def until(self, condition: Callable[[], object]) -> None:
        """Hear until `condition()` holds; the limit is against hanging."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"not heard; last: {self.heard[-3:]}"
            data = self._socket.recv(1 << 18)
            assert data, f"the training hung up; last: {self.heard[-3:]}"
            for body in self._framer.feed(data):
                self._hear(body)

    def _hear(self, body: bytes) -> None:
        try:
            self.heard.append(self._wire.decode_from_training(body))
        except msgspec.DecodeError:
            assert self._wire.is_newer_type(body), body  # such as its client passes over

    def all(self, kind: str) -> list[Any]:
        """All messages of that class."""
        return [message for message in self.heard if type(message).__name__ == kind]

    @property
    def steps(self) -> list[Any]:
        """All steps."""
        return [step for message in self.all("Steps") for step in message.steps]

    def states(self, name: str) -> list[str]:
        """How a capture or pause of that id went."""
        messages = [*self.all("CaptureState"), *self.all("PauseState")]
        return [message.state for message in messages if message.id == name]


def connection(name: str, number: int) -> list[Said]:
    """What was said on one connection of a talk."""
    said = talk(OLD / f"{name}.jsonl.xz")
    wanted = sorted({one.connection for one in said})[number]
    return [one for one in said if one.connection == wanted]


@pytest.mark.torch
def test_an_old_monitor_hears_of_a_training_all_it_knows_of(training: Path, old_wire: ModuleType) -> None:
    with OldMonitor(training, old_wire, *connection("watch", 0)) as monitor:
        monitor.until(lambda: monitor.heard)
        monitor.say("subscribe")
        monitor.until(lambda: monitor.all("Memory") and monitor.all("GpuTimes") and len(monitor.steps) > 20)
        hello = monitor.heard[0]
        assert (hello.protocol, hello.rank, hello.world_size) == (old_wire.PROTOCOL, 1, 2)
        assert training.name.startswith(f"{hello.pid}-")
        assert "torch.profiler" in hello.engines
        assert hello.pauses
        first = monitor.steps[0].index
        assert [step.index for step in monitor.steps] == list(range(first, first + len(monitor.steps)))
        assert {(step.tokens, step.samples) for step in monitor.steps} == {(4096, 8)}
        phases = ["dataload", "forward", "forward/layer", "backward", "optimizer"]
        assert [phase.name for phase in monitor.steps[-1].phases] == phases
        assert [name for name, _ns in monitor.all("GpuTimes")[-1].times[-1].phases] == phases
        assert monitor.all("Memory")[-1].reserved_bytes == 5 << 30
        assert {name for message in monitor.all("Steps") for name in message.metrics} == {"loss", "lr"}


@pytest.mark.torch
def test_an_old_monitor_pauses_and_captures_a_training(
    training: Path, old_wire: ModuleType, tmp_path: Path
) -> None:
    with OldMonitor(training, old_wire, *connection("orders", 0)) as monitor:
        monitor.say("subscribe")
        monitor.say("pause")
        monitor.until(lambda: monitor.states("first") == ["armed", "paused"])
        monitor.say("resume")
        monitor.until(lambda: monitor.states("first") == ["armed", "paused", "resumed"])
        done = len(monitor.steps)
        monitor.until(lambda: len(monitor.steps) > done + 5)
        monitor.say("pause")
        monitor.until(lambda: monitor.states("past") == ["armed", "late"])
        monitor.say("capture", path=str(tmp_path / "none.json"))
        monitor.until(lambda: "recording" in monitor.states("off"))
        monitor.say("capture_cancel")
        monitor.until(lambda: monitor.states("off")[-1] == "cancelled")
    with OldMonitor(training, old_wire, *connection("capture", 2)) as monitor:
        monitor.say("subscribe")
        (request,) = (one for one in connection("capture", 2) if one.kind == "capture")
        monitor.say("capture", path=str(tmp_path / "rank1.json"))
        monitor.until(lambda: monitor.states(request.fields["id"])[-1:] == ["done"])
        done = monitor.all("CaptureState")[-1]
        assert done.last_step - done.first_step == request.fields["steps"] - 1
        names = {str(event.get("name")) for event in json.loads(Path(done.path).read_bytes())["traceEvents"]}
        assert "forward" in names
    assert [file.name for file in tmp_path.iterdir()] == ["rank1.json"]


@pytest.mark.torch
def test_a_monitor_of_another_protocol_is_told_so_in_words_that_it_understands(
    training: Path, old_wire: ModuleType
) -> None:
    with OldMonitor(training, old_wire, *connection("refused", 0)) as monitor:
        monitor.say("subscribe")
        monitor.until(lambda: monitor.all("Refused"))
        assert "9.9" in monitor.all("Refused")[0].reason
    with OldMonitor(training, old_wire, *connection("watch", 0)) as neighbour:
        neighbour.say("subscribe")
        neighbour.until(lambda: neighbour.steps)


# --- old files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """The folder of captures that the old version wrote."""
    with tarfile.open(OLD / "captures.tar.xz") as packed:
        packed.extractall(tmp_path / "captures", filter="data")
    return tmp_path / "captures"


def test_an_old_recording_plays_and_is_reported_on(tmp_path: Path) -> None:
    played = [json.loads(line) for line in llmtop("replay", "--json", OLD / "run.llmtop").splitlines()]
    old = [snapshot["ranks"] for snapshot in recorded()]
    kept = [[{name: rank[name] for name in rank.keys() - MADE_ANEW} for rank in ranks] for ranks in old]
    assert holds([snapshot["ranks"] for snapshot in played], kept)
    assert {snapshot["schema"] for snapshot in played} == {2}
    figured = [rank for snapshot in played for rank in snapshot["ranks"] if rank["window_steps"]]
    assert figured
    assert all(map(adds_up, figured))
    report = json.loads(llmtop("report", "--json", OLD / "run.llmtop"))
    assert report["steps"]["count"] > 0
    assert "dataload" in {phase["name"] for phase in report["phases"]}


def test_old_captures_are_listed_and_reported_on(captures: Path) -> None:
    (listed,) = (json.loads(line) for line in llmtop("captures", "--out", captures, "--json").splitlines())
    (folder,) = captures.iterdir()
    info = json.loads((folder / "capture.json").read_text())
    assert Path(listed["folder"]).name == folder.name
    assert holds(listed["capture"], info)
    new, old = json.loads(llmtop("report", "--json", folder)), json.loads((OLD / "report.json").read_text())
    for name in ("steps", "verdict"):
        assert holds(new[name], old[name]), name
    assert holds(new["phases"][: len(old["phases"])], old["phases"])


def test_an_old_report_is_compared(captures: Path) -> None:
    (folder,) = captures.iterdir()
    told = json.loads(llmtop("compare", "--json", OLD / "report.json", folder))
    assert told["step"]["change_pct"] == pytest.approx(0)
    assert not told["bottleneck_changed"]
    assert "forward" in llmtop("report", OLD / "report.json")
