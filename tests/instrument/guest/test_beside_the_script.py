"""What a script may do around llmtop: join or patch threads, close every descriptor, raise in signal handlers."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import environment, wait_for
from tests.support.trainings import Heard, Training, connect, sockets

# --- threads -----------------------------------------------------------------------------------------------------


def test_a_script_that_joins_all_threads_at_its_end_ends(runtime_dir: Path) -> None:
    script = """
import llmtop
with llmtop.step(): pass
input()
import threading
threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
for thread in threads: thread.join()
print(threads, threading.active_count(), threading.main_thread() is threading.current_thread(), flush=True)
"""
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: heard.steps)
        training.go()
        assert training.finish() == ("[] 1 True\n", "")
        heard.to_the_end()
    assert sockets(runtime_dir) == []


PATCHED = """
import _thread, threading
class Lock:  # as a greenlet library's: to wait for it runs the other greenlets, and there are none
    def __init__(self): self.held = False
    def acquire(self, blocking=True, timeout=-1):
        if self.held and blocking: raise SystemExit("waits for ever")
        self.held = True
        return True
    def release(self): self.held = False
    def locked(self): return self.held
    __enter__ = acquire
    def __exit__(self, *_): self.release()
_thread.allocate_lock = threading.Lock = threading._allocate_lock = Lock
Lock.__module__ = "greens.thread"
"""


def test_where_threads_are_greenlets_it_stays_off_and_says_so(runtime_dir: Path) -> None:
    with Training(PATCHED + "import llmtop\nfor _ in range(3):\n    with llmtop.step(): pass\n") as training:
        assert training.finish() == (
            "",
            "llmtop: not publishing: greens has replaced the threads and sockets of this process, and llmtop "
            "works only with the original ones\n",
        )
    assert sockets(runtime_dir) == []


@pytest.mark.parametrize("what", ["", "select=False", "thread=False"])
def test_the_same_with_gevent(runtime_dir: Path, what: str) -> None:
    pytest.importorskip("gevent")
    script = f"""
from gevent import monkey
monkey.patch_all({what})
import llmtop, signal
for _ in range(3):
    with llmtop.step(): pass
assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
"""
    with Training(script) as training:
        assert training.finish()[1].startswith("llmtop: not publishing: gevent has replaced")


# --- descriptors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", ["files", "sockets"])
@pytest.mark.parametrize("where", ["training", "child"])
def test_descriptors_that_the_script_took_over_are_neither_written_nor_closed(
    runtime_dir: Path, tmp_path: Path, opened: str, where: str
) -> None:
    script = f"""
import os, socket, sys, time
import llmtop
with llmtop.step(): pass
input()
if {where!r} == "child" and os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
os.closerange(3, 64)
pairs = []
if {opened!r} == "files":
    mine = [os.open(f"{tmp_path}/{{number}}", os.O_RDWR | os.O_CREAT) for number in range(40)]
else:
    pairs = [socket.socketpair() for _ in range(20)]
    mine = [one.fileno() for pair in pairs for one in pair]
before = [os.fstat(number).st_ino for number in mine]
for _ in range(50):
    with llmtop.step(): time.sleep(0.001)
    llmtop.log(loss=1.0)
from llmtop.instrument.record.recorder import get
if get().server is not None: get().server.stop()
import gc; gc.collect()
assert [os.fstat(number).st_ino for number in mine] == before
for pair in pairs:
    for one in pair:
        one.setblocking(False)
        try: assert not one.recv(10), "something was sent to it"
        except BlockingIOError: pass
"""
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: heard.steps)
        training.go()
        training.finish()
        heard.to_the_end()
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_size] == []
    assert sockets(runtime_dir) == []


def test_a_monitor_is_hung_up_on_when_the_script_has_closed_its_connection(runtime_dir: Path) -> None:
    script = """
import os, llmtop
with llmtop.step(): pass
input()
os.closerange(3, 64)
print("closed", flush=True)
input()
"""
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        training.go()
        training.hear("closed")
        heard.to_the_end()
        wait_for(lambda: sockets(runtime_dir) == [])
        training.go()
        training.finish()


# --- signals -----------------------------------------------------------------------------------------------------


HANDLERS = {
    "a function": "def handler(number, frame): raise Alarm()",
    "any arguments": "handler = lambda *_: (_ for _ in ()).throw(Alarm())",
    "a method": "class H:\n    def on(self, number, frame): raise Alarm()\nhandler = H().on",
    "an object": "class H:\n    def __call__(self, *_): raise Alarm()\nhandler = H()",
    "a partial": "import functools\ndef on(what, *_): raise what()\nhandler = functools.partial(on, Alarm)",
    "gone when it raises": "def handler(*_):\n    signal.signal(14, signal.SIG_DFL)\n    raise Alarm()",
}


@pytest.mark.slow(
    "each handler once and each error once",
    kept=(
        "TimeoutError-a function",
        "TimeoutError-any arguments",
        "TimeoutError-a method",
        "TimeoutError-an object",
        "TimeoutError-a partial",
        "TimeoutError-gone when it raises",
        "Exception-a function",
        "KeyError-a function",
    ),
)
@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("base", ["Exception", "TimeoutError", "KeyError"])
def test_what_a_handler_raises_while_llmtop_attaches_reaches_the_script(
    runtime_dir: Path, handler: str, base: str
) -> None:
    # Without an interval timer: the handler is called at a line of llmtop's that every attach passes.
    script = f"""
import os, signal
class Alarm({base}): pass
{HANDLERS[handler]}
signal.signal(signal.SIGALRM, handler)
import llmtop
from llmtop.instrument.identity import launcher_env
asked = launcher_env.from_environment
def interrupted():
    launcher_env.from_environment = asked
    os.kill(os.getpid(), signal.SIGALRM)
    return asked()
launcher_env.from_environment = interrupted
try:
    with llmtop.step(): pass
except Alarm:
    print("alarm", flush=True)
with llmtop.step(): pass
input()
"""
    with Training(script) as training:
        training.hear("alarm")
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: heard.steps)
        training.go()
        training.finish()


def test_what_a_handler_raises_while_the_run_log_is_imported_reaches_the_script(
    runtime_dir: Path, tmp_path: Path
) -> None:
    script = """
import os, signal, sys
import llmtop
class Alarm(TimeoutError): pass
def handler(*_): raise Alarm()
signal.signal(signal.SIGALRM, handler)
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "llmtop.instrument.run_log.writer":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGALRM)
sys.meta_path.insert(0, Finder())
try:
    with llmtop.step(): pass
except Alarm:
    print("alarm", flush=True)
for _ in range(20):
    with llmtop.step(): pass
from llmtop.instrument.run_log import writer
writer.EXIT_S = 60.0  # the exit waits for the file however long the writer's thread waits for a core
input()
"""
    with Training(script, LLMTOP_RUN_LOG="1", LLMTOP_RUNS=str(tmp_path)) as training:
        training.hear("alarm")
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: heard.steps)
        training.go()
        training.finish()
    assert [path for path in tmp_path.rglob("*") if path.is_file()], "the next step began the run's log again"


def test_no_alarm_is_lost_wherever_it_comes(runtime_dir: Path) -> None:
    script = """
import os, random, signal, sys, time
class Alarm(TimeoutError): pass
rung, place = 0, ""
def handler(number, frame):
    global rung, place
    rung += 1
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    raise Alarm()
signal.signal(signal.SIGALRM, handler)
# An import passes over an OSError of a handler: that is Python's own.
import llmtop.instrument.startup, llmtop.instrument.serve.hello, llmtop.instrument.serve.server
import llmtop.instrument.control.self_capture, llmtop.system.own_files
caught = 0
random.seed(1)
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.002))
        while True:
            with llmtop.step(tokens=random):
                with llmtop.phase("forward"): pass
            llmtop.log(loss="0.5")
            if rung > caught:
                print("lost at", place, flush=True)
                caught = rung
                break
    except Alarm:
        caught += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(rung - caught, flush=True)
for _ in range(10):
    with llmtop.step(): pass
input()
"""
    with Training(script) as training:
        heard = Heard(connect(runtime_dir, training))
        training.hear("0")
        heard.until(lambda: heard.steps)
        training.go()
        training.finish()


@pytest.mark.slow("one redirection stands for all; each starts a training", kept=("2>&-",))
@pytest.mark.parametrize("redirections", ["2>&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full 2>&1"])
def test_no_socket_stands_in_for_a_closed_stream(redirections: str, runtime_dir: Path, tmp_path: Path) -> None:
    # What C code writes to stderr would reach a monitor, and what the script opens would get another number.
    script, seen = tmp_path / "script.py", tmp_path / "seen"
    script.write_text("""
import os, select, sys
import llmtop
llmtop.attach(total_steps="many")
with llmtop.step(): pass
opened = [os.readlink(f"/proc/self/fd/{n}") for n in range(3) if os.path.lexists(f"/proc/self/fd/{n}")]
with open(sys.argv[1], "w") as file:
    file.write(" ".join(opened))
while not os.path.exists(sys.argv[1] + ".end"):
    with llmtop.step(): select.select([], [], [], 0.01)
sys.exit(3)
""")
    command = shlex.join([sys.executable, str(script), str(seen)])
    with subprocess.Popen(
        ["sh", "-c", f"exec {command} {redirections}"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as training:
        heard = Heard(connect(runtime_dir, training))
        heard.until(lambda: len(heard.steps) > 1)  # the second comes when the file is complete
        assert "socket:" not in seen.read_text()
        (tmp_path / "seen.end").touch()
        assert training.wait(60) == 3
    assert sockets(runtime_dir) == []
