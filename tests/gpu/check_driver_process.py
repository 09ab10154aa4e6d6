"""Check the process that asks the driver, on a real GPU: python -m tests.gpu.check_driver_process [> facts.json]

Prints one JSON object: what it takes (PSS and RSS in MiB, % of a core), that the reading is whole, that a crash is
said and how soon values are back, that a monitor which is killed leaves nothing behind, and whether the driver
survives that ten times. Takes about a minute and changes nothing. Needs no torch.
Exits 1 when something does not hold; "failed" then says what.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

from collectors.base.source import GpuReading
from collectors.driver.source import DriverSource

KILLS = 10
_MONITOR = (
    "import time\n"
    "from collectors.driver.source import DriverSource\n"
    "source = DriverSource(0.2); source.start()\n"
    "while not any(gpu.power_watts for gpu in source.latest().gpus): time.sleep(0.02)\n"
    "print('running', flush=True); time.sleep(600)\n"
)


def main() -> int:
    """Measure, crash, kill and print."""
    facts: dict[str, Any] = {"failed": []}
    source = DriverSource(1.0)
    source.start()
    facts["first_values_s"] = until(source, whole)
    facts["costs"] = costs()
    facts["notes"] = source.latest().notes
    for number in (signal.SIGSEGV, signal.SIGABRT):
        facts[number.name] = crash(source, number, facts)
    source.close()
    if driver_pids(os.getpid()):
        facts["failed"].append("closing left the process that asks the driver")
    facts["kills"] = [kill_a_monitor(facts) for _ in range(KILLS)]
    print(json.dumps(facts, indent=1))
    return 1 if facts["failed"] else 0


def whole(reading: GpuReading) -> bool:
    """Whether every GPU has values."""
    return bool(reading.gpus) and all(gpu.error is None and gpu.power_watts is not None for gpu in reading.gpus)


def until(source: DriverSource, holds: Callable[[GpuReading], bool], seconds: float = 30.0) -> float | None:
    """Seconds until something holds for the reading; None when it does not."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if holds(source.latest()):
            return round(time.monotonic() - began, 3)
        time.sleep(0.01)
    return None


def driver_pids(monitor: int) -> list[int]:
    """The processes that ask the driver for that monitor."""
    return [child.pid for child in psutil.Process(monitor).children() if child.name() == "llmtop-driver"]


def costs() -> dict[str, Any]:
    """Of the process that asks the driver at 1 Hz, over ten seconds."""
    process = psutil.Process(driver_pids(os.getpid())[0])
    time.sleep(3)
    before = sum(process.cpu_times()[:2])
    time.sleep(10)
    memory = process.memory_full_info()
    return {
        "pss_mib": round(memory.pss / 2**20, 1),
        "rss_mib": round(memory.rss / 2**20, 1),
        "cpu_pct_of_a_core": round(10 * (sum(process.cpu_times()[:2]) - before), 2),
        "threads": process.num_threads(),
    }


def crash(source: DriverSource, number: signal.Signals, facts: dict[str, Any]) -> dict[str, Any]:
    """End the process as a crash in the driver's library would."""
    os.kill(driver_pids(os.getpid())[0], number)
    said = until(source, lambda reading: bool(reading.notes) and number.name in reading.notes[0])
    note = source.latest().notes
    back = until(source, whole, 90.0)
    if said is None or back is None:
        facts["failed"].append(f"{number.name}: said {said}, values back {back}")
    return {"said_after_s": said, "note": note, "values_back_after_s": back}


def kill_a_monitor(facts: dict[str, Any]) -> float | None:
    """Seconds from a monitor's SIGKILL to the end of the process that asked the driver for it."""
    with subprocess.Popen([sys.executable, "-c", _MONITOR], stdout=subprocess.PIPE) as monitor:
        assert monitor.stdout is not None
        monitor.stdout.readline()
        pid = driver_pids(monitor.pid)[0]
        monitor.kill()
    began = time.monotonic()
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() - began > 10:
            facts["failed"].append("a process that asks the driver outlived its monitor by 10 s")
            return None
        time.sleep(0.005)
    return round(time.monotonic() - began, 3)


if __name__ == "__main__":
    sys.exit(main())
