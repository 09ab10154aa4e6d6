"""What /proc says of processes: whether one lives is asked in one place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from llmtop.procfs import is_alive
from tests.support.processes import wait_for

HERE = Path(__file__).parents[1]


def test_a_process_lives_until_it_ends_whether_or_not_its_parent_has_noticed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(child.pid)
    assert child.stdin is not None
    child.stdin.close()
    wait_for(lambda: not is_alive(child.pid), what="a zombie to count as ended")
    assert child.returncode is None, "nobody has waited for it"
    child.wait()
    assert not is_alive(child.pid)


def test_what_can_be_no_process_does_not_live() -> None:
    for pid in (0, -1, 2**22 + 1, 10**30):
        assert not is_alive(pid)


def test_nobody_else_asks_a_pid_by_a_way_of_its_own() -> None:
    asks = re.compile(r"os\.kill\([^()]*,\s*0\)|pid_exists|\"X\"\)")
    files = [file for folder in ("llmtop", "tui", "collectors") for file in (HERE / folder).rglob("*.py")]
    assert [file.name for file in files if asks.search(file.read_text())] == ["procfs.py"]
