"""The machine: CPU, memory, disks and network."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import psutil

from collectors.base.periodic_thread import PeriodicThread
from collectors.machine import infiniband
from collectors.machine.containers import cpus_allowed, limit_notes
from llmtop.model.snapshot import Host
from llmtop.system import procfs
from llmtop.system.cgroups import read_limits

SHORTEST_SECONDS = 1.0
"""Shortest poll interval of the host and of processes: the kernel counts CPU time in ticks of 10 ms. A reading of
the host takes 0.4 to 1 ms, one of a process 0.1 to 0.4 ms."""
_SECTOR_BYTES = 512
"""Unit of /proc/diskstats, whatever the disk's own."""
STALE_SECONDS = 3.0
"""A reading is dropped after three rounds without a fresh one, and not before this."""

T = TypeVar("T")


class _Counters(msgspec.Struct, frozen=True):
    """Totals since boot, in bytes; None where the kernel does not report them."""

    at: float
    disk_read: int | None
    disk_written: int | None
    net_received: int | None
    net_sent: int | None


class HostSource:
    """A HostSource: one thread reads, `latest()` hands over.

    `memory_used_bytes` is total minus available, so caches that the kernel would give back do not count. Disks are
    whole disks: partitions and what is stacked on them (device mapper, RAID, loops) would count the same bytes
    again. Network file systems count as network. Network interfaces are the ones with hardware behind them, or all
    but loopback where none has (in a container). InfiniBand and RoCE traffic that bypasses the kernel is in
    `links` alone.
    """

    def __init__(self, interval: float = 1.0, links: Path = infiniband.ROOT) -> None:
        """Prepare.

        Args:
            interval: seconds between reads; less than `SHORTEST_SECONDS` counts as that.
            links: folder of the InfiniBand and RoCE adapters.
        """
        self._links = infiniband.Links(links)
        self._interval = max(interval, SHORTEST_SECONDS)
        self._name = platform.node()
        self._user = _value_or_none(lambda: psutil.Process().username())
        self._thread = PeriodicThread("host", self.read_once, self._interval)
        self._before: _Counters | None = None
        self._ticks: dict[bytes, tuple[int, int]] = {}
        self._host = Host(name=self._name)
        self._read_at: float | None = None
        self._limits: tuple[str, ...] = ()
        self._quota: float | None = None
        self._usable: int | None = None

    def start(self) -> None:
        """Start the thread that reads."""
        self._thread.start()

    def set_interval(self, seconds: float) -> None:
        """Change the poll interval.

        Args:
            seconds: between reads; less than `SHORTEST_SECONDS` counts as that.
        """
        self._interval = max(seconds, SHORTEST_SECONDS)
        self._thread.set_seconds(self._interval)

    def latest(self) -> Host:
        """Return the last reading; without values when the system has stopped answering."""
        patience = max(3 * self._interval, STALE_SECONDS)
        notes = self._limits if self._thread.fault is None else (*self._limits, self._thread.fault)
        if self._read_at is not None and time.monotonic() - self._read_at > patience:
            return Host(
                name=self._name,
                user=self._user,
                notes=(*notes, "the system has stopped answering about CPU, memory and disks"),
            )
        return msgspec.structs.replace(self._host, user=self._user, notes=notes)

    def read_at(self) -> float | None:
        """Return when the last reading was made, in monotonic seconds."""
        return self._read_at

    def close(self) -> None:
        """End the thread that reads; waits half a second for it at most."""
        self._thread.stop()
        self._thread.join(0.5)

    def read_once(self) -> None:
        """Read the host; its thread does it once per interval."""
        first = self._before is None
        ticks = _value_or_none(procfs.cpu_ticks) or {}
        cores = _busy_pct(self._ticks, ticks)
        load = _value_or_none(os.getloadavg) or (None, None, None)
        memory = _read_memory()
        counters = _counters()
        machine, usable = len(ticks) or psutil.cpu_count(), _value_or_none(lambda: len(os.sched_getaffinity(0)))
        if first or usable != self._usable:  # a scheduler may give CPUs and take them away
            limits = read_limits()
            self._usable, self._quota = usable, limits.cpus
            self._limits = limit_notes(memory.total, machine, limits, usable)
        self._host = Host(
            name=self._name,
            cpu_pct=sum(cores) / len(cores) if cores else None,
            cpu_per_core_pct=tuple(cores) or None,
            cpus_allowed=cpus_allowed(usable, self._quota, machine),
            load_1m=load[0],
            load_5m=load[1],
            load_15m=load[2],
            memory_used_bytes=memory.used,
            memory_total_bytes=memory.total,
            swap_used_bytes=memory.swap_used,
            swap_total_bytes=memory.swap_total,
            links=self._links.read(),
            **_rates(self._before, counters),
        )
        self._before, self._ticks = counters, ticks
        self._read_at = time.monotonic()


def _value_or_none(read: Callable[[], T]) -> T | None:
    """Return the value from psutil, or None where this kernel or container hides it."""
    try:
        return read()
    except (OSError, RuntimeError, ValueError, NotImplementedError, psutil.Error):
        return None


def _busy_pct(before: Mapping[bytes, tuple[int, int]], now: Mapping[bytes, tuple[int, int]]) -> list[float]:
    """Return the share of time with work of each CPU that was online at both readings, in percent."""
    shares = []
    for cpu, (idle, total) in now.items():
        if cpu in before:
            idle_before, total_before = before[cpu]
            passed = total - total_before
            # Ticks of a CPU without work may fall (proc_stat(5)).
            busy = min(max(passed - (idle - idle_before), 0), passed)
            shares.append(round(100 * busy / passed, 1) if passed > 0 else 0.0)
    return shares


class _Memory(NamedTuple):
    """Memory in bytes; None where the kernel hides it."""

    used: int | None
    total: int | None
    swap_used: int | None
    swap_total: int | None


def _read_memory() -> _Memory:
    """Read memory and swap in one go; psutil reads the same file once for each, and another for swapped pages."""
    found = procfs.memory()
    total, available = found.get("MemTotal"), found.get("MemAvailable")
    if total is None or not available or available > total:  # kernels before 3.14, and LXC: psutil estimates
        estimate = _value_or_none(psutil.virtual_memory)
        total = None if estimate is None else estimate.total
        available = None if estimate is None else estimate.available
    swap, free = found.get("SwapTotal"), found.get("SwapFree")
    return _Memory(
        None if total is None or available is None else total - available,
        total,
        None if swap is None or free is None else swap - free,
        swap,
    )


def _counters() -> _Counters:
    # 64-bit totals do not wrap, and a smaller one gives no rate.
    disks = _value_or_none(procfs.disk_counters) or {}
    interfaces = _value_or_none(procfs.network_counters) or {}
    whole = _cached_disks(tuple(disks))
    disk = [counts for name, counts in disks.items() if name in whole]
    net = [interfaces[name] for name in _cached_interfaces(tuple(interfaces))]
    return _Counters(
        at=time.monotonic(),
        disk_read=sum(int(one[5]) for one in disk) * _SECTOR_BYTES if disk else None,
        disk_written=sum(int(one[9]) for one in disk) * _SECTOR_BYTES if disk else None,
        net_received=sum(int(one[0]) for one in net) if net else None,
        net_sent=sum(int(one[8]) for one in net) if net else None,
    )


@lru_cache(maxsize=1)
def _cached_disks(_names: tuple[str, ...]) -> set[str]:
    """Return the whole disks for as long as there are these: /sys is asked again when one comes or goes."""
    return whole_disks()


@lru_cache(maxsize=1)
def _cached_interfaces(names: tuple[str, ...]) -> list[str]:
    return physical_interfaces(list(names))


def whole_disks(sys_block: Path = Path("/sys/block")) -> set[str]:
    """Names of the disks that have hardware behind them."""
    try:
        return {entry.name for entry in sys_block.iterdir() if (entry / "device").exists()}
    except OSError:
        return set()


def physical_interfaces(names: list[str], sys_net: Path = Path("/sys/class/net")) -> list[str]:
    """Return which of the interfaces carry traffic of this machine to others, each byte once."""
    real = [name for name in names if (sys_net / name / "device").exists()]
    return real or [name for name in names if name != "lo"]


def _rates(before: _Counters | None, now: _Counters) -> dict[str, Any]:
    if before is None:
        return {}
    seconds = now.at - before.at

    def rate(old: int | None, new: int | None) -> float | None:
        # A total falls when a disk or an interface goes away.
        return None if old is None or new is None or new < old or seconds <= 0 else (new - old) / seconds

    return {
        "disk_read_bytes_per_s": rate(before.disk_read, now.disk_read),
        "disk_write_bytes_per_s": rate(before.disk_written, now.disk_written),
        "net_rx_bytes_per_s": rate(before.net_received, now.net_received),
        "net_tx_bytes_per_s": rate(before.net_sent, now.net_sent),
    }
