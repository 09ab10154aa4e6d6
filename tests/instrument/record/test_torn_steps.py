"""What tears a step, or a call of llmtop's, apart in the middle: recording goes on, and the script as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.trainings import Training

pytestmark = pytest.mark.usefixtures("runtime_dir")

STORM = """
import signal, llmtop
from llmtop.instrument.record import recorder
r = recorder.get()
with llmtop.step(): pass
def handler(*_): raise {error}
signal.signal(signal.SIGALRM, handler)
for number in range(400):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + number % 7 * 0.0001)
        while True:
            with llmtop.step(), llmtop.phase("forward"): pass
    except {error}:
        pass
    before = r.ring.count
    for _ in range(5):
        with llmtop.step(): pass
    assert r.ring.count - before >= 4, number  # the first may be within what was torn
"""


@pytest.mark.slow("one error stands for all; each tears steps for seconds", kept=("KeyboardInterrupt",))
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "TimeoutError", "SystemExit"])
def test_steps_that_a_signal_s_handler_tears_apart_end_no_recording(error: str) -> None:
    with Training(STORM.format(error=error)) as training:
        training.finish()


def test_with_no_descriptor_left_attach_and_decorators_raise_nothing() -> None:
    script = """
import os, resource, llmtop
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
try:
    while True: os.open("/dev/null", 0)
except OSError: pass
llmtop.attach(total_steps=10)
assert llmtop.step()(lambda: 1)() == 1
assert llmtop.phase("forward")(lambda: 2)() == 2
"""
    with Training(script) as training:
        training.finish()


@pytest.mark.parametrize("text", ["1000_", "1__0", "_10", "10_k", "1_000"])
def test_underscores_in_numbers_raise_nothing(text: str) -> None:
    with Training(f"import llmtop; llmtop.attach(total_steps={text!r})") as training:
        training.finish()


def test_a_stderr_of_the_script_s_that_raises_anything_is_its_own_affair() -> None:
    script = """
import sys, llmtop
class Log:
    def write(self, text): raise LookupError
    flush = write
sys.stderr = Log()
llmtop.attach(total_steps="many")
sys.stderr = sys.__stderr__
"""
    with Training(script) as training:
        training.finish()


def test_a_step_that_failed_leaves_nothing_watched() -> None:
    script = """
import contextlib, llmtop
opened, closed = [], []
@contextlib.contextmanager
def annotation(name):
    opened.append(name)
    yield
    closed.append(name)
from llmtop.instrument.record import recorder
r = recorder.get()
with llmtop.step(): pass
r.annotate_with(annotation)
step = r.begin_step()
llmtop.phase("forward").__enter__()
r.step_failed(step)
r.annotate_with(None)
with llmtop.step(): pass
assert r.watch is None
assert opened == closed == ["forward"]
"""
    with Training(script) as training:
        training.finish()


@pytest.mark.slow("test_a_forked_child_inherits_nothing_and_takes_nothing_away finds the same fault")
@pytest.mark.torch
def test_a_child_that_is_forked_while_its_parent_is_recorded_stops_nothing(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
import torch.profiler
import llmtop
from llmtop.protocol import wire
from llmtop.instrument.control import self_capture
from llmtop.instrument.record import recorder
r, sent = recorder.get(), []
with llmtop.step(): pass
request = wire.CaptureRequest(id="a", engine="torch.profiler", path={str(tmp_path / "trace.json")!r}, steps=5)
self_capture.handle(request, r, sent.append)
for _ in range(3):
    with llmtop.step(): torch.ones(3) + 1
pid = os.fork()
if pid == 0:
    stopped = []
    torch.autograd._disable_profiler = lambda: stopped.append(1)
    import atexit
    del self_capture._of_thread.capture  # as at the end of the thread
    os._exit(len(stopped))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
for _ in range(6):
    with llmtop.step(): torch.ones(3) + 1
deadline = time.monotonic() + 60
while sent[-1].state != "done" and time.monotonic() < deadline: time.sleep(0.01)
assert sent[-1].state == "done", sent
"""
    with Training(script) as training:
        training.finish()


@pytest.mark.slow("test_a_process_that_steps_no_more_is_stalled finds much of it")
@pytest.mark.torch
def test_work_of_another_thread_is_no_life_of_the_one_that_trains() -> None:
    script = """
import os, threading
import torch, torch.distributed as dist
from llmtop.instrument import auto
from tests.support.light_optimizer import LightSGD
from llmtop.instrument.auto.training import communication
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
loop = auto.install()
dist.init_process_group("gloo", rank=0, world_size=1)
communication.mark_end_of(None, loop)  # as at the first of several ranks' backward passes
net = torch.nn.Linear(4, 1)
optimizer = LightSGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
before = loop.recorder.worked
def watchdog():
    for _ in range(5): dist.barrier()
thread = threading.Thread(target=watchdog)
thread.start()
thread.join()
assert loop.recorder.worked == before
dist.destroy_process_group()
"""
    with Training(script) as training:
        training.finish()
