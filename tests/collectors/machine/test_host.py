"""What the machine's row says, against what the kernel says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import collectors.machine.host
from collectors.machine.containers import cpus_allowed, limit_notes
from collectors.machine.host import HostSource, physical_interfaces, whole_disks
from llmtop.system import procfs
from llmtop.system.cgroups import read_limits
from tests.support.processes import environment, wait_for

GIB = 1 << 30


@pytest.fixture
def source() -> Iterator[HostSource]:
    source = HostSource(0.5)
    source.start()
    yield source
    source.close()


def test_the_machine_is_described(source: HostSource) -> None:
    wait_for(lambda: source.latest().cpu_pct is not None)
    host = source.latest()
    assert host.name == os.uname().nodename
    assert host.cpu_per_core_pct is not None
    assert len(host.cpu_per_core_pct) == psutil.cpu_count()
    assert host.memory_total_bytes == psutil.virtual_memory().total
    assert host.memory_used_bytes is not None
    assert 0 < host.memory_used_bytes < host.memory_total_bytes
    assert host.load_1m is not None
    assert host.swap_total_bytes == psutil.swap_memory().total


def test_shares_and_rates_are_unknown_until_there_are_two_readings() -> None:
    source = HostSource(60)
    assert source.latest().memory_total_bytes is None
    source.read_once()
    host = source.latest()
    assert (host.cpu_pct, host.cpu_per_core_pct, host.net_rx_bytes_per_s, host.disk_read_bytes_per_s) == (
        None,
    ) * 4
    assert host.memory_total_bytes is not None


def test_a_busy_core_shows(source: HostSource) -> None:
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        wait_for(lambda: max(source.latest().cpu_per_core_pct or (0,)) > 50)
    finally:
        spinning.kill()
        spinning.wait(100)


def test_written_bytes_show_on_a_disk_that_is_counted(source: HostSource, tmp_path: Path) -> None:
    if not (psutil.disk_io_counters(perdisk=True).keys() & whole_disks()):
        pytest.skip("this machine shows no disk with hardware behind it")
    before = {name: count.write_bytes for name, count in psutil.disk_io_counters(perdisk=True).items()}
    path = tmp_path / "file"

    def written() -> bool:
        with path.open("wb") as file:
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        return bool(source.latest().disk_write_bytes_per_s)

    try:
        wait_for(written, seconds=5)
    except AssertionError:
        now = psutil.disk_io_counters(perdisk=True)
        if all(now[name].write_bytes == before[name] for name in whole_disks() & now.keys()):
            pytest.skip("the temporary folder is not on a counted disk")
        raise


def test_only_whole_disks_and_real_interfaces_are_counted(tmp_path: Path) -> None:
    for name in ("nvme0n1", "sda"):
        (tmp_path / name / "device").mkdir(parents=True)
    for name in ("loop0", "dm-0", "md127", "zram0"):
        (tmp_path / name).mkdir()
    assert whole_disks(tmp_path) == {"nvme0n1", "sda"}
    assert whole_disks(tmp_path / "missing") == set()
    assert physical_interfaces(["lo", "sda", "docker0", "veth1"], tmp_path) == ["sda"]
    assert physical_interfaces(["lo", "eth0"], tmp_path) == ["eth0"], (
        "in a container no interface has hardware of its own"
    )


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for /proc, with that of this process."""
    monkeypatch.setattr(procfs, "ROOT", str(tmp_path / "proc"))
    (tmp_path / "proc" / "self").mkdir(parents=True)
    return tmp_path / "proc"


def test_limits_of_a_container_are_named(tmp_path: Path, proc: Path) -> None:
    cgroup = tmp_path / "cgroup"
    inner = cgroup / "pod" / "box"
    inner.mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/pod/box\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "cpu.max").write_text("max 100000\n")
    assert limit_notes(64 * GIB, 16, read_limits(mount=cgroup)) == ()
    (cgroup / "pod" / "memory.max").write_text(f"{8 * GIB}\n")
    (inner / "cpu.max").write_text("250000 100000\n")
    memory, cpus = limit_notes(64 * GIB, 16, read_limits(mount=cgroup))
    assert "8.0 GiB of the machine's 64.0 GiB" in memory
    assert "2.5 of the machine's 16 CPUs" in cpus


def test_limits_of_the_older_cgroups_are_named(tmp_path: Path, proc: Path) -> None:
    cgroup = tmp_path / "cgroup"
    for controller in ("memory", "cpu"):
        (cgroup / controller).mkdir(parents=True)
    # Inside a container the path of the host is named, but what is mounted is its own folder.
    (proc / "self" / "cgroup").write_text("4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n")
    (cgroup / "memory" / "memory.limit_in_bytes").write_text(f"{4 * GIB}\n")
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    (cgroup / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    notes = limit_notes(64 * GIB, 16, read_limits(mount=cgroup))
    assert "4.0 GiB" in notes[0]
    assert "1.5 of the machine's 16 CPUs" in notes[1]
    (cgroup / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert limit_notes(64 * GIB, 16, read_limits(mount=cgroup)) == ()


def test_what_the_kernel_hides_is_absent_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(*_args: object, **_keywords: object) -> None:
        raise PermissionError("hidden")

    for name in ("disk_counters", "network_counters", "cpu_ticks"):
        monkeypatch.setattr(procfs, name, hidden)
    monkeypatch.setattr(procfs, "memory", dict)  # psutil finds the memory, and no swap
    source = HostSource(60)
    source.read_once()
    source.read_once()
    host = source.latest()
    assert host.memory_total_bytes is not None
    absent = (host.cpu_pct, host.swap_used_bytes, host.disk_read_bytes_per_s, host.net_rx_bytes_per_s)
    assert absent == (None,) * 4


def test_a_kernel_that_stops_answering_takes_the_values_with_it(
    monkeypatch: pytest.MonkeyPatch, source: HostSource, tmp_path: Path
) -> None:
    fifo = tmp_path / "stuck"
    os.mkfifo(fifo)
    wait_for(lambda: source.latest().cpu_pct is not None)
    monkeypatch.setattr(collectors.machine.host, "STALE_SECONDS", 0.0)
    monkeypatch.setattr(procfs, "cpu_ticks", fifo.read_text)  # blocks until somebody writes
    wait_for(lambda: source.latest().memory_total_bytes is None)
    assert "the system has stopped answering about CPU, memory and disks" in source.latest().notes
    fifo.write_text("")


def test_a_limit_at_which_memory_is_taken_away_is_named(tmp_path: Path, proc: Path) -> None:
    cgroup = tmp_path / "cgroup"
    (cgroup / "job").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/job\n")
    (cgroup / "job" / "memory.high").write_text(f"{6 * GIB}\n")
    (cgroup / "job" / "memory.max").write_text("max\n")
    (note,) = limit_notes(64 * GIB, 16, read_limits(mount=cgroup))
    assert "slowed down beyond 6.0 GiB of the machine's 64.0 GiB" in note
    (cgroup / "job" / "memory.max").write_text(f"{4 * GIB}\n")  # never reached then
    (note,) = limit_notes(64 * GIB, 16, read_limits(mount=cgroup))
    assert "may use 4.0 GiB" in note
    (cgroup / "job" / "memory.high").write_text("max\n")
    assert len(limit_notes(64 * GIB, 16, read_limits(mount=cgroup))) == 1


@pytest.mark.parametrize(
    ("usable", "quota", "allowed"),
    [
        (16, None, None),
        (None, None, None),
        (4, None, 4.0),
        (16, 2.5, 2.5),
        (4, 2.5, 2.5),
        (2, 8.0, 2.0),
        (16, 16.0, None),
    ],
)
def test_what_allows_the_fewest_cpus_counts(
    usable: int | None, quota: float | None, allowed: float | None
) -> None:
    assert cpus_allowed(usable, quota, 16) == allowed


def test_cpus_that_a_scheduler_gives_and_takes_are_told() -> None:
    """In a process of its own, whose affinity is narrowed while the source reads."""
    script = """
import os
from collectors.machine.host import HostSource
from llmtop.cli.live.snapshot_text import render
from llmtop.model.snapshot import Snapshot
source = HostSource(60)
mine = sorted(os.sched_getaffinity(0))
source.read_once()
source.read_once()
before = source.latest()
os.sched_setaffinity(0, mine[:1])
source.read_once()
after = source.latest()
page = render(Snapshot(time=0.0, host=after))
noted = any("may run on 1 of" in note for note in after.notes)
print(before.cpus_allowed, after.cpus_allowed, noted, ", 1 allowed" in page)
os.sched_setaffinity(0, mine)
source.read_once()
print(source.latest().cpus_allowed == before.cpus_allowed)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True, timeout=240
    )
    usable, machine = len(os.sched_getaffinity(0)), psutil.cpu_count() or 1
    if machine == 1:
        pytest.skip("one CPU cannot be narrowed")
    told, back = done.stdout.splitlines()
    assert told.split()[1:] == ["1.0", "True", "True"]
    assert (told.split()[0] == "None") == (usable == machine)
    assert back == "True"


def test_memory_that_the_kernel_does_not_list_is_psutil_s_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    total = psutil.virtual_memory().total
    monkeypatch.setattr(
        procfs, "memory", lambda: {"MemTotal": 8, "MemAvailable": 9, "SwapTotal": 7, "SwapFree": 2}
    )
    source = HostSource(60)
    source.read_once()
    host = source.latest()
    assert host.memory_total_bytes == total, "a container of LXC: more is available than there is"
    assert host.memory_used_bytes is not None
    assert 0 < host.memory_used_bytes < total
    assert (host.swap_used_bytes, host.swap_total_bytes) == (5, 7)


def test_shares_of_cpus_are_those_of_ticks_between_two_readings(proc: Path) -> None:
    source = HostSource(60)
    for lines in (
        "cpu\ncpu0 10 0 10 80 0 0 0 0 0 0\ncpu1 0 0 0 50 50 0 0 0 0 0\n",
        # cpu0: 30 of 120 ticks with work; cpu1: ticks without work fell; cpu2 has just come.
        "cpu\ncpu0 30 0 20 160 10 0 0 0 0 0\ncpu1 10 0 0 55 40 0 0 0 0 0\ncpu2 9 0 0 9 0 0 0 0 0 0\n",
    ):
        (proc / "stat").write_text(lines)
        source.read_once()
    assert source.latest().cpu_per_core_pct == (25.0, 100.0)
    assert source.latest().cpu_pct == 62.5
