"""What /proc says of processes: whether one lives is asked in one place."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llmtop.system import procfs
from llmtop.system.procfs import is_alive
from llmtop.system.tcp_sockets import sockets_of
from tests.support.processes import core_waits, wait_for, waited_since

HERE = Path(__file__).parents[2]


def test_a_process_lives_until_it_ends_whether_or_not_its_parent_has_noticed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(child.pid)
    assert child.stdin is not None
    child.stdin.close()
    wait_for(lambda: not is_alive(child.pid), what="a zombie to count as ended")
    assert child.returncode is None, "nobody has waited for it"
    child.wait(100)
    assert not is_alive(child.pid)


def test_what_can_be_no_process_does_not_live() -> None:
    for pid in (0, -1, 2**22 + 1, 10**30):
        assert not is_alive(pid)


@pytest.mark.shape
def test_nobody_else_asks_a_pid_by_a_way_of_its_own() -> None:
    asks = re.compile(r"os\.kill\([^()]*,\s*0\)|pid_exists|\"X\"\)")
    files = [file for folder in ("llmtop", "tui", "collectors") for file in (HERE / folder).rglob("*.py")]
    assert [file.name for file in files if asks.search(file.read_text())] == ["procfs.py"]


def _named_paths(tree: ast.AST) -> list[str]:
    """The texts of a module that name /proc or begin with it, docstrings and other bare texts left out."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in bare)
    return [one.value for one in texts if isinstance(one.value, str) and re.match(r"/proc\b", one.value)]


@pytest.mark.shape
def test_no_other_module_names_a_file_of_proc() -> None:
    planted = ast.parse('"""/proc/1"""\nopen(f"/proc/{1}/maps")\nroot = Path("/proc")\nother = "/process"')
    assert _named_paths(planted) == ["/proc", "/proc/"]
    files = [file for folder in ("llmtop", "tui", "collectors") for file in (HERE / folder).rglob("*.py")]
    naming = {str(file.relative_to(HERE)) for file in files if _named_paths(ast.parse(file.read_text()))}
    assert naming == {"llmtop/system/procfs.py"}


def test_what_a_process_does_is_read_as_it_is() -> None:
    program = (
        "import socket\ns = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, "two words"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    )
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert procfs.words(child.pid)[-1] == "two words"
        assert procfs.folder(child.pid) == "/"
        assert procfs.executable(child.pid) == os.path.realpath(sys.executable)
        assert any("libc" in name for name in procfs.mapped_files(child.pid))
        assert [one.port for one in sockets_of(child.pid)] == [port]
        assert procfs.owner(child.pid) == os.geteuid()
        assert child.pid in procfs.own_pids()
        assert procfs.thread_ids(child.pid) == [child.pid]
        assert procfs.namespace(child.pid, "net") == procfs.namespace("self", "net") != ""
        assert procfs.is_memory_readable(child.pid)
        spent = procfs.thread_cpu_ns(child.pid, child.pid)
        assert spent is None or spent[0] > 0
        assert procfs.root_folder(child.pid) == ""
        assert procfs.descriptor_path(0) == "/proc/self/fd/0"
    finally:
        child.kill()
        child.communicate(timeout=240)


OWN_WAIT = """
import json, os, sys, threading
from llmtop.system import procfs

def kernels():
    return procfs.thread_cpu_ns(os.getpid(), threading.get_native_id())

found = {"without care": procfs.own_cpu_wait_ns()}
procfs.share_process()
found["three"] = kernels(), procfs.own_cpu_wait_ns(), kernels()
procfs.ROOT = sys.argv[1]
found["no file"] = procfs.own_cpu_wait_ns()
os.mkdir(f"{procfs.ROOT}/thread-self")
for content in ("7 9 3\\n", "0 0 0\\n", ""):
    with open(f"{procfs.ROOT}/thread-self/schedstat", "w") as file:
        file.write(content)
    found[content] = procfs.own_cpu_wait_ns()
print(json.dumps(found))
"""
"""In a process of its own: from `share_process` on it reads in another way."""


def test_the_own_wait_for_a_cpu_is_the_kernels(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWN_WAIT, str(tmp_path)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=240, cwd=HERE).stdout)
    before, own, after = found.pop("three")
    if before is not None and after is not None and own is not None:
        assert before[1] <= own <= after[1]
    assert found == {"without care": None, "no file": None, "7 9 3\n": 9, "0 0 0\n": None, "": None}


def test_what_has_gone_is_absent() -> None:
    gone = 2**22 + 1
    assert not any((procfs.text(gone, "maps"), procfs.link(gone, "exe"), procfs.opened_files(gone)))
    assert not any((procfs.thread_ids(gone), procfs.thread_name(gone, gone), procfs.wait_channel(gone, gone)))
    assert procfs.system_call(gone, gone) == ()
    absent = (procfs.thread_cpu_ns(gone, gone), procfs.thread_state(gone, gone), procfs.owner(gone))
    assert (*absent, procfs.command(gone), procfs.kernel_setting("none")) == (None,) * 5
    for read in (procfs.words, procfs.folder, procfs.executable, procfs.mapped_files, procfs.is_memory_readable):
        with pytest.raises(FileNotFoundError):
            read(gone)


def test_a_thread_that_ends_between_listing_and_reading_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    before, listdir = core_waits(), os.listdir

    def listed_then_ended(folder: str) -> list[str]:
        names = listdir(folder)
        end.set()
        wait_for(lambda: not Path(folder, str(thread.native_id)).exists(), what="the thread to end")
        return names

    monkeypatch.setattr(os, "listdir", listed_then_ended)
    after = core_waits()
    assert str(thread.native_id) in before
    assert set(before) - set(after) == {str(thread.native_id)}
    assert waited_since({**before, str(thread.native_id): 1e6}) >= 0.0


def test_a_process_is_python_by_its_program_and_is_found_by_its_environment() -> None:
    variables = {**os.environ, "LLMTOP_TEST_MARK": "here"}
    for command, python in (([sys.executable, "-c", "input()"], True), (["cat"], False)):
        child = subprocess.Popen(command, stdin=subprocess.PIPE, env=variables)
        try:
            mark = functools.partial(procfs.has_variable, child.pid, b"LLMTOP_TEST_MARK=here")
            wait_for(mark, what="the program to have its environment, which it gets just after exec")
            assert procfs.runs_python(child.pid) is python
            assert child.pid in procfs.pids()
            assert not procfs.has_variable(child.pid, b"LLMTOP_TEST_MARK=her")
        finally:
            child.kill()
            child.communicate(timeout=240)
    assert not procfs.runs_python(2**22 + 1)
    assert not procfs.has_variable(2**22 + 1, b"A=b")


def test_memory_is_what_the_kernel_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "ROOT", str(tmp_path))
    assert procfs.memory() == {}, "the kernel hides it"
    lines = ("MemTotal:  8 kB", "MemFree:  1 kB", "MemAvailable:  5 kB", "SwapCached: 9 kB", "SwapTotal: 4 kB")
    (tmp_path / "meminfo").write_text("\n".join(lines) + "\n")
    assert procfs.memory() == {"MemTotal": 8192, "MemAvailable": 5120, "SwapTotal": 4096}


def test_counters_of_cpus_disks_and_networks_are_those_of_the_kernel_s_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "ROOT", str(tmp_path))
    # user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice; a guest's are in the user's
    (tmp_path / "stat").write_text("cpu 9 9\ncpu0 10 1 5 70 7 2 3 2 4 1\ncpu3 1 0 0 9 0 0 0 0 0 0\nintr 5 6\n")
    assert procfs.cpu_ticks() == {b"cpu0": (77, 100), b"cpu3": (9, 10)}
    (tmp_path / "diskstats").write_text(
        " 259 0 nvme0n1 11 12 1300 14 15 16 1700 18 0 20 21 0 0 0 0 0 0\n 259 1 old 1 2 3 4\n"
    )
    assert {name: (fields[5], fields[9]) for name, fields in procfs.disk_counters().items()} == {
        "nvme0n1": (b"1300", b"1700")
    }
    (tmp_path / "net").mkdir()
    lines = ("Inter-| Receive", " face |bytes", "    lo: 5 0 0 0 0 0 0 0 6 0", "eth0:100 1 2 3 4 5 6 7 200 8", "")
    (tmp_path / "net" / "dev").write_text("\n".join(lines))
    assert {name: (fields[0], fields[8]) for name, fields in procfs.network_counters().items()} == {
        "lo": (b"5", b"6"),
        "eth0": (b"100", b"200"),
    }
