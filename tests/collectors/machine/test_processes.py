"""Who uses the GPUs, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import collectors.machine.processes
from collectors.base.source import GpuUse
from collectors.machine.containers import has_host_pids
from collectors.machine.processes import ProcessSource
from llmtop.model.snapshot import Host, Process, Snapshot, to_json
from llmtop.system import procfs
from tests.support.processes import wait_for

UUID = "GPU-00000000"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python programs and ends them."""
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str, *arguments: str | bytes) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.read(1) == b"r", "the program says that it runs"
        if code == IDLE:  # until it sleeps it uses the processor
            wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait(100)


IDLE = "import time, sys; sys.stdout.write('r'); sys.stdout.flush(); time.sleep(600)"
BUSY = "import sys; sys.stdout.write('r'); sys.stdout.flush()\nwhile True: open('/dev/zero', 'rb').read(65536)"


@pytest.fixture
def watch() -> Iterator[Callable[..., ProcessSource]]:
    """Makes sources that look twice a second at least, and closes them."""
    sources: list[ProcessSource] = []

    def make(*uses: GpuUse, attached: tuple[int, ...] = (), trusted: bool | None = True) -> ProcessSource:
        source = ProcessSource(lambda: uses, lambda: attached, trusted=trusted)
        source.start()
        sources.append(source)
        return source

    yield make
    for source in sources:
        source.close()


def row_when(source: ProcessSource, pid: int, holds: Callable[[Process], object]) -> Process:
    def look() -> Process | None:
        rows = [row for row in source.latest() if row.pid == pid]
        return rows[0] if rows and holds(rows[0]) else None

    found = wait_for(look, what=f"{source.latest()}")
    assert found is not None
    return found


def test_a_process_on_a_gpu_is_joined_with_what_the_system_says(
    start: Start, watch: Callable[..., ProcessSource]
) -> None:
    child = start(BUSY, "--epochs", "3")
    source = watch(GpuUse(pid=child.pid, gpu_uuid=UUID, mem_bytes=1 << 30, sm_pct=60.0))
    row = row_when(source, child.pid, lambda row: row.cpu_pct)
    assert (row.gpu_uuid, row.gpu_mem_bytes, row.gpu_sm_pct) == (UUID, 1 << 30, 60.0)
    assert row.user == psutil.Process().username()
    assert row.command is not None
    assert row.command.startswith(sys.executable)
    assert row.command.endswith("--epochs 3")
    assert row.rss_bytes is not None
    assert row.rss_bytes > 1 << 20
    assert (row.threads, row.container_pid) == (1, None)
    assert row.started_at == pytest.approx(psutil.Process(child.pid).create_time(), abs=0.1)
    assert row.io_read_bytes_per_s is not None


def test_cpu_and_io_are_unknown_until_there_are_two_looks(start: Start) -> None:
    child = start(IDLE)
    source = ProcessSource(lambda: [GpuUse(pid=child.pid, gpu_uuid=UUID)], interval=600, trusted=True)
    source.read_once()
    first = source.latest()[0]
    assert (first.cpu_pct, first.io_read_bytes_per_s) == (None, None)
    source.read_once()
    second = source.latest()[0]
    assert (second.cpu_pct, second.io_read_bytes_per_s) == (0.0, 0.0)


def test_one_row_a_process_and_gpu_and_one_for_an_attached_process_without_gpu(
    start: Start, watch: Callable[..., ProcessSource]
) -> None:
    two, none = start(IDLE), start(IDLE)
    uses = [GpuUse(pid=two.pid, gpu_uuid=f"GPU-{n}") for n in (0, 1)]
    source = watch(*uses, attached=(two.pid, none.pid))
    row_when(source, none.pid, lambda row: row.user)
    rows = [(row.pid, row.gpu_uuid) for row in source.latest()]
    assert sorted(rows, key=str) == sorted([(two.pid, "GPU-0"), (two.pid, "GPU-1"), (none.pid, None)], key=str)


def test_a_process_that_ends_keeps_only_what_the_driver_still_says(
    start: Start, watch: Callable[..., ProcessSource]
) -> None:
    child, attached = start(IDLE), start(IDLE)
    source = watch(GpuUse(pid=child.pid, gpu_uuid=UUID, mem_bytes=5), attached=(attached.pid,))
    row_when(source, child.pid, lambda row: row.user)
    for process in (child, attached):
        process.kill()
        process.wait(100)
    row = row_when(source, child.pid, lambda row: row.user is None)
    assert row == Process(pid=child.pid, gpu_uuid=UUID, gpu_mem_bytes=5)
    wait_for(lambda: all(row.pid != attached.pid for row in source.latest()))


def test_a_zombie_and_a_stopped_process_are_called_so(start: Start, watch: Callable[..., ProcessSource]) -> None:
    stopped, zombie = start(IDLE), start(IDLE)
    source = watch(*(GpuUse(pid=child.pid, gpu_uuid=UUID) for child in (stopped, zombie)))
    row_when(source, stopped.pid, lambda row: row.state == "sleeping")
    stopped.send_signal(signal.SIGSTOP)
    zombie.kill()  # and nobody waits for it
    row_when(source, stopped.pid, lambda row: row.state == "stopped")
    row = row_when(source, zombie.pid, lambda row: row.state == "zombie")
    assert row.command is None or row.command.startswith("[")
    assert row.user is not None


def test_a_pid_that_was_given_to_another_process_is_not_taken_for_the_old_one(start: Start) -> None:
    old = start(BUSY, "old")
    source = ProcessSource(lambda: [GpuUse(pid=old.pid, gpu_uuid=UUID)], interval=600, trusted=True)
    source.read_once()
    source.read_once()
    assert (source.latest()[0].command or "").endswith("old")
    assert source.latest()[0].cpu_pct is not None
    old.kill()
    old.wait(100)
    time.sleep(0.05)  # the kernel's clock of starts has ticks of 10 ms
    for _ in range(50):
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(old.pid - 1))
        except OSError:
            pytest.skip("only root can ask for a pid, and not everywhere")
        new = start(IDLE, "new")
        if new.pid == old.pid:
            break
    else:
        pytest.skip("other processes were always faster")
    source.read_once()
    row = source.latest()[0]
    assert (row.command or "").endswith("new")
    assert row.cpu_pct is None, "its CPU time is not measured against the old one's"


def test_what_belongs_to_a_stranger_and_is_not_shown_is_absent(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: psutil.Process) -> None:
        raise psutil.AccessDenied(self.pid)

    def hidden(pid: int) -> tuple[int, int]:
        raise PermissionError(pid)

    child = start(IDLE)
    monkeypatch.setattr(procfs, "io_bytes", hidden)
    monkeypatch.setattr(psutil.Process, "cmdline", denied)
    source = ProcessSource(lambda: [GpuUse(pid=child.pid, gpu_uuid=UUID)], interval=600, trusted=True)
    source.read_once()
    source.read_once()
    row = source.latest()[0]
    assert (row.io_read_bytes_per_s, row.io_write_bytes_per_s) == (None, None)
    assert row.command is not None
    assert row.command.startswith("[python")
    assert row.rss_bytes is not None


def test_what_a_process_reads_and_writes_is_what_psutil_counts(start: Start) -> None:
    child = start(IDLE)
    own = psutil.Process(child.pid).io_counters()
    assert procfs.io_bytes(child.pid) == (own.read_bytes, own.write_bytes)


def test_a_program_that_starts_another_in_its_place_is_shown_as_that_one(
    start: Start, watch: Callable[..., ProcessSource], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    other = "[sys.executable, '-c', 'import time; time.sleep(600)', 'the-other']"
    code = f"import os, sys; print('r', flush=True); open(sys.argv[1]).read(); os.execv(sys.executable, {other})"
    child = start(code, str(gate))
    source = watch(GpuUse(pid=child.pid, gpu_uuid=UUID))
    row_when(source, child.pid, lambda row: row.command is not None and "the-other'" in row.command)
    monkeypatch.setattr(collectors.machine.processes, "COMMAND_SECONDS", 0.5)
    gate.write_text("")
    row_when(source, child.pid, lambda row: row.command is not None and row.command.endswith(" the-other"))


def test_inside_a_container_a_pid_of_the_host_is_not_taken_for_a_local_one(
    start: Start, watch: Callable[..., ProcessSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    innocent, gpu_user = start(IDLE), start(IDLE)
    opens = {gpu_user.pid}
    monkeypatch.setattr(procfs, "uses_gpu", lambda pid: pid in opens)
    uses = [GpuUse(pid=child.pid, gpu_uuid=UUID, mem_bytes=7) for child in (innocent, gpu_user)]
    source = watch(*uses, trusted=False)
    row_when(source, gpu_user.pid, lambda row: row.command is not None)
    assert row_when(source, innocent.pid, lambda row: True) == Process(
        pid=innocent.pid, gpu_uuid=UUID, gpu_mem_bytes=7
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace of its own needs root")
def test_the_pid_inside_a_container_is_found(watch: Callable[..., ProcessSource]) -> None:
    unshare = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", IDLE], stdout=subprocess.PIPE
    )
    try:
        assert unshare.stdout is not None
        if unshare.stdout.read(1) != b"r":
            pytest.skip("this machine allows no pid namespace")
        inner = psutil.Process(unshare.pid).children()[0].pid
        source = watch(GpuUse(pid=inner, gpu_uuid=UUID), trusted=None)
        if has_host_pids():
            assert row_when(source, inner, lambda row: row.user).container_pid == 1
    finally:
        for child in psutil.Process(unshare.pid).children():
            child.kill()
        unshare.kill()
        unshare.wait(100)


def test_bytes_that_are_no_text_do_not_break_the_stream(start: Start) -> None:
    child = start(IDLE, b"\xff\xfe")
    source = ProcessSource(lambda: [GpuUse(pid=child.pid, gpu_uuid=UUID)], interval=600, trusted=True)
    source.read_once()
    line = to_json(Snapshot(time=0.0, host=Host(name="h"), processes=source.latest()))
    assert b"??" in line


@pytest.mark.slow("test_a_kernel_that_stops_answering_takes_the_values_with_it has such a look at the machine")
def test_a_look_that_never_ends_leaves_what_the_driver_says(
    start: Start, watch: Callable[..., ProcessSource], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = start(IDLE)
    fifo = tmp_path / "stuck"
    os.mkfifo(fifo)

    def stuck(self: psutil.Process) -> list[str]:
        return [fifo.read_text()]  # like reading the command line of a process stuck in the kernel

    source = watch(GpuUse(pid=child.pid, gpu_uuid=UUID, mem_bytes=9))
    row_when(source, child.pid, lambda row: row.user)
    monkeypatch.setattr(collectors.machine.processes, "STALE_SECONDS", 0.0)
    monkeypatch.setattr(collectors.machine.processes, "COMMAND_SECONDS", 0.0)
    monkeypatch.setattr(psutil.Process, "cmdline", stuck)
    row = row_when(source, child.pid, lambda row: row.user is None)
    assert row == Process(pid=child.pid, gpu_uuid=UUID, gpu_mem_bytes=9)
    fifo.write_text("")


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little time for processes that a round looks at one of the foremost and at one of the others."""
    monkeypatch.setattr(collectors.machine.processes, "BUDGET", 0.0)
    monkeypatch.setattr(collectors.machine.processes, "WHOLE_SECONDS", 0.0)
    monkeypatch.setattr(collectors.machine.processes, "FOREMOST", 1)


def test_with_no_time_all_rows_are_there_and_the_largest_and_the_attached_are_known(
    start: Start, no_time: None
) -> None:
    children = [start(IDLE) for _ in range(5)]
    training = start(IDLE)
    uses = [GpuUse(pid=child.pid, gpu_uuid=UUID, mem_bytes=place) for place, child in enumerate(children)]
    uses.append(GpuUse(pid=training.pid, gpu_uuid=UUID, mem_bytes=0))
    source = ProcessSource(lambda: uses, lambda: [training.pid], interval=600, trusted=True)
    known: list[set[int]] = []
    for _ in range(5):
        source.read_once()
        rows = source.latest()
        assert {row.pid for row in rows} == {use.pid for use in uses}
        known.append({row.pid for row in rows if row.command is not None})
        largest = next(row for row in rows if row.pid == children[-1].pid)
        mine = next(row for row in rows if row.pid == training.pid)
        assert None not in (largest.started_at, mine.started_at)
    assert known[0] < known[-1], "one after the other"
    assert known[-1] == {use.pid for use in uses}, "every one has its turn"
    assert (largest.cpu_pct, mine.cpu_pct) == (0.0, 0.0), "these two are looked at each time"


def test_with_no_time_the_first_rounds_look_at_all(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors.machine.processes, "BUDGET", 0.0)
    monkeypatch.setattr(collectors.machine.processes, "WHOLE_SECONDS", 600.0)
    uses = [GpuUse(pid=start(IDLE).pid, gpu_uuid=UUID) for _ in range(4)]
    source = ProcessSource(lambda: uses, interval=600, trusted=True)
    source.read_once()
    source.read_once()
    assert [row.cpu_pct for row in source.latest()] == [0.0] * 4


def test_a_row_follows_what_the_driver_says_between_two_looks(start: Start, no_time: None) -> None:
    children = [start(IDLE) for _ in range(3)]
    uses = [GpuUse(pid=child.pid, gpu_uuid=UUID, mem_bytes=3, sm_pct=1.0) for child in children]
    source = ProcessSource(lambda: uses, interval=600, trusted=True)
    for _ in range(3):
        source.read_once()
    uses[:] = [GpuUse(pid=child.pid, gpu_uuid=UUID, mem_bytes=3, sm_pct=9.0) for child in children[:2]]
    source.read_once()
    assert sorted((row.pid, row.gpu_sm_pct) for row in source.latest()) == sorted(
        (child.pid, 9.0) for child in children[:2]
    )
    assert all(row.user is not None for row in source.latest())
