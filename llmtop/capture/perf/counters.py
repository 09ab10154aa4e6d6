"""Counters of `perf stat -j` for a process with its workers: rates, and the hardware counters where the machine
has any.

Instructions a cycle: under 1 the cores mostly wait, as a rule for memory; over 2 they compute (Brendan Gregg, "CPU
Utilization is Wrong", 2017, whose limits for 4-wide cores these are). On most virtual machines there are none.
"""

from __future__ import annotations

import json

from llmtop.stacks.model import Counters

EVENTS = (
    "task-clock",
    "context-switches",
    "cpu-migrations",
    "page-faults",
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branches",
    "branch-misses",
)
_IN_THE_KERNEL = frozenset({"context-switches", "cpu-migrations"})
"""Always 0 where perf may count user mode alone (perf_event_paranoid of 2, without privileges): unknown."""
MEMORY_BOUND_IPC, COMPUTE_BOUND_IPC = 1.0, 2.0


def read_counters(text: str, seconds: float) -> Counters:
    """Read it.

    Args:
        text: one JSON object a line.
        seconds: for how long it counted.
    """
    found: dict[str, float] = {}
    absent = []
    for line in text.splitlines():
        try:
            value_text = json.loads(line)
            name, _, mode = str(value_text["event"]).partition(":")
            value = str(value_text["counter-value"])
        except (ValueError, KeyError, TypeError):
            continue
        if name in _IN_THE_KERNEL and mode == "u":
            absent.append(name)
            continue
        try:
            found[name] = float(value)
        except ValueError:
            absent.append(name)
    ipc = _ratio(found, "instructions", "cycles")
    cache, branches = _ratio(found, "cache-misses", "cache-references"), _ratio(found, "branch-misses", "branches")
    return Counters(
        seconds=seconds,
        cpus=None if "task-clock" not in found else found["task-clock"] / 1e3 / seconds,
        context_switches_per_s=_rate(found, "context-switches", seconds),
        migrations_per_s=_rate(found, "cpu-migrations", seconds),
        page_faults_per_s=_rate(found, "page-faults", seconds),
        ipc=ipc,
        cache_miss_pct=None if cache is None else 100 * cache,
        branch_miss_pct=None if branches is None else 100 * branches,
        bound=None
        if ipc is None
        else "memory"
        if ipc < MEMORY_BOUND_IPC
        else "compute"
        if ipc > COMPUTE_BOUND_IPC
        else "neither",
        absent=tuple(absent),
    )


def _rate(found: dict[str, float], name: str, seconds: float) -> float | None:
    return found[name] / seconds if name in found else None


def _ratio(found: dict[str, float], part: str, whole: str) -> float | None:
    return found[part] / found[whole] if part in found and found.get(whole) else None
