"""Captures by the real perf: what they show, and that nothing of it stays, whoever dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from llmtop.analysis.load_stacks import load_stacks
from llmtop.capture import take
from llmtop.capture.base.job import Cancelled, Plan, Progress, Target
from llmtop.capture.perf import bpf, counters, program, script, trampoline
from llmtop.capture.perf.engine import PerfEngine
from llmtop.capture.py_spy.cpu_times import descendant_pids
from llmtop.errors import NotPossibleHere
from llmtop.stacks.document import counters_text as counted
from llmtop.stacks.model import StackNode
from llmtop.system import procfs
from tests.support import written
from tests.support.processes import REPOSITORY, environment, running, wait_for

needs_perf = pytest.mark.skipif(not program.check().ok, reason="no perf here")

SCRIPT = """
import time, zlib
def press():
    return zlib.compress(bytes(300_000) + str(time.time()).encode(), 9)
def rest():
    time.sleep(0.004)
print("go", flush=True)
while True:
    press()
    rest()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with running(script) as process:
        yield process


def plan(pid: int, parent: Path, seconds: float = 1.0) -> Plan:
    return Plan(engine="perf", targets=(Target(pid),), parent=parent, seconds=seconds)


def perfs_of(pid: int) -> list[int]:
    """The perf and py-spy processes that look at it."""
    found = []
    for one in psutil.process_iter(["pid", "cmdline"]):
        words = one.info["cmdline"] or []
        if (
            words
            and Path(words[0]).name in ("perf", "py-spy")
            and any(str(pid) in word.split(",") for word in words)
        ):
            found.append(one.info["pid"])
    return found


def names(node: StackNode) -> set[str]:
    return {node.name}.union(*(names(child) for child in node.children))


@needs_perf
def test_a_capture_shows_native_frames_what_it_waits_for_and_the_counters(
    process: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    begun = time.monotonic()
    result = take.take(plan(process.pid, tmp_path / "captures", seconds=2.0))
    took = time.monotonic() - begun
    assert list(home.iterdir()) == [], "perf keeps copies of libraries in ~/.debug"
    found = load_stacks([result.folder])
    assert found is not None
    assert found.engine == "perf"
    threads = {thread.thread: thread for one in found.processes for thread in one.threads}
    on = threads["MainThread, on a CPU"]
    assert on.tree is not None
    assert any("deflate" in name or "zlib" in name or "libz" in name for name in names(on.tree))
    assert threads["MainThread"].tree is not None
    assert {"press", "rest"} & names(threads["MainThread"].tree), "py-spy's, of the same window"
    counts = next(iter(found.counters.values()))
    assert counts.cpus is not None
    assert 0 < counts.cpus <= 1.2
    if program.may_trace_kernel():
        assert counts.context_switches_per_s is not None
        assert counts.context_switches_per_s > 1
    else:
        assert counts.context_switches_per_s is None or counts.context_switches_per_s > 1
    if counts.ipc is None:
        assert "cycles" in counts.absent
        assert "does not count" in " ".join(counted(found))
    if program.may_trace_kernel():
        off = threads["MainThread, off it"]
        assert off.unit == "microseconds"
        assert off.tree is not None
        assert any("nanosleep" in name for name in names(off.tree))
        assert 0 < off.samples < took * 1e6
    assert "on a CPU" in written.short_stacks(found)
    left = {path.name for path in result.folder.iterdir()}
    assert not any(name.endswith((".data", ".json.tmp", ".py-spy")) for name in left), "pieces of its memory"
    assert process.poll() is None
    assert procfs.status(process.pid)["TracerPid"] == "0"
    assert perfs_of(process.pid) == []


@needs_perf
def test_a_cancel_leaves_nothing(process: subprocess.Popen[str], tmp_path: Path) -> None:
    cancelled = threading.Event()

    def cancel(progress: Progress) -> None:
        if progress.stage == "record":
            cancelled.set()

    with pytest.raises(Cancelled):
        take.take(plan(process.pid, tmp_path / "captures", seconds=60.0), cancel, cancelled)
    assert list((tmp_path / "captures").iterdir()) == []
    assert perfs_of(process.pid) == []
    assert process.poll() is None


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
@needs_perf
def test_a_monitor_that_is_killed_leaves_no_perf(process: subprocess.Popen[str], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "llmtop", "capture", "--pid", str(process.pid), "--engine", "perf"]
    monitor = subprocess.Popen(
        [*words, "--seconds", "60"], cwd=tmp_path, env=environment() | {"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: len(perfs_of(process.pid)) > 1 or None, what="perf", seconds=60)
        monitor.send_signal(signal.SIGKILL)
        monitor.wait(100)
        begun = perfs_of(process.pid)
        monitor.send_signal(signal.SIGKILL)
        monitor.wait(100)
        assert wait_for(lambda: not any(map(procfs.is_alive, begun)) or None, 60, "the end of perf and py-spy")
    finally:
        monitor.kill()
        monitor.wait(100)
    assert process.poll() is None
    assert not procfs.is_stopped(process.pid)


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
@needs_perf
def test_a_perf_that_is_killed_is_told_in_a_sentence(process: subprocess.Popen[str], tmp_path: Path) -> None:
    def kill(progress: Progress) -> None:
        if progress.stage == "record":
            for pid in perfs_of(process.pid):
                if psutil.Process(pid).name() == "perf":
                    os.kill(pid, signal.SIGKILL)

    with pytest.raises(NotPossibleHere, match="perf was killed while it recorded"):
        take.take(plan(process.pid, tmp_path / "captures"), kill)
    assert process.poll() is None
    assert perfs_of(process.pid) == []


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
@needs_perf
def test_a_training_that_dies_within_the_window_leaves_what_there_was(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    begun = threading.Event()

    def note(progress: Progress) -> None:
        if progress.stage == "record" and not begun.is_set():
            begun.set()
            threading.Timer(0.7, process.kill).start()

    try:
        result = take.take(plan(process.pid, tmp_path / "captures", seconds=30.0), note)
    except NotPossibleHere:
        pass  # it went before perf had anything: a sentence
    else:
        assert "the training ended within the window" in (result.folder / "report.md").read_text()
    assert perfs_of(process.pid) == []


@needs_perf
@pytest.mark.parametrize(
    "version", ["3.12", pytest.param("3.13", marks=pytest.mark.slow("the same with a second Python"))]
)
def test_functions_of_python_are_seen_where_it_was_started_so(version: str, tmp_path: Path) -> None:
    python = shutil.which(f"python{version}")
    if (
        python is None
        or subprocess.run([python, "-c", ""], check=False, capture_output=True, timeout=240).returncode
    ):
        pytest.skip(f"no Python {version} here")
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    process = subprocess.Popen([python, "-X", "perf", str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        assert trampoline.is_active(process.pid)
        result = take.take(plan(process.pid, tmp_path / "captures", seconds=2.0))
    finally:
        process.kill()
        process.wait(100)
        process.stdout.close()
        Path(f"/tmp/perf-{process.pid}.map").unlink(missing_ok=True)
    found = load_stacks([result.folder])
    assert found is not None
    on = next(thread for one in found.processes for thread in one.threads if thread.thread.endswith("on a CPU"))
    assert on.tree is not None
    assert "press" in names(on.tree)
    assert not any("no functions of Python" in note for note in found.notes)


PRINTED = """\
python 7/7 10.000000: cpu-clock/freq=49/:
\t            4a78 deflate (/lib/libz.so.1)
\t    7f36406b7824 py::press:/home/me/train.py (/tmp/perf-7.map)

python 7/7 10.100000: sched:sched_switch:
\tffffffff821facd8 __schedule ([kernel.kallsyms])
\tffffffff822025be do_nanosleep ([kernel.kallsyms])

python 7/7 10.100000: PERF_RECORD_SWITCH OUT
python 7/7 10.350000: PERF_RECORD_SWITCH IN
what is this
pt main loop 7/9 10.400000: PERF_RECORD_SWITCH OUT preempt
pt main loop 7/9 10.500000: PERF_RECORD_SWITCH IN
"""


def test_what_perf_prints_is_time_off_the_cpu_and_functions_of_python() -> None:
    found = script.read_script(PRINTED.splitlines(keepends=True), {7: "python train.py"}, {})
    assert found.has_python
    assert [(frame.name, frame.file) for frame in found.on_cpu[0].frames] == [
        ("press", "/home/me/train.py"), ("deflate", "/lib/libz.so.1"),
    ]  # fmt: skip
    off = {stack.thread.name: stack for stack in found.off_cpu}
    assert off["MainThread"].samples == 250_000
    assert off["MainThread"].frames[0].name == "do_nanosleep"
    assert off["pt main loop"].samples == 100_000
    assert off["pt main loop"].frames[-1] == script.PREEMPTED
    assert script.read_script(["\x00garbage\n", "\t(\n", " 9 9\n"], {}, {}) == script.PerfStacks([], [], False)


@pytest.mark.parametrize(("ipc", "bound"), [(0.6, "memory"), (1.5, "neither"), (2.4, "compute")])
def test_instructions_a_cycle_say_what_cores_do_and_what_is_not_counted_is_said(ipc: float, bound: str) -> None:
    def line(event: str, value: object) -> str:
        return f'{{"counter-value" : "{value}", "event" : "{event}"}}'

    lines = [line("task-clock", 1500.0), line("cycles:u", 1000), line("instructions:u", ipc * 1000), "# no JSON"]
    lines += [line("cache-references", 200), line("cache-misses", 20), line("branch-misses", "<not supported>")]
    found = counters.read_counters("\n".join(lines), 3.0)
    assert (found.cpus, found.ipc, found.bound) == (0.5, pytest.approx(ipc), bound)
    assert found.cache_miss_pct == 10.0
    assert found.branch_miss_pct is None
    assert found.absent == ("branch-misses",)
    assert counters.read_counters("", 1.0).ipc is None


def test_what_happens_in_the_kernel_alone_is_unknown_where_user_mode_is_counted_alone() -> None:
    lines = [f'{{"counter-value" : "0", "event" : "{event}:u"}}' for event in ("context-switches", "page-faults")]
    found = counters.read_counters("\n".join(lines), 2.0)
    assert (found.context_switches_per_s, found.page_faults_per_s) == (None, 0.0)
    assert found.absent == ("context-switches",)


def test_where_perf_is_missing_or_forbidden_one_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = PerfEngine().refusal(Target(os.getpid()))
    assert refused is not None
    assert refused.command == "sudo apt-get install linux-perf"
    fake = tmp_path / "perf"
    fake.write_text("#!/bin/sh\necho 'Error:' >&2; echo 'Access to it is limited.' >&2; exit 255\n")
    fake.chmod(0o755)
    assert "Access to it is limited" in program.check().says
    monkeypatch.setattr(procfs, "perf_event_paranoid", lambda: 4)
    monkeypatch.setattr(program, "may_trace_kernel", lambda: False)
    refused = PerfEngine().refusal(Target(os.getpid()))
    assert refused is not None
    assert "perf_event_paranoid is 4" in refused.reason


def test_one_liners_fit_the_finding_and_are_only_run_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [question.name for question in bpf.questions_for("disk")] == ["block I/O latency"]
    assert [question.name for question in bpf.questions_for("cpu")] == ["run-queue latency"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bpf.question_command(bpf.QUESTIONS[0], 7) == []
    assert bpf.answer_question(bpf.QUESTIONS[0], 7) == ""
    tool = tmp_path / "bpftrace"
    tool.write_text('#!/bin/sh\nprintf "Attaching 2 probes...\\n@[999]: 1\\n@[0]: 12\\n@[202]: 30\\n"\n')
    tool.chmod(0o755)
    with running(_worker_of(tmp_path)) as process:
        of_both = wait_for(
            lambda: descendant_pids([process.pid]) and bpf.question_command(bpf.QUESTIONS[0], process.pid)
        )
        worker = descendant_pids([process.pid])[0]
    assert f"/pid == {process.pid} || pid == {worker}/" in of_both[2]
    monkeypatch.setattr(bpf.os, "geteuid", lambda: 0)
    monkeypatch.setattr(bpf.platform, "machine", lambda: "x86_64")
    assert bpf.answer_question(bpf.QUESTIONS[0], 7) == "futex: 30\nread: 12\nsystem call 999: 1"
    monkeypatch.setattr(bpf.os, "geteuid", lambda: 1000)
    assert bpf.answer_question(bpf.QUESTIONS[0], 7) == ""


ASKS = """
import multiprocessing, os, time
def load():
    while os.getppid() == parent:
        os.pread(file, 16, 0)
        time.sleep(0.002)
file, parent = os.open("/dev/zero", os.O_RDONLY), os.getpid()
multiprocessing.get_context("fork").Process(target=load, daemon=True).start()
print("go", flush=True)
time.sleep(600)
"""


def _worker_of(folder: Path) -> Path:
    """A script whose one worker asks the kernel for something, again and again."""
    script = folder / "asks.py"
    script.write_text(ASKS)
    return script


@pytest.mark.slow("a capture by another engine; one whole capture of each is in make test")
def test_a_real_bpftrace_tells_what_a_loaders_worker_asks_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = REPOSITORY / ".cache" / "bpftrace" / "usr"
    if (fetched / "bin" / "bpftrace").is_file():
        monkeypatch.setenv("PATH", f"{fetched / 'bin'}:{os.environ['PATH']}")
        libraries = [
            str(path) for path in (*(fetched / "lib").glob("*-linux-gnu"), *fetched.glob("lib/llvm-*/lib"))
        ]
        monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(libraries))
    if shutil.which("bpftrace") is None or os.geteuid() != 0:
        pytest.skip("no bpftrace that may ask: run tests/fetch_hosts.sh, as root")
    monkeypatch.setattr(bpf, "PATIENCE_SECONDS", 240.0)  # a busy machine takes long to start it
    with running(_worker_of(tmp_path)) as process:
        wait_for(lambda: descendant_pids([process.pid]), what="its worker")
        said = {question.name: bpf.answer_question(question, process.pid) for question in bpf.QUESTIONS}
    refused = next((text for text in said.values() if text.startswith("it failed")), None)
    if refused is not None:
        pytest.skip(f"the kernel does not allow it: {refused}")
    assert "pread64: " in said["system calls"]
    assert "@us:" in said["run-queue latency"]
