"""A training and its monitors as real processes: what is sent, to whom, and what of it is lost."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from llmtop.protocol import wire
from llmtop.protocol.client import Connection, ConnectionClosed, NoReply, remove_stale
from tests.support.processes import environment, stop, wait_for
from tests.support.trainings import PATIENT_SERVER, STEPPING, Heard, Training, connect, socket_of, sockets


def test_a_late_monitor_gets_the_history_and_then_each_step(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        first = Heard(connect(runtime_dir, training))
        first.until(lambda: len(first.steps) > 100)
        late = Heard(connect(runtime_dir, training, history=50))
        late.until(lambda: len(late.steps) > 80)
        first.until(lambda: len(first.steps) > late.ordinals[0])
    assert first.ordinals == list(range(len(first.steps)))
    old = [batch for batch in late.batches if batch.history]
    assert sum(len(batch.steps) for batch in old) == 50
    assert late.ordinals == list(range(late.ordinals[0], late.ordinals[0] + len(late.steps)))
    assert late.ordinals[0] >= 50
    assert late.lost == 0
    assert late.steps[0] == first.steps[late.ordinals[0]]
    assert [phase.name for phase in late.steps[-1].phases] == ["forward"]


def test_a_monitor_may_ask_for_no_history(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        Heard(connect(runtime_dir, training)).until(lambda: sockets(runtime_dir))
        time.sleep(0.1)
        heard = Heard(connect(runtime_dir, training, history=0))
        heard.until(lambda: heard.steps)
    assert not any(batch.history for batch in heard.batches)
    assert heard.lost == 0


def test_hello_says_who_the_process_is_and_again_when_that_changes(runtime_dir: Path) -> None:
    script = """
import llmtop, sys
llmtop.attach(total_steps=500, params=1e9, dtype="bf16")
input()
llmtop.attach(total_steps=600, warmup_steps=3)
with llmtop.step(): pass
input()
"""
    with Training(script, RANK="3", LOCAL_RANK="1", WORLD_SIZE="8") as training:
        heard = Heard(connect(runtime_dir, training))
        hello = heard.connection.hello
        assert (hello.rank, hello.local_rank, hello.world_size) == (3, 1, 8)
        assert (hello.pid, heard.connection.host_pid) == (training.pid, training.pid)
        assert (hello.total_steps, hello.flops_per_token, hello.dtype, hello.warmup_steps) == (
            500,
            6e9,
            "bf16",
            10,
        )
        assert hello.kind == "step"
        assert "-c" in hello.command
        assert hello.host
        assert hello.torch is None
        assert hello.gpu_uuid is None
        training.go()
        heard.until(lambda: heard.connection.hello.total_steps == 600 and heard.steps)
        assert heard.connection.hello.warmup_steps == 3
        assert heard.connection.hello.flops_per_token == 6e9


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("sys.exit(7)", 7), ("raise SystemError('x')", 1)])
def test_at_the_end_the_last_steps_arrive_and_the_socket_is_gone(
    runtime_dir: Path, ending: str, code: int
) -> None:
    script = f"""{PATIENT_SERVER}
import llmtop, sys
llmtop.attach()
input()
for number in range(300):
    with llmtop.step(): pass
    llmtop.log(loss=number, lr=0.5)
{ending}
"""
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        training.go()
        heard.to_the_end()
        training.finish(code)
    assert heard.ordinals == list(range(300))
    assert heard.metrics == {"loss": 299.0, "lr": 0.5}
    assert sockets(runtime_dir) == []


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_ten_thousand_steps_a_second_arrive_or_are_counted_as_lost(runtime_dir: Path) -> None:
    script = """
import llmtop, time
llmtop.attach()
input()
begun, done = time.perf_counter(), 0
while done < 40_000:
    with llmtop.step(), llmtop.phase("forward"): pass
    done += 1
    while done > 10_000 * (time.perf_counter() - begun): pass
input()  # a process that ends waits only a moment for its monitors
"""
    with Training(script) as training:
        reader = Heard(connect(runtime_dir, training))
        sleeper = Heard(connect(runtime_dir, training))
        training.go()
        reader.until(
            lambda: (batch := reader.batches[-1:]) and batch[0].first_ordinal + len(batch[0].steps) == 40_000
        )
        training.go()
        reader.to_the_end()
        sleeper.to_the_end()
        training.finish()
    for heard in (reader, sleeper):
        first = heard.batches[0].first_ordinal - heard.batches[0].lost
        assert len(heard.steps) + heard.lost == heard.ordinals[-1] + 1 - first
        assert heard.ordinals == sorted(set(heard.ordinals))
        assert [step.index for step in heard.steps] == heard.ordinals
    assert reader.ordinals[-1] == 39_999
    assert len(sleeper.steps) < 40_000  # what was not read did not pile up in the training


def test_a_stopped_monitor_holds_up_neither_the_training_nor_another_monitor(runtime_dir: Path) -> None:
    watch = """
import sys
from pathlib import Path
from llmtop.protocol.client import Connection
from llmtop.protocol import wire
connection = Connection.open(Path(sys.argv[1]), timeout_s=60)
print("subscribed", flush=True)
steps, lost, first = 0, 0, None
try:
    while True:
        for message in connection.receive(5):
            if isinstance(message, wire.Steps):
                if first is None:
                    first = message.first_ordinal - message.lost
                steps, lost = steps + len(message.steps), message.lost
                last = message.first_ordinal + len(message.steps)
                if last == 40_000:
                    print("has all", flush=True)
except ConnectionError:
    print(steps, lost, first, last)
"""
    script = """
import llmtop
llmtop.attach()
for round in range(2):
    input()
    for number in range(20_000):
        with llmtop.step(), llmtop.phase("forward"): pass
    print("done", flush=True)
input()
"""
    with Training(script) as training:
        path = socket_of(runtime_dir, training.pid)
        stopped = subprocess.Popen(
            [sys.executable, "-c", watch, str(path)], env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "subscribed\n"
        os.kill(stopped.pid, signal.SIGSTOP)
        other = Heard(connect(runtime_dir, training))
        training.go()
        training.hear("done")
        other.until(lambda: other.ordinals and other.ordinals[-1] == 19_999)
        os.kill(stopped.pid, signal.SIGCONT)
        training.go()
        training.hear("done")
        other.until(lambda: other.ordinals[-1] == 39_999)
        assert stopped.stdout.readline() == "has all\n"  # a process that ends waits only a moment for its monitors
        training.go()
        training.finish()
        steps, lost, first, last = map(int, stopped.communicate(timeout=240)[0].split())
    assert last == 40_000
    assert steps + lost == last - first
    assert lost > 0


def test_a_stopped_training_does_not_answer_and_is_told_from_a_dead_one(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        path = socket_of(runtime_dir, training.pid)
        stop(training.pid)
        with pytest.raises(NoReply, match="stopped") as caught:
            Connection.open(path, timeout_s=0.3)
        assert caught.value.host_pid == training.pid
        assert not remove_stale(path)
        os.kill(training.pid, signal.SIGCONT)
        Connection.open(path, timeout_s=20).close()
        training.kill()
        training.wait(100)
        with pytest.raises(ConnectionClosed):
            Connection.open(path)


def test_a_killed_training_is_seen_to_go_and_its_socket_is_cleaned_up_by_the_monitor(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: len(heard.steps) > 10)
        path = socket_of(runtime_dir, training.pid)
        assert not remove_stale(path)
        training.kill()
        heard.to_the_end()
    assert path.exists()
    assert remove_stale(path)
    assert not path.exists()
    assert not remove_stale(path)


def test_the_next_training_cleans_up_after_a_killed_one_and_leaves_a_running_one_alone(runtime_dir: Path) -> None:
    with Training(STEPPING) as running, Training(STEPPING) as killed:
        socket_of(runtime_dir, running.pid)
        socket_of(runtime_dir, killed.pid)
        killed.kill()
        killed.wait(100)
        foreign = runtime_dir / "notes.txt"
        foreign.touch()
        with Training(STEPPING) as following:
            socket_of(runtime_dir, following.pid)
            assert {file.pid for file in sockets(runtime_dir)} == {running.pid, following.pid}
            assert foreign.exists()
            following.kill()
        running.kill()


@pytest.mark.slow("three monitors one after the other, for seconds")
def test_a_monitor_that_can_wait_wakes_the_training_less_often(runtime_dir: Path) -> None:
    script = """
import time
import llmtop
llmtop.attach()
while True:
    with llmtop.step():
        time.sleep(0.02)
"""

    def message_ends(every_ms: int) -> list[int]:
        """When the last step of each message ended, in nanoseconds."""
        heard = Heard(connect(runtime_dir, training, history=0, every_ms=every_ms))
        heard.until(lambda: len(heard.steps) > 120)
        assert heard.lost == 0
        heard.connection.close()
        last = [batch.steps[-1] for batch in heard.batches if batch.steps]
        return [step.started_unix_ns + step.host_ns for step in last]

    with Training(script) as training:
        unseen, waiting, impatient = message_ends(500), message_ends(200), message_ends(0)
    # A message is held for 75 to 100 % of what the monitor accepts: on a busy machine fewer steps end meanwhile.
    assert len(unseen) <= (unseen[-1] - unseen[0]) / 0.375e9 + 3
    assert len(waiting) <= (waiting[-1] - waiting[0]) / 0.15e9 + 3
    assert min(after - before for before, after in pairwise(impatient)) < 0.1e9


def test_steps_that_end_while_a_message_is_sent_go_with_the_next_one(runtime_dir: Path) -> None:
    script = """
import time
import llmtop
from llmtop.instrument.guest.descriptors import Channel
from llmtop.instrument.record.recorder import get
llmtop.attach()
send = Channel.send
def slow_send(self, data, flags=0):
    count, until = get().ring.count, time.monotonic() + 1
    sent = send(self, data, flags)
    while len(data) > 1 and get().ring.count == count and time.monotonic() < until:
        time.sleep(0.0005)
    return sent
Channel.send = slow_send
while True:
    with llmtop.step():
        time.sleep(0.005)
"""
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training, history=0, every_ms=200))
        heard.until(lambda: len(heard.steps) > 100)
    assert heard.lost == 0
    # A message holds back steps of 150 to 200 ms. By time: how many these are is up to how busy the machine is.
    messages = sum(bool(batch.steps) for batch in heard.batches)
    begun, ended = (step.started_unix_ns + step.host_ns for step in (heard.steps[0], heard.steps[-1]))
    assert messages <= (ended - begun) / 0.15e9 + 2


def test_what_goes_to_all_monitors_is_encoded_once(runtime_dir: Path) -> None:
    script = f"""{PATIENT_SERVER}
import collections, sys
import llmtop, llmtop.instrument.serve.publisher as news
llmtop.attach()
made, encode = collections.Counter(), news.encoded_steps
def counted(message, note):
    made[message.first_ordinal] += bool(message.steps)
    return encode(message, note)
news.encoded_steps = counted
print("ready", flush=True)
for number, _ in enumerate(sys.stdin):
    with llmtop.step(tokens=number): llmtop.log(loss=number)
print(sorted(made.items()), flush=True)
"""
    with Training(script) as training:
        assert training.stdout is not None
        assert training.stdin is not None
        assert training.stdout.readline() == "ready\n"
        all_heard = [Heard(connect(runtime_dir, training)) for _ in range(8)]
        late = 5
        for number in range(10):
            training.stdin.write("\n")
            training.stdin.flush()
            for heard in all_heard:
                heard.until(lambda heard=heard, number=number: len(heard.steps) == number + 1)
            if number == late:
                all_heard.append(Heard(connect(runtime_dir, training, history=100)))
                all_heard[-1].until(lambda: len(all_heard[-1].steps) == late + 1)
        training.stdin.close()
        for heard in all_heard:
            heard.to_the_end()
            assert heard.ordinals == list(range(10))
            assert [step.tokens for step in heard.steps] == list(range(10))
            assert heard.metrics == {"loss": 9.0}
        made = dict(ast.literal_eval(training.stdout.readline()))
    # The metric may change in the middle of a round, even of two in a row: then the monitors have received up to
    # three different states. There are nine of them.
    assert all(1 <= made[number] <= 3 for number in range(1, 10)), made


def test_what_a_process_that_crashed_had_half_made_is_removed_and_nothing_else(runtime_dir: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait(100)
    names = (f"{dead.pid}-0123abcd.new", f"{dead.pid}-try.new", f"{os.getpid()}-0123abcd.new")
    for name in names:
        with socket.socket(socket.AF_UNIX) as half_made:
            half_made.bind(os.fspath(runtime_dir / name))
    (runtime_dir / "notes.new").touch()
    with Training(STEPPING) as training:
        socket_of(runtime_dir, training.pid)
        assert sorted(path.name for path in runtime_dir.glob("*.new")) == sorted([names[2], "notes.new"])
        Heard(connect(runtime_dir, training)).until(lambda: True)
        training.kill()


@pytest.mark.slow("64 trainings at once; test_ranks_of_a_job_come_in_order has three")
def test_sixty_four_trainings_attach_at_once(runtime_dir: Path) -> None:
    # One parent forks them all: 64 interpreters started one by one would not begin at once.
    script = """
import atexit, os, sys, time
import msgspec, nvtx
import llmtop
pids = []
for rank in range(64):
    pids.append(os.fork())
    if pids[-1] == 0:
        os.environ["RANK"] = str(rank)
        llmtop.attach()
        while not os.path.exists(os.environ["LLMTOP_DIR"] + "/go"):
            time.sleep(0.02)
        for number in range(5):
            with llmtop.step(): pass
        while not os.path.exists(os.environ["LLMTOP_DIR"] + "/heard"):
            time.sleep(0.02)  # an exit waits only a limited time for unsent steps
        atexit._run_exitfuncs()
        os._exit(0)  # without the teardown of 64 interpreters, which takes minutes on a busy machine
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
"""
    with Training(script) as parent:
        wait_for(lambda: len(sockets(runtime_dir)) == 64, 60)
        all_heard = [Heard(Connection.open(file.path, timeout_s=20)) for file in sockets(runtime_dir)]
        assert sorted(heard.connection.hello.rank or 0 for heard in all_heard) == list(range(64))
        (runtime_dir / "go").touch()
        for heard in all_heard:
            heard.until(lambda heard=heard: len(heard.ordinals) >= 5, 240)
        (runtime_dir / "heard").touch()
        for heard in all_heard:
            heard.to_the_end()
            assert heard.ordinals == [0, 1, 2, 3, 4]
        parent.finish()
    assert sockets(runtime_dir) == []


SERVER_THREAD = """
import os
def server_thread():
    while True:  # a thread names itself once it runs
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/comm") as file:
                if file.read().strip() == "llmtop-server":
                    return int(task)
"""


def test_with_nobody_there_the_server_thread_never_wakes(runtime_dir: Path) -> None:
    script = (
        SERVER_THREAD
        + """
import llmtop, time
llmtop.attach()
server = server_thread()
def wakes():
    with open(f"/proc/self/task/{server}/status") as file:
        return [line for line in file if line.startswith("State:") or "ctxt_switches" in line]
while True:  # a thread that waits for a core does not wake either
    before = wakes()
    time.sleep(0.2)
    if "sleeping" in before[0] and wakes() == before: break
for _ in range(5000):
    with llmtop.step(), llmtop.phase("forward"): pass
time.sleep(0.3)
assert wakes() == before, (before, wakes())
"""
    )
    with Training(script) as training:
        training.finish()


def test_with_a_monitor_and_nothing_new_the_server_thread_sleeps(runtime_dir: Path) -> None:
    script = (
        SERVER_THREAD
        + """
import llmtop, threading, time
with llmtop.step(): pass
server = server_thread()
def wakes():
    with open(f"/proc/self/task/{server}/status") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
input()
time.sleep(0.5)
begun, before = time.monotonic(), wakes()
time.sleep(1)
woken, seconds = wakes() - before, time.monotonic() - begun
assert woken < 20 * seconds, "sixty times a second is the pace of steps; some ten are looks"
print("slept", flush=True)
input()
llmtop.log(loss=1.5)
input()
other = threading.Thread(target=llmtop.phase("elsewhere").__enter__)
other.start()
other.join()
input()
"""
    )
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: heard.steps)
        training.go()
        training.hear("slept")
        training.go()
        heard.until(lambda: any(batch.metrics.get("loss") == 1.5 for batch in heard.batches))
        training.go()
        before = len(heard.messages)
        heard.until(lambda: heard.connection.hello.note)
        assert len(heard.messages) - before < 5, "told once, not until the socket is full"
        training.go()
        training.finish()


def test_the_server_thread_takes_no_signal_from_the_training(runtime_dir: Path) -> None:
    script = (
        SERVER_THREAD
        + """
import llmtop
llmtop.attach()
server = server_thread()
def blocked(task):
    with open(f"/proc/self/task/{task}/status") as file:
        return int(next(line for line in file if line.startswith("SigBlk")).split()[1], 16)
import os, signal
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1):
    assert blocked(server) >> (number - 1) & 1
    assert not blocked(os.getpid()) >> (number - 1) & 1
"""
    )
    with Training(script) as training:
        training.finish()


@pytest.mark.slow("random or many inputs; a neighbour has one case of each kind")
def test_a_hundred_thousand_steps_take_no_more_memory(runtime_dir: Path) -> None:
    script = """
import llmtop
def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
def run(steps):
    for number in range(steps):
        with llmtop.step(tokens=number):
            with llmtop.phase("forward"):
                with llmtop.phase("attention"): pass
            with llmtop.phase("backward"): pass
        llmtop.log(loss=number * 0.5)
llmtop.attach()
input()
run(10_000)
before = rss()
run(100_000)
print(rss() - before, flush=True)
input()
"""
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        training.go()
        heard.until(
            lambda: (batch := heard.batches[-1:]) and batch[0].first_ordinal + len(batch[0].steps) == 110_000, 240
        )
        training.go()
        out, _ = training.finish()
    assert int(out) < 1 << 20


def test_what_a_capture_answers_reaches_the_monitor_that_asked(runtime_dir: Path) -> None:
    script = """
import llmtop, time
from llmtop.protocol import wire
from llmtop.instrument.record import recorder
llmtop.attach()
def on_capture(request, send):
    if request.id == "broken":
        raise RuntimeError("no profiler here")
    send(wire.CaptureState(id=request.id, state="armed", path=getattr(request, "path", "")))
recorder.get().server.on_capture = on_capture
while True:
    with llmtop.step(): time.sleep(0.005)
"""
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: heard.steps)

        def states() -> dict[str, wire.CaptureState]:
            return {state.id: state for state in heard.messages if isinstance(state, wire.CaptureState)}

        heard.connection.send(wire.CaptureRequest(id="a", engine="torch.profiler", path="/tmp/x.json"))
        heard.until(lambda: "a" in states())
        heard.connection.send(wire.CaptureRequest(id="broken", engine="torch.profiler", path="/tmp/x.json"))
        heard.until(lambda: "broken" in states())
        count = len(heard.steps)
        heard.until(lambda: len(heard.steps) > count)
    assert (states()["a"].state, states()["a"].path) == ("armed", "/tmp/x.json")
    assert states()["broken"].state == "failed"
    assert "no profiler here" in states()["broken"].detail
