"""Rules about device memory: running out, and growing."""

from __future__ import annotations

import shlex
from typing import Final

from llmtop import format as fmt
from llmtop.rules import limits
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.gpu import GpuState, share_pct
from llmtop.rules.state.memory_trend import BRIEF_LEAK, BUCKETS, FAST_LEAK, SLOW_LEAK, MemoryRise
from llmtop.rules.state.rank import RankState

_RETRY_SECONDS: Final = 60.0
GROWTH_PCT: Final = limits.CONFIGURED.memory_growth.memory_pct or 1.0
"""Percent of the GPU's memory: a floor that rises by less over the buckets is noise of the allocator."""
_GROWTH_BYTES: Final = 256 << 20
_SOON_SECONDS: Final = 600.0
_AT_ONCE_SECONDS: Final = 300.0
"""A rise of 20 s raises the alert if the GPU would be full within this time; else three minutes are observed."""


def used_pct(gpu: GpuState | None) -> float | None:
    """Memory in use on the GPU, by all processes."""
    return None if gpu is None else share_pct(gpu.mem_used_bytes, gpu.gpu.mem_total_bytes)


def _has_retried(state: RankState) -> bool:
    failed = state.memory.allocator_failed_at
    return failed is not None and state.now - failed <= _RETRY_SECONDS


def _is_short(state: RankState, is_raised: bool) -> bool:
    return _has_run_out_of_memory(state) or (state.rank.state != "gone" and _has_retried(state))


def _has_run_out_of_memory(state: RankState) -> bool:
    return state.rank.memory_snapshot is not None


def _pressure_alert(state: RankState) -> AlertText:
    if _has_run_out_of_memory(state):
        return _out_of_memory_alert(state)
    used, gpu, failures = used_pct(state.gpu), state.gpu, state.memory.failures
    total = gpu.gpu.mem_total_bytes if gpu else None
    where = f" ({state.location})" if state.location else ""
    kind = "system" if gpu and gpu.gpu.memory_is_system else "GPU"
    held = "" if used is None else f"{fmt.percent_text(used, 1)} of {fmt.size(total)} {kind} memory in use"
    label = state.label[0].upper() + state.label[1:]
    return AlertText(
        severity="warning",
        summary=f"{label}{where}: {fmt.counted(failures, 'allocation')} of GPU memory failed or had to be "
        "repeated "
        f"since llmtop started{'; ' + held if held else ''}.",
        evidence={
            "mem_used_bytes": gpu.mem_used_bytes if gpu else None,
            "mem_total_bytes": total,
            "mem_used_pct": used,
            "memory_allocated_bytes": state.rank.memory_allocated_bytes,
            "memory_reserved_bytes": state.rank.memory_reserved_bytes,
            "memory_peak_bytes": state.rank.memory_peak_bytes,
            "allocator_failures": failures,
        },
        next="use a smaller batch or activation checkpointing, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        points=complete_clauses(
            f"{fmt.counted(failures, 'allocation')} failed or retried", held or "GPU memory is full"
        ),
    )


def _out_of_memory_alert(state: RankState) -> AlertText:
    where = f" ({state.location})" if state.location else ""
    label = state.label[0].upper() + state.label[1:]
    return AlertText(
        severity="critical",
        summary=f"{label}{where} ended with an out-of-memory error; the memory snapshot lists its allocations.",
        evidence={
            "memory_allocated_bytes": state.rank.memory_allocated_bytes,
            "memory_reserved_bytes": state.rank.memory_reserved_bytes,
            "memory_peak_bytes": state.rank.memory_peak_bytes,
            "memory_snapshot": state.rank.memory_snapshot,
        },
        next=f"read the snapshot, run: llmtop report {shlex.quote(state.rank.memory_snapshot or '')}",
        points=complete_clauses(
            "ended with an out-of-memory error",
            f"peak {fmt.size(state.rank.memory_peak_bytes)}",
            f"reserved {fmt.size(state.rank.memory_reserved_bytes)}",
        ),
    )


_PRESSURE: Final = RuleText(
    meaning="The next allocation may fail. PyTorch first frees its cache and retries, which stops the GPU each "
    "time, and then raises an out-of-memory error.",
    condition=f"the allocator of PyTorch retried or raised an out-of-memory error within the last "
    f"{_RETRY_SECONDS:.0f} s, or an out-of-memory error has ended the process. Nearly full memory alone raises no "
    "alert: many trainings and servers use it as planned",
    source="counters of PyTorch's allocator (torch.cuda.memory_stats: num_alloc_retries, num_ooms), and the "
    "memory in use by NVML",
    clear_seconds=5.0,
    fields=("mem_used_bytes", "memory_allocated_bytes", "memory_reserved_bytes"),
)

MEMORY_PRESSURE: Final = Rule[RankState](
    id="memory_pressure",
    holds=_is_short,
    describe=_pressure_alert,
    text=_PRESSURE,
)


def _growth(state: RankState) -> MemoryRise | None:
    total = state.gpu.gpu.mem_total_bytes if state.gpu else None
    enough = _GROWTH_BYTES if total is None else total * GROWTH_PCT / 100
    for growth in state.memory.growths():
        left = _seconds_left(state, growth)
        if growth.last_bytes - growth.first_bytes < enough:
            continue
        if not growth.is_brief or (left is not None and left < _AT_ONCE_SECONDS):
            return growth
    return None


def _seconds_left(state: RankState, growth: MemoryRise | None) -> float | None:
    """Return the seconds until the GPU is full at this rate; None where unknown."""
    total = state.gpu.gpu.mem_total_bytes if state.gpu else None
    held, rate = state.rank.memory_allocated_bytes, growth.bytes_per_second if growth else None
    return max(total - held, 0) / rate if total is not None and held is not None and rate else None


def _is_growing(state: RankState, is_raised: bool) -> bool:
    return state.rank.state == "running" and _growth(state) is not None


def _growth_alert(state: RankState) -> AlertText:
    growth = _growth(state)
    rise = growth.last_bytes - growth.first_bytes if growth else 0
    a_step = rise / growth.steps if growth and growth.steps else None
    total = state.gpu.gpu.mem_total_bytes if state.gpu else None
    left = _seconds_left(state, growth)
    where = f" ({state.location})" if state.location else ""
    until = fmt.duration(None if left is None else float(round(left)))
    when = f"; the GPU is full in about {until} at this rate" if left is not None else ""
    label = state.label[0].upper() + state.label[1:]
    return AlertText(
        severity="critical" if left is not None and left < _SOON_SECONDS else "warning",
        summary=f"{label}{where} allocates {fmt.size(a_step)} more GPU memory in each step, now "
        f"{fmt.size(state.rank.memory_allocated_bytes)}{when}.",
        evidence={
            "memory_allocated_bytes": state.rank.memory_allocated_bytes,
            "growth_bytes": rise or None,
            "growth_bytes_per_step": a_step,
            "growth_steps": growth.steps if growth else None,
            "growth_seconds": growth.seconds if growth else None,
            "seconds_until_full": left,
            "mem_total_bytes": total,
        },
        next="find tensors kept over steps: add loss.item(), not loss, to totals; store no outputs in lists",
        since=growth.since if growth else None,
        points=complete_clauses(
            f"GPU full in about {until}",
            f"+{fmt.size(a_step)} per step",
            f"now {fmt.size(state.rank.memory_allocated_bytes)}",
        ),
    )


MEMORY_GROWTH: Final = Rule[RankState](
    id="memory_growth",
    holds=_is_growing,
    describe=_growth_alert,
    covered_by=frozenset({"memory_pressure"}),
    text=RuleText(
        meaning="The memory that tensors use never falls back to its earlier minimum: the script keeps tensors "
        "that it should "
        "free, most often a loss with its graph.",
        condition="after warm-up, the minimum of the allocated memory rises from each period to the next, "
        f"{BUCKETS} periods "
        f"in a row, by {GROWTH_PCT:.0f} % of the GPU memory in total. A period has at least {FAST_LEAK[0]} steps "
        "and "
        f"{FAST_LEAK[1]:.0f} s; for slow growth {SLOW_LEAK[0]} steps and {SLOW_LEAK[1] / 60:.0f} minutes. If the "
        "GPU would be full "
        f"within {_AT_ONCE_SECONDS / 60:.0f} minutes: {BRIEF_LEAK[0]} steps and "
        f"{BRIEF_LEAK[1]:.0f} s, and the maximum rises too",
        source="torch.cuda.memory_allocated, as published by the training",
        clear_seconds=5.0,
        fields=("memory_allocated_bytes", "memory_reserved_bytes", "mem_used_bytes"),
    ),
)
