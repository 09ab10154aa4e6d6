"""Children of a training, and whoever else comes to its socket."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.protocol import wire
from llmtop.protocol.client import Connection, ConnectionClosed
from tests.support import wire_peer
from tests.support.processes import environment, wait_for
from tests.support.trainings import PATIENT_SERVER, STEPPING, Heard, Training, connect, socket_of, sockets

OPEN_SOCKETS = """
def open_sockets():
    import os
    links = []
    for name in os.listdir("/proc/self/fd"):
        try: links.append(os.readlink("/proc/self/fd/" + name))
        except OSError: pass
    return [link for link in links if "socket" in link or "eventfd" in link or "eventpoll" in link]
"""


# --- children ----------------------------------------------------------------------------------------------------


def test_a_forked_child_inherits_nothing_and_takes_nothing_away(runtime_dir: Path) -> None:
    script = (
        PATIENT_SERVER
        + OPEN_SOCKETS
        + """
import os, sys
import llmtop
llmtop.attach()
input()
for number in range(20):
    with llmtop.step():
        with llmtop.phase("forward"):
            pid = os.fork()
            if pid == 0:
                with llmtop.phase("in a worker"): pass
                sys.exit(len(open_sockets()))  # runs atexit
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    )
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        training.go()
        heard.to_the_end()
        training.finish()
    assert heard.ordinals == list(range(20))
    assert all([phase.name for phase in step.phases] == ["forward"] for step in heard.steps)
    assert heard.connection.hello.note is None


def test_a_forked_child_that_trains_publishes_for_itself(runtime_dir: Path) -> None:
    script = """
import os, sys
import llmtop
with llmtop.step(): pass
if os.fork() == 0:
    for number in range(3):
        with llmtop.step(index=100 + number): pass
    sys.stdin.readline()
    os._exit(0)
os.wait()
"""
    with Training(script) as training:
        wait_for(lambda: len(sockets(runtime_dir)) == 2)
        by_pid = {file.pid: Heard(Connection.open(file.path, timeout_s=20)) for file in sockets(runtime_dir)}
        parent = by_pid.pop(training.pid)
        ((child_pid, child),) = by_pid.items()
        parent.until(lambda: parent.steps)
        child.until(lambda: len(child.steps) == 3)
        assert child.connection.host_pid == child_pid
        assert [step.index for step in parent.steps] == [0]
        assert [step.index for step in child.steps] == [100, 101, 102]
        training.go()
        training.finish()


@pytest.mark.parametrize("told", ["nothing", "ctypes.c_void_p"])
def test_no_event_of_the_gpu_is_destroyed_in_a_forked_child(told: str, runtime_dir: Path) -> None:
    argument = "" if told == "nothing" else f"ctypes.pythonapi.Py_IncRef.argtypes = [{told}]"
    script = (
        f"""
import ctypes, gc, os, sys, types
{argument}
"""
        + """
import llmtop
from llmtop.instrument.gpu.clock import GpuClock
from llmtop.instrument.gpu.events import CudaEvents
from llmtop.instrument.gpu.logged_tensors import GpuMetrics
from llmtop.instrument.record import recorder

class Event:
    def __init__(self, enable_timing=False):
        self.pid = os.getpid()
    def record(self, stream=None): pass
    def query(self): return True
    def elapsed_time(self, other): return 1.0
    def __del__(self, here=os.getpid, abort=os.abort):  # as torch's does in a process that CUDA does not work in
        if here() != self.pid:
            abort()

class Cuda:
    Event = Event
    is_current_stream_capturing = staticmethod(lambda: False)
    current_stream = staticmethod(Event)

llmtop.attach()
r = recorder.get()
with llmtop.step(): pass
r.clock = GpuClock(CudaEvents(Cuda))
r.gpu_metrics = GpuMetrics(Cuda)
class Tensor:  # as much of one as a logged value needs
    dtype = "float32"
    def numel(self): return 1
    def detach(self): return self
    def reshape(self, size): return self
    def copy_(self, other, non_blocking): pass
sys.modules["torch"] = types.SimpleNamespace(empty=lambda *_, **__: Tensor())
r.gpu_metrics.take("loss", Tensor())
del sys.modules["torch"]
r.clock.begin()
r.clock.mark(1, True)
assert [type(one) for one in gc.get_objects()].count(Event) >= 2
for end in ("sys.exit", "os._exit"):
    pid = os.fork()
    if pid == 0:
        gc.collect()
        with llmtop.step(): pass
        assert r.clock is None
        eval(end)(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, end
sys.stdin.readline()
"""
    )
    with Training(script) as training:
        training.go()
        training.finish()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_use_phases_open_no_socket(runtime_dir: Path, tmp_path: Path, method: str) -> None:
    (tmp_path / "script.py").write_text(
        f"""{PATIENT_SERVER}
import multiprocessing, os
import llmtop
llmtop.attach()  # at the top of the script, so a spawned worker runs it again

@llmtop.phase("decode")
def decode(number):
    return number * 2, len([name for name in os.listdir(os.environ["LLMTOP_DIR"])])

if __name__ == "__main__":
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        for answer in llmtop.loader(pool.imap(decode, range(20))):
            with llmtop.step(): pass
            assert answer[1] == 1, answer
    print("trained", flush=True)
    input()
"""
    )
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        heard = Heard(Connection.open(socket_of(runtime_dir, process.pid), timeout_s=20))
        heard.until(lambda: len(heard.steps) == 20)
        assert all([phase.name for phase in step.phases] == ["dataload"] for step in heard.steps)
        assert process.communicate("\n", timeout=30)[0] == "trained\n"
    finally:
        process.kill()


def test_a_training_that_execs_another_program_leaves_no_open_socket(runtime_dir: Path) -> None:
    script = (
        OPEN_SOCKETS
        + f"""
import os, sys
import llmtop
with llmtop.step(): pass
assert open_sockets()
input()
os.execv(sys.executable, [sys.executable, "-c", {OPEN_SOCKETS!r} + "print(open_sockets(), flush=True); input()"])
"""
    )
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        training.go()
        heard.to_the_end()
        training.hear("[]")
        with pytest.raises(ConnectionClosed):
            Connection.open(socket_of(runtime_dir, training.pid))


# --- a monitor that is none --------------------------------------------------------------------------------------


def raw(path: Path) -> socket.socket:
    """A bare connection, past the Hello."""

    def connected() -> socket.socket | None:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.settimeout(20)
        try:
            channel.connect(str(path))
        except ConnectionRefusedError:  # the file is there a moment before anybody listens
            channel.close()
            return None
        return channel

    channel = wait_for(connected)
    (length,) = struct.unpack("<I", channel.recv(4, socket.MSG_WAITALL))
    assert isinstance(wire.decode_from_training(channel.recv(length, socket.MSG_WAITALL)), wire.Hello)
    return channel


def last_words(channel: socket.socket) -> list[wire.FromTraining]:
    """What the training still says before it hangs up."""
    framer = wire.Framer()
    messages = []
    while data := channel.recv(1 << 16):
        messages += [wire.decode_from_training(body) for body in framer.feed(data)]
    return messages


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (frame(b"garbage"), "not a message of llmtop"),
        (b"GET / HTTP/1.1\r\n\r\n", "a message of"),
        (struct.pack("<I", wire.MAX_FRAME + 1), "a message of"),
        (frame(msgspec.msgpack.encode({"type": "subscribe", "protocol": 99, "version": "9"})), "protocol 1"),
        (frame(msgspec.msgpack.encode({"type": "subscribe", "protocol": 0})), "protocol 1"),
        (frame(msgspec.msgpack.encode({"type": "subscribe", "protocol": 1, "history": "all"})), "not a message"),
        (frame(msgspec.msgpack.encode({"type": "capture", "protocol": 1})), "not a message"),
        (frame(msgspec.msgpack.encode([1, 2, 3])), "not a message"),
    ],
)
def test_a_monitor_that_talks_nonsense_is_told_and_hung_up_on(runtime_dir: Path, sent: bytes, reason: str) -> None:
    with Training(STEPPING) as training:
        path = socket_of(runtime_dir, training.pid)
        with raw(path) as channel:
            channel.sendall(sent)
            (refused,) = last_words(channel)
        assert isinstance(refused, wire.Refused)
        assert reason in refused.reason
        heard = Heard(Connection.open(path, timeout_s=20))
        heard.until(lambda: len(heard.steps) > 5)
        training.kill()
        assert training.communicate(timeout=240)[1] == ""


def test_half_frames_unread_answers_and_sudden_ends_disturb_nobody(runtime_dir: Path) -> None:
    subscribe = wire.encode(wire.Subscribe(history=100_000))
    with Training(STEPPING) as training:
        path = socket_of(runtime_dir, training.pid)
        half, slow, newer = raw(path), raw(path), raw(path)
        half.sendall(subscribe[:3])
        for byte in subscribe:
            slow.sendall(bytes([byte]))
        newer.sendall(frame(msgspec.msgpack.encode({"type": "wave", "protocol": 1})) + subscribe)
        for _ in range(20):
            with raw(path) as sudden:
                sudden.sendall(subscribe)
        for channel in (slow, newer):
            assert channel.recv(1)
        heard = Heard(Connection.open(path, timeout_s=20))
        heard.until(lambda: len(heard.steps) > 50)
        assert heard.lost == 0
        for channel in (half, slow, newer):
            channel.close()
        training.kill()
        assert training.communicate(timeout=240)[1] == ""


def test_more_monitors_than_there_is_room_for_are_told(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        path = socket_of(runtime_dir, training.pid)
        many = [Connection.open(path, timeout_s=20) for _ in range(32)]
        with pytest.raises(UnusableInput, match="32 monitors"):
            Connection.open(path, timeout_s=20)
        many.pop().close()
        wait_for(lambda: _opens(path))
        for connection in many:
            connection.close()


def _opens(path: Path) -> bool:
    try:
        Connection.open(path, timeout_s=20).close()
    except (UnusableInput, ConnectionError):
        return False
    return True


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@needs_root
def test_a_monitor_of_another_user_is_hung_up_on_without_a_word(runtime_dir: Path) -> None:
    intrude = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
channel.connect(sys.argv[1])
print(channel.recv(100))
"""
    with Training(STEPPING) as training:
        path = socket_of(runtime_dir, training.pid)
        runtime_dir.chmod(0o755)
        path.chmod(0o777)
        answer = subprocess.run(
            [sys.executable, "-c", intrude, str(path)], capture_output=True, text=True, check=False, timeout=30
        )
        assert answer.stdout == "b''\n", answer.stderr
        heard = Heard(Connection.open(path, timeout_s=20))
        heard.until(lambda: heard.steps)


@needs_root
def test_a_monitor_refuses_a_training_of_another_user(runtime_dir: Path) -> None:
    impostor = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(sys.argv[1])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
listener.listen()  # whose credentials the other side sees
print("ready", flush=True)
listener.accept()
input()
"""
    path = runtime_dir / "1-00000000.sock"
    process = subprocess.Popen(
        [sys.executable, "-c", impostor, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(NotPossibleHere, match="uid 65534"):
            Connection.open(path)
    finally:
        process.kill()


# --- a training that is none -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (frame(b"garbage"), "not a message of llmtop"),
        (struct.pack("<I", 1 << 30), "1,073,741,824 bytes"),
        (frame(msgspec.msgpack.encode({"type": "hello", "protocol": 2, "version": "3.0"})), "upgrade this llmtop"),
        (frame(msgspec.msgpack.encode({"type": "hello", "protocol": 0})), "restart the training"),
        (frame(msgspec.msgpack.encode({"type": "hello", "protocol": 1, "rank": "first"})), "not a message"),
        (wire.encode(wire.Steps(steps=[])), "not an attached training"),
        (wire.encode(wire.Refused(reason="32 monitors")), "refused a request of this llmtop: 32 monitors"),
    ],
)
def test_a_monitor_refuses_what_is_no_training_with_one_sentence(
    runtime_dir: Path, sent: bytes, sentence: str
) -> None:
    path = runtime_dir / "4242-0123abcd.sock"
    peer = wire_peer.start(path, sent)
    try:
        with pytest.raises(UnusableInput, match=sentence) as caught:
            Connection.open(path, timeout_s=20)
        assert "\n" not in str(caught.value)
    finally:
        peer.kill()
        peer.wait(100)


def test_what_came_before_the_garbage_is_handed_over_first(runtime_dir: Path) -> None:
    path = runtime_dir / "4242-0123abcd.sock"
    good = wire.encode(wire.Steps(steps=[wire.StepDone(0, 1, 2)]))
    newer = frame(msgspec.msgpack.encode({"type": "wave"}))
    peer = wire_peer.start(path, wire.encode(wire.Hello()), (newer + good + frame(b"garbage")).hex())
    try:
        connection = Connection.open(path, timeout_s=20)
        messages = wait_for(lambda: connection.receive(5))
        assert [type(message) for message in messages] == [wire.Steps]
        with pytest.raises(UnusableInput, match="not a message"):
            connection.receive(5)
    finally:
        peer.kill()
        peer.wait(100)


def test_nothing_within_the_time_is_an_empty_list_and_a_hang_up_is_said(runtime_dir: Path) -> None:
    path = runtime_dir / "4242-0123abcd.sock"
    peer = wire_peer.start(path, wire.encode(wire.Hello(rank=5)))
    try:
        connection = Connection.open(path, timeout_s=20)
        assert connection.hello.rank == 5
        assert connection.host_pid == peer.pid
        assert connection.receive(0) == []
        peer.kill()
        with pytest.raises(ConnectionClosed):
            wait_for(lambda: connection.receive(0.1))
        with pytest.raises(ConnectionClosed):
            connection.send(wire.CaptureCancel(id="x"))
    finally:
        peer.kill()
        peer.wait(100)


def test_a_forked_child_is_warned_of_its_own(runtime_dir: Path) -> None:
    script = """
import os, sys
def twice():
    for _ in range(2): llmtop.attach(total_steps="many")
twice()
if os.fork() == 0:
    twice()
    sys.exit()
os.wait()
"""
    with Training(f"import llmtop\n{script}") as training:
        _, err = training.communicate(timeout=240)
    assert training.returncode == 0
    assert err.count("attach(total_steps=) takes") == 2, err
