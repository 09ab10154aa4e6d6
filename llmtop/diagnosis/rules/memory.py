"""Rules about device memory: nearly full, and growing."""

from __future__ import annotations

from typing import Final

from llmtop import format as fmt
from llmtop.diagnosis.gpu_state import GpuState, share_pct
from llmtop.diagnosis.memory_trend import Growth
from llmtop.diagnosis.rank_state import RankState
from llmtop.diagnosis.rules.base import Rule, RuleText, Told

FULL_PCT: Final = (97.0, 96.0)
"""Of the GPU's memory. Caching allocators and inference servers plan for 90 to 95."""
OWN_PCT: Final = 90.0
"""What a training's tensors must have needed of the GPU at their peak; below it, its cache has slack."""
_RETRY_SECONDS: Final = 60.0
GROWTH_PCT: Final = 1.0
"""Of the GPU's memory: a floor that rises by less over the buckets is noise of the allocator."""
_GROWTH_BYTES: Final = 256 << 20
_SOON_SECONDS: Final = 600.0


def used_pct(gpu: GpuState | None) -> float | None:
    """Memory in use on the GPU, by all processes."""
    return None if gpu is None else share_pct(gpu.gpu.mem_used_bytes, gpu.gpu.mem_total_bytes)


def _is_full(gpu: GpuState | None, up: bool) -> bool:
    used = used_pct(gpu)
    return used is not None and used >= FULL_PCT[up]


def _gpu_is_full(gpu: GpuState, up: bool) -> bool:
    return not gpu.rank_pids and _is_full(gpu, up)


def _tell_gpu(gpu: GpuState) -> Told:
    used = used_pct(gpu)
    return Told(
        severity="warning",
        summary=f"{gpu.label} has {fmt.percent(used, 1)} of its {fmt.size(gpu.gpu.mem_total_bytes)} in use: "
        "the next allocation may fail.",
        evidence={
            "mem_used_bytes": gpu.gpu.mem_used_bytes,
            "mem_total_bytes": gpu.gpu.mem_total_bytes,
            "mem_used_pct": used,
        },
        next="press p to see which processes hold it",
    )


def _retried(state: RankState) -> bool:
    failed = state.memory.allocator_failed_at
    return failed is not None and state.now - failed <= _RETRY_SECONDS


def _own_pct(state: RankState) -> float | None:
    need = state.rank.memory_peak_bytes or state.rank.memory_allocated_bytes
    return share_pct(need, state.gpu.gpu.mem_total_bytes if state.gpu else None)


def _rank_is_short(state: RankState, up: bool) -> bool:
    if state.rank.state == "gone":
        return False
    if _retried(state):
        return True
    own = _own_pct(state)
    return _is_full(state.gpu, up) and (own is None or own >= OWN_PCT)


def _tell_rank(state: RankState) -> Told:
    retried, used = _retried(state), used_pct(state.gpu)
    gpu = state.gpu.gpu if state.gpu else None
    where = f" ({state.where})" if state.where else ""
    held = f"{fmt.percent(used, 1)} of {fmt.size(gpu.mem_total_bytes)} in use" if gpu and used is not None else ""
    said = (
        f"{state.label}{where}: the allocator ran out and tried again {state.memory.failures} times while it was "
        f"watched; each time waits for the GPU{f'; {held}' if held else ''}."
        if retried
        else f"{state.label}{where}: {held}, and its tensors need it: the next allocation may fail."
    )
    return Told(
        severity="warning",
        summary=said[0].upper() + said[1:],
        evidence={
            "mem_used_bytes": gpu.mem_used_bytes if gpu else None,
            "mem_total_bytes": gpu.mem_total_bytes if gpu else None,
            "mem_used_pct": used,
            "memory_allocated_bytes": state.rank.memory_allocated_bytes,
            "memory_reserved_bytes": state.rank.memory_reserved_bytes,
            "memory_peak_bytes": state.rank.memory_peak_bytes,
            "allocator_failures": state.memory.failures if retried else None,
        },
        next="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, activation checkpointing, or a smaller batch",
    )


_PRESSURE: Final = RuleText(
    title="device memory nearly full",
    meaning="The next allocation may fail. torch first frees its cache and tries again, which stops the GPU each "
    "time, and then raises an out-of-memory error.",
    condition=f"allocator retries or out-of-memory errors within {_RETRY_SECONDS:.0f} s; or at least "
    f"{FULL_PCT[0]:.0f} % of the GPU's memory in use, of which an attached training's tensors needed at least "
    f"{OWN_PCT:.0f} % at their peak (a cache with slack is no pressure)",
    source="torch.cuda.memory_stats (num_alloc_retries, num_ooms), NVML's memory in use",
    hold_seconds=3.0,
    clear_seconds=10.0,
    fields=("mem_used_bytes", "memory_allocated_bytes", "memory_reserved_bytes"),
)

GPU_MEMORY_PRESSURE: Final = Rule[GpuState](
    id="memory_pressure", holds=_gpu_is_full, tell=_tell_gpu, text=_PRESSURE
)
RANK_MEMORY_PRESSURE: Final = Rule[RankState](
    id="memory_pressure", holds=_rank_is_short, tell=_tell_rank, text=_PRESSURE
)


def _growth(state: RankState) -> Growth | None:
    growth = state.memory.growth()
    if growth is None:
        return None
    total = state.gpu.gpu.mem_total_bytes if state.gpu else None
    enough = _GROWTH_BYTES if total is None else total * GROWTH_PCT / 100
    return growth if growth.last_bytes - growth.first_bytes >= enough else None


def _grows(state: RankState, up: bool) -> bool:
    return state.rank.state == "running" and _growth(state) is not None


def _tell_growth(state: RankState) -> Told:
    growth = state.memory.growth()
    rise = growth.last_bytes - growth.first_bytes if growth else 0
    a_step = rise / growth.steps if growth and growth.steps else None
    a_second = rise / growth.seconds if growth and growth.seconds > 0 else None
    total = state.gpu.gpu.mem_total_bytes if state.gpu else None
    left = (
        max(total - state.rank.memory_allocated_bytes, 0) / a_second
        if total is not None and state.rank.memory_allocated_bytes is not None and a_second
        else None
    )
    where = f" ({state.where})" if state.where else ""
    when = f"; full in about {fmt.duration(left)} at this rate" if left is not None else ""
    label = state.label[0].upper() + state.label[1:]
    return Told(
        severity="critical" if left is not None and left < _SOON_SECONDS else "warning",
        summary=f"{label}{where} holds {fmt.size(a_step)} more device memory with every step, now "
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
        next="look for tensors kept with their graph (loss += loss instead of loss.item(), lists of outputs)",
    )


MEMORY_GROWTH: Final = Rule[RankState](
    id="memory_growth",
    holds=_grows,
    tell=_tell_growth,
    covered_by=frozenset({"memory_pressure"}),
    text=RuleText(
        title="memory grows with every step",
        meaning="What the training's tensors hold at the least rises all the time: something is kept that should "
        "be freed, most often a loss with its graph.",
        condition=f"the least allocated memory in 8 stretches of at least 10 steps (or 100 steps and 5 minutes) "
        f"in a row rises each time, by {GROWTH_PCT:.0f} % of the GPU's memory in all; warm-up left out",
        source="torch.cuda.memory_allocated as the training publishes it",
        clear_seconds=5.0,
        fields=("memory_allocated_bytes", "memory_reserved_bytes"),
    ),
)
