"""A training that is asked for the stacks of its own threads: what it tells, and that nothing stays behind."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from llmtop.protocol import wire
from tests.support.processes import wait_for
from tests.support.trainings import STEPPING, Heard, Training, connect

THREADS = """
import sys, threading, time
import llmtop
def inner(lock):
    lock.acquire()
lock = threading.Lock()
lock.acquire()
thread = threading.Thread(target=inner, args=(lock,), name="reads \\x1b[2J ahead", daemon=True)
thread.start()
def frame():
    return sys._current_frames().get(thread.ident)
while not (at := frame()) or (at.f_code, at.f_lineno) != (inner.__code__, 5):
    time.sleep(0.001)
while True:
    with llmtop.step():
        time.sleep(0.002)
"""
MANY = """
import sys, threading, time
import llmtop
stop = threading.Event()
def deep(level):
    if level:
        deep(level - 1)
    else:
        stop.wait()
for level in range(300):
    names = {}
    exec(f"def {'f' * 100}{level}(): deep({level % 90})", {"deep": deep}, names)
    threading.Thread(target=next(iter(names.values())), daemon=True).start()
while True:
    with llmtop.step():
        time.sleep(0.002)
"""
ENDS = """
import sys, time
import llmtop
llmtop.attach()
sys.stdin.readline()
for _ in range(5):
    with llmtop.step():
        time.sleep(0.002)
print("done")
"""
FORKS = """
import os, sys, time
import llmtop
llmtop.attach()
sys.stdin.readline()
for _ in range(200):
    child = os.fork()
    if not child:
        os._exit(0 if len(os.listdir("/proc/self/task")) == 1 else 3)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
print("done", flush=True)
while True:
    with llmtop.step():
        time.sleep(0.002)
"""


def look(heard: Heard, name: str, seconds: float = 0.0) -> None:
    heard.connection.send(wire.SampleStacks(id=name, seconds=seconds, rate_hz=50.0))


def told(heard: Heard, name: str) -> wire.SampledStacks:
    def answers() -> list[wire.SampledStacks]:
        return [one for one in heard.messages if isinstance(one, wire.SampledStacks) and one.id == name]

    heard.until(lambda: bool(answers()))
    return answers()[0]


def of_thread(seen: wire.SampledStacks, name: str) -> list[list[str]]:
    """The functions of each stack of a thread, outermost first."""
    return [
        [seen.frames[place].name for place in stack.frames]
        for stack in seen.stacks
        if seen.threads[stack.thread].name == name
    ]


def names(pid: int) -> list[str]:
    """Of its threads, as the system knows them."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):  # it has ended meanwhile
            found.append(Path(f"/proc/{pid}/task/{task}/comm").read_text().strip())
    return found


def test_one_look_tells_every_threads_frames_and_lines(runtime_dir: Path) -> None:
    with Training(THREADS) as training:
        heard = Heard(connect(runtime_dir, training))
        assert heard.connection.hello.stacks
        look(heard, "a")
        seen = told(heard, "a")
        assert (seen.looks, seen.refused, seen.cut) == (1, "", 0)
        ((*_, innermost),) = of_thread(seen, "reads ·[2J ahead")
        assert innermost == "inner"
        (stack,) = [one for one in seen.stacks if seen.threads[one.thread].name.startswith("reads")]
        assert seen.frames[stack.frames[-1]].line == 5
        main = next(thread for thread in seen.threads if thread.name == "MainThread")
        assert main.os_id == training.pid


def test_looking_for_a_while_counts_and_leaves_no_thread(runtime_dir: Path) -> None:
    with Training(THREADS) as training:
        heard = Heard(connect(runtime_dir, training))
        look(heard, "a", seconds=60.0)
        wait_for(lambda: "llmtop-stacks" in names(training.pid), what="the thread that looks")
        steps = len(heard.messages)
        heard.until(lambda: len(heard.messages) > steps + 3)
        heard.connection.send(wire.StopSampling(id="another's"))
        heard.connection.send(wire.StopSampling(id="a"))
        seen = told(heard, "a")
        reads = [one for one in seen.stacks if seen.threads[one.thread].name.startswith("reads")]
        assert [one.looks for one in reads] == [seen.looks], "it stands still"
        wait_for(lambda: "llmtop-stacks" not in names(training.pid), what="the end of the thread that looks")
        look(heard, "b")
        assert told(heard, "b").looks == 1


def test_a_second_monitor_is_refused_meanwhile_and_the_steps_go_on_to_both(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        first, second = Heard(connect(runtime_dir, training)), Heard(connect(runtime_dir, training))
        look(first, "a", seconds=60.0)
        wait_for(lambda: "llmtop-stacks" in names(training.pid), what="the thread that looks")
        look(second, "b")
        assert "another monitor" in told(second, "b").refused
        for heard in (first, second):
            count = len(heard.messages)
            heard.until(lambda heard=heard, count=count: len(heard.messages) > count + 3)


def test_a_monitor_that_goes_away_ends_the_looking(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        heard, neighbour = Heard(connect(runtime_dir, training)), Heard(connect(runtime_dir, training))
        look(heard, "a", seconds=600.0)
        wait_for(lambda: "llmtop-stacks" in names(training.pid), what="the thread that looks")
        heard.connection.close()
        wait_for(lambda: "llmtop-stacks" not in names(training.pid), what="the end of the thread that looks")
        look(neighbour, "b")
        assert told(neighbour, "b").looks == 1
        assert training.poll() is None


def test_many_threads_with_long_names_fit_into_a_frame_and_what_is_left_out_is_counted(runtime_dir: Path) -> None:
    with Training(MANY) as training:
        heard = Heard(connect(runtime_dir, training))
        look(heard, "a", seconds=0.2)
        seen = told(heard, "a")
        assert len(wire.encode(seen)) <= wire.MAX_FRAME
        assert of_thread(seen, "MainThread")
        assert seen.cut >= 44 * seen.looks
        count = len(heard.messages)
        heard.until(lambda: len(heard.messages) > count)


def test_asking_without_end_is_refused_and_neighbours_are_served(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        heard, neighbour = Heard(connect(runtime_dir, training)), Heard(connect(runtime_dir, training))
        for number in range(60):
            look(heard, str(number))
        # Which ones is up to the time that the server takes for them: some are allowed each second.
        assert any("too often" in told(heard, str(number)).refused for number in range(60))
        count = len(neighbour.messages)
        neighbour.until(lambda: len(neighbour.messages) > count + 3)


def test_a_training_that_ends_while_it_is_looked_at_ends_as_it_would(runtime_dir: Path) -> None:
    with Training(ENDS) as training:
        heard = Heard(connect(runtime_dir, training))
        look(heard, "a", seconds=600.0)
        wait_for(lambda: "llmtop-stacks" in names(training.pid), what="the thread that looks")
        training.go()
        out, err = training.finish()
        assert (out, err) == ("done\n", "")


def test_a_child_that_is_forked_meanwhile_has_none_of_it(runtime_dir: Path) -> None:
    with Training(FORKS) as training:
        heard = Heard(connect(runtime_dir, training))
        look(heard, "a", seconds=600.0)
        wait_for(lambda: "llmtop-stacks" in names(training.pid), what="the thread that looks")
        training.go()
        training.hear("done")
        heard.connection.send(wire.StopSampling(id="a"))
        assert told(heard, "a").looks > 0


def test_a_number_that_makes_no_sense_is_bounded(runtime_dir: Path) -> None:
    with Training(STEPPING) as training:
        heard = Heard(connect(runtime_dir, training))
        for name, seconds, rate in (("a", -1.0, float("nan")), ("b", float("nan"), 0.0), ("c", 0.05, 1e300)):
            heard.connection.send(wire.SampleStacks(id=name, seconds=seconds, rate_hz=rate))
            assert told(heard, name).looks >= 1
        heard.connection.send(wire.SampleStacks(id="d", seconds=float("inf"), rate_hz=float("-inf")))
        heard.connection.send(wire.StopSampling(id="d"))
        assert told(heard, "d").looks >= 1
