"""Judgement of a kernel from chosen counters, where the section of speed of light was not recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from llmtop.format import percent_text
from llmtop.hardware.gpu_specs import memory_bytes_per_s
from llmtop.ncu.profile import KernelProfile

_STALLED: Final = re.compile(r"stalled_([a-z_]+?)(?:_per_\w+)?(?:_not_issued)?\.(?:ratio|pct)$")
_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "memory": (
        "long_scoreboard",
        "lg_throttle",
        "short_scoreboard",
        "mio_throttle",
        "tex_throttle",
        "drain",
        "imc_miss",
    ),
    "synchronisation": ("barrier", "membar", "sleeping"),
    "arithmetic": ("math_pipe_throttle", "gmma", "dispatch_stall"),
    "fixed latency": ("wait",),
    "instruction fetch": ("no_instruction", "branch_resolving"),
    "not selected": ("not_selected",),
}
"""Stalls by what a warp waits for, as ncu's guide groups its warp states."""
_ISSUE_SLOTS: Final = 4.0
"""Instructions that an SM issues in a cycle at most: one for each of its four schedulers, from Volta on."""


def dram_pct(kernel: KernelProfile) -> float | None:
    """Return how busy device memory was, in percent of what it can do; None where nothing of it was counted.

    Reads and writes count against one peak. Where only bytes were counted, the peak is the datasheet's.
    """
    end = ".pct_of_peak_sustained_elapsed"
    whole = kernel.number(f"gpu__dram_throughput.avg{end}", f"dram__throughput.avg{end}", f"dram__bytes.sum{end}")
    if whole is not None:
        return whole
    parts = [kernel.number(f"dram__bytes_{way}.sum{end}") for way in ("read", "write")]
    if any(part is not None for part in parts):
        return sum(part for part in parts if part is not None)
    rate, peak = dram_bytes_per_s(kernel), memory_bytes_per_s(kernel.gpu)
    return None if rate is None or not peak else 100.0 * rate / peak


def dram_counted(kernel: KernelProfile) -> str:
    """Return how busy device memory was, in words that name a direction that was not counted; "" without any."""
    share = dram_pct(kernel)
    if share is None:
        return ""
    counted = {
        way
        for way in ("read", "write")
        if any(name.startswith(f"dram__bytes_{way}.sum") for name in kernel.numbers)
    }
    whole = ("gpu__dram_throughput.avg", "dram__throughput.avg", "dram__bytes.sum.p")
    if len(counted) != 1 or any(name.startswith(whole) for name in kernel.numbers):
        return f"DRAM is busy {percent_text(share)} of the time"
    way, other = ("reads", "writes") if "read" in counted else ("writes", "reads")
    return f"{way} keep DRAM busy {percent_text(share)} of the time, {other} were not counted"


def dram_bytes_per_s(kernel: KernelProfile) -> float | None:
    """Bytes a second to and from device memory, as far as they were counted."""
    whole = kernel.number("dram__bytes.sum.per_second")
    parts = [kernel.number(f"dram__bytes_{way}.sum.per_second") for way in ("read", "write")]
    counted = [part for part in parts if part is not None]
    return whole if whole is not None else sum(counted) if counted else None


def issue_pct(kernel: KernelProfile) -> float | None:
    """Return how many of the slots for instructions were used, in percent; None where none was counted."""
    active = kernel.number(
        "smsp__issue_active.avg.pct_of_peak_sustained_active", "sm__issue_active.avg.pct_of_peak_sustained_elapsed"
    )
    per_cycle = kernel.number("sm__inst_executed.avg.per_cycle_active", "sm__inst_issued.avg.per_cycle_active")
    if active is not None:
        return active
    return None if per_cycle is None else 100.0 * per_cycle / _ISSUE_SLOTS


def stall_groups(kernel: KernelProfile) -> dict[str, float]:
    """Percent of all stalls by group, the largest first; empty where no stall was counted."""
    found: dict[str, float] = {}
    for name, value in kernel.numbers.items():
        match = _STALLED.search(name)
        if match is not None and match[1] != "selected":
            found[match[1]] = max(found.get(match[1], 0.0), value)
    total = sum(found.values())
    if not total:
        return {}
    shares = {
        group: 100.0 * sum(found.get(name, 0.0) for name in names) / total for group, names in _GROUPS.items()
    }
    return dict(sorted(((group, share) for group, share in shares.items() if share), key=lambda item: -item[1]))


def stall_group(stall: str) -> str:
    """Return the group of a stall by ncu's name of it: "memory" of "long_scoreboard"; "" where it has none."""
    return next((group for group, names in _GROUPS.items() if stall in names), "")


def sectors_text(kernel: KernelProfile) -> str:
    """Sectors that each request of global memory touched: "loads 8.0, stores 4.0"; "" where not counted."""
    words = []
    for name, operation in (("loads", "ld"), ("stores", "st")):
        ratio = kernel.number(f"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{operation}.ratio")
        each = ratio if ratio is not None else kernel.sectors_a_request(operation)
        words += [f"{name} {each:.1f}"] if each else []
    return ", ".join(words)


def counted_text(kernel: KernelProfile) -> str:
    """Return the counted values of a kernel in a few words, for a report that shows no limit; "" where nothing
    was counted."""
    issue, conflicts = issue_pct(kernel), kernel.conflicts_pct()
    occupancy = kernel.number("sm__warps_active.avg.pct_of_peak_sustained_active")
    rate = dram_bytes_per_s(kernel)
    found = [
        dram_counted(kernel),
        f"DRAM {rate / 1e9:.1f} GB/s" if dram_pct(kernel) is None and rate is not None else "",
        f"issue slots {percent_text(issue)} used" if issue is not None else "",
        f"occupancy {percent_text(occupancy)}" if occupancy is not None else "",
        f"bank conflicts {percent_text(conflicts)} of wavefronts" if conflicts is not None else "",
        f"sectors a request: {sectors_text(kernel)}" if sectors_text(kernel) else "",
    ]
    return "; ".join(text for text in found if text)
