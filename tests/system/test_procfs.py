"""What /proc says of processes: whether one lives is asked in one place."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llmtop.system import procfs
from llmtop.system.procfs import is_alive
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


def test_nobody_else_asks_a_pid_by_a_way_of_its_own() -> None:
    asks = re.compile(r"os\.kill\([^()]*,\s*0\)|pid_exists|\"X\"\)")
    files = [file for folder in ("llmtop", "tui", "collectors") for file in (HERE / folder).rglob("*.py")]
    assert [file.name for file in files if asks.search(file.read_text())] == ["procfs.py"]


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
            child.communicate(timeout=100)
    assert not procfs.runs_python(2**22 + 1)
    assert not procfs.has_variable(2**22 + 1, b"A=b")
