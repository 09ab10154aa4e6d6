"""What is read of /proc is what psutil says of the same process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from collectors.machine.proc_files import read_stat, read_status
from llmtop.system import procfs
from tests.support.processes import wait_for


def test_it_is_what_psutil_says() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        known = psutil.Process(child.pid)
        wait_for(lambda: read_stat(child.pid).state == psutil.STATUS_SLEEPING)
        found, status = read_stat(child.pid), read_status(child.pid)
        times = known.cpu_times()
        assert found.started_ticks == procfs.started_ticks(child.pid)
        assert found.cpu_seconds == pytest.approx(times.user + times.system, abs=0.05)
        assert found.threads == known.num_threads() == 1
        assert found.rss_bytes == pytest.approx(known.memory_info().rss, rel=0.2)
        assert (status.user, status.inner_pid) == (known.username(), None)
        child.kill()
        wait_for(lambda: read_stat(child.pid).state == psutil.STATUS_ZOMBIE)
    finally:
        child.kill()
        child.wait(100)
    for read in (read_stat, read_status):
        with pytest.raises(psutil.NoSuchProcess):
            read(child.pid)


def test_a_name_that_looks_like_the_end_of_a_field_moves_nothing(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as child:
        try:
            wait_for(lambda: b"a) R 1" in Path(f"/proc/{child.pid}/stat").read_bytes())
            wait_for(lambda: read_stat(child.pid).state == psutil.STATUS_SLEEPING)
            assert read_stat(child.pid).threads == 1
        finally:
            child.kill()
