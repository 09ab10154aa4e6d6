"""Record what a version of llmtop says and hears on its sockets, and the files that it writes, for later versions.

    git worktree add /tmp/old COMMIT --detach
    unshare --uts sh -c 'hostname trainer; cd /tmp/old
        PATH=VENV/bin:$PATH PYTHONPATH=/tmp/old python REPOSITORY/tests/support/record_wire.py OUT'

VENV is one with PyTorch; the llmtop of PYTHONPATH is the one that is recorded, on both sides. OUT should be a
short and neutral path, for it stands in what is recorded, as the name of the host does. Afterwards it has

    watch, capture, orders, refused .jsonl.xz   what went over the socket, see `Talk`
    run.llmtop        what the monitor of `watch` recorded of it
    captures.tar.xz   one capture with torch.profiler
    report.json       the report on it
    wire.py.txt       that version's llmtop/protocol/wire.py: what it can decode

The training is real but for its GPU. A stand-in passes events as soon as they are recorded, so that messages with
GPU times and the allocator's figures are sent.
"""

from __future__ import annotations

import base64
import contextlib
import json
import lzma
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STEP_SECONDS = 0.02
TOTAL_STEPS = 1_000_000
TOTAL_STEPS_LATER = 2_000_000
RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}


class Talk:
    """What went over the connections of a while: a line for each recv(), in the order in which they came.

    ``{"connection": 0, "from": "training" or "monitor", "bytes": base64}``; empty bytes are the end of that
    direction.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._lines: list[str] = []

    def add(self, connection: int, side: str, data: bytes) -> None:
        """Add what was received."""
        line = {"connection": connection, "from": side, "bytes": base64.b64encode(data).decode()}
        with self._lock:
            self._lines.append(json.dumps(line))

    def save(self) -> None:
        """Write the file."""
        self._path.write_bytes(lzma.compress("".join(f"{line}\n" for line in self._lines).encode(), preset=9))


class Tap:
    """Listens where a monitor looks, passes all on to the training's socket and back, and keeps it."""

    def __init__(self, folder: Path, training: Path) -> None:
        self.talk: Talk | None = None
        self._training = training
        self._count = 0
        folder.mkdir(mode=0o700)
        self.path = folder / f"{os.getpid()}-00000000.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.fspath(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            monitor, _ = self._listener.accept()
            training = socket.socket(socket.AF_UNIX)
            try:
                training.connect(os.fspath(self._training))
            except OSError:  # it has ended
                monitor.close()
                continue
            threading.Thread(target=self._pass_on, args=(self._count, monitor, training), daemon=True).start()
            self._count += 1

    def _pass_on(self, number: int, monitor: socket.socket, training: socket.socket) -> None:
        names = {monitor: "monitor", training: "training"}
        while True:
            readable, _, _ = select.select([training, monitor], [], [])
            for source in readable:
                target = training if source is monitor else monitor
                try:
                    data = source.recv(1 << 16)
                except ConnectionResetError:
                    data = b""
                if self.talk is not None:
                    self.talk.add(number, names[source], data)
                if not data:
                    monitor.close()
                    training.close()
                    return
                with contextlib.suppress(BrokenPipeError):  # the next read tells
                    target.sendall(data)


def record(out: Path) -> None:
    """Record all of it."""
    ours, theirs = out / "tap", out / "training"
    environment = {**os.environ, **RANK, "LLMTOP_DIR": str(theirs)}
    training = subprocess.Popen(["python", __file__, "--train"], env=environment)
    try:
        tap = Tap(ours, _socket_in(theirs))
        os.environ["LLMTOP_DIR"] = str(ours)
        time.sleep(100 * STEP_SECONDS)
        with _talk(tap, out / "capture.jsonl.xz"):
            _llmtop(
                "capture", f"--pid={os.getpid()}", "-e", "torch.profiler", "--steps=2", f"--out={out}/captures"
            )
        with _talk(tap, out / "orders.jsonl.xz"):
            _give_orders(tap.path)
        with _talk(tap, out / "refused.jsonl.xz"):
            _be_refused(tap.path)
        with _talk(tap, out / "watch.jsonl.xz"):
            command = [sys.executable, "-m", "llmtop", "record", "-i", "0.5", "-s", "5", str(out / "run.llmtop")]
            monitor = subprocess.Popen(command)
            time.sleep(2)
            training.send_signal(signal.SIGUSR1)
            time.sleep(1)
            training.send_signal(signal.SIGTERM)
            monitor.wait()
        (capture,) = (out / "captures").iterdir()
        (out / "report.json").write_text(_llmtop("report", "--json", str(capture)))
    finally:
        training.kill()
        training.wait()
    import llmtop.protocol.wire

    shutil.copy(str(llmtop.protocol.wire.__file__), out / "wire.py.txt")
    with tarfile.open(out / "captures.tar.xz", "w:xz") as packed:
        packed.add(capture, capture.name)
    for path in (ours, theirs, out / "captures"):
        shutil.rmtree(path)
    os.remove(__file__)


@contextlib.contextmanager
def _talk(tap: Tap, path: Path) -> Iterator[None]:
    talk = tap.talk = Talk(path)
    yield
    time.sleep(0.3)  # the last of it is still on its way
    tap.talk = None
    talk.save()


def _socket_in(folder: Path) -> Path:
    while True:
        for path in folder.glob("*.sock"):
            return path
        time.sleep(0.1)


def _llmtop(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "llmtop", *arguments], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _give_orders(path: Path) -> None:
    """Pause, pause at a step that is over, and call a capture off."""
    from llmtop.protocol import wire
    from llmtop.protocol.client import Connection

    with Connection.open(path, history=8) as connection:

        def until(name: str, *states: str) -> None:
            while not any(
                isinstance(one, wire.CaptureState | wire.PauseState) and one.id == name and one.state in states
                for one in connection.receive(1.0)
            ):
                pass

        connection.send(wire.Pause(id="first", seconds=5.0, drain_seconds=3.0))
        until("first", "paused")
        connection.send(wire.Resume(id="first"))
        until("first", "resumed")
        connection.send(wire.Pause(id="past", finished=3, seconds=5.0, drain_seconds=3.0))
        until("past", "late")
        trace = os.fspath(path.with_name("none.json"))
        connection.send(wire.CaptureRequest(id="off", engine="torch.profiler", path=trace, steps=500))
        until("off", "recording")
        connection.send(wire.CaptureCancel(id="off"))
        until("off", "cancelled")


def _be_refused(path: Path) -> None:
    from llmtop.protocol import wire

    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.connect(os.fspath(path))
        monitor.recv(1 << 16)  # its Hello
        monitor.sendall(wire.encode(wire.Subscribe(protocol=wire.PROTOCOL + 1, version="9.9")))
        while monitor.recv(1 << 16):
            pass


def train() -> None:
    """Be the training: SIGUSR1 has it say something new about itself, SIGTERM ends it after the step."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    import llmtop

    _stand_in_for(torch.cuda)
    asked: set[int] = set()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: asked.add(number))
    torch.set_num_threads(1)
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    llmtop.attach(total_steps=TOTAL_STEPS, warmup_steps=3, flops_per_token=1e9, dtype="bf16")
    for index in range(TOTAL_STEPS):
        with llmtop.step(tokens=4096, samples=8):
            with llmtop.phase("dataload"):
                time.sleep(STEP_SECONDS / 2)
            with llmtop.phase("forward"):
                for _ in range(2):
                    with llmtop.phase("layer"):
                        loss = model(torch.randn(8, 32)).square().mean()
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            time.sleep(STEP_SECONDS / 2)
        llmtop.log(loss=float(loss.detach()), lr=0.01 / (index + 1))
        if signal.SIGUSR1 in asked:
            llmtop.attach(total_steps=TOTAL_STEPS_LATER)
        if signal.SIGTERM in asked:
            break


def _stand_in_for(cuda: Any) -> None:
    class Event:
        def __init__(self, **_options: bool) -> None:
            self.at = 0.0

        def record(self, _stream: object) -> None:
            self.at = time.perf_counter()

        def query(self) -> bool:
            return True

        def elapsed_time(self, later: Event) -> float:
            return (later.at - self.at) * 1e3

    class Stream:
        query = staticmethod(lambda: False)

    class Properties:
        uuid = "00000000-0000-0000-0000-000000000001"

    figures = {"allocated_bytes.all.current": 3 << 30, "reserved_bytes.all.current": 5 << 30}
    figures |= {"allocated_bytes.all.peak": 4 << 30, "num_alloc_retries": 1, "num_ooms": 0}
    cuda.Event = Event
    cuda.current_stream = Stream
    cuda.get_device_properties = lambda _device: Properties
    cuda.memory_stats = lambda: figures
    cuda.is_initialized = lambda: True
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 1
    cuda.synchronize = lambda _device: None
    cuda.is_current_stream_capturing = lambda: False


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train()
    elif Path(__file__).parent == Path(sys.argv[1]):
        record(Path(sys.argv[1]))
    else:  # commands are recorded too: from there, so that they say nothing of whose machine it was
        copy = shutil.copy(__file__, sys.argv[1])
        os.execvp("python", ["python", copy, sys.argv[1]])
