"""The counters that one looks at, each against its threshold, with where that is from and what to do when poor."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from llmtop.format import percent_text, rate, size
from llmtop.ncu.chosen import sectors_text, stall_groups
from llmtop.ncu.limiter import ACHIEVED, BUSY_PCT, IDLE_SM_PCT, PRODUCTS_PCT, is_product, stall_text
from llmtop.ncu.profile import SECTOR_BYTES, KernelProfile

_PCT = ".pct_of_peak_sustained_elapsed"
_STALLS_SHOWN = 3
_STALLED_PCT = 30.0
_SOL = (
    "Nsight Compute, rule SOLBottleneck: under 60 % of both a kernel waits for latency, over 80 % a unit is full"
)


class CounterReading(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the counters say of a kernel."""

    name: str
    value: float
    unit: str
    """%, bytes, cycles, waves, sectors, instructions or registers."""
    text: str
    """The value as it is shown, with what belongs to it."""
    threshold: str = ""
    """Healthy range; "": information without a threshold."""
    poor: bool = False
    source: str = ""
    """Where the threshold is from."""
    todo: str = ""
    """Advice, where the value is poor."""


def readings(kernel: KernelProfile) -> tuple[CounterReading, ...]:
    """Return the measured values of a kernel in reading order; values that were not measured are left out."""
    parts = (
        _throughput,
        _bytes,
        _tensor,
        _occupancy,
        _issue,
        _stalls,
        _caches,
        _shared_memory_readings,
        _coalescing,
        _spills,
        _grid,
    )
    return tuple(reading for part in parts for reading in part(kernel))


_SM, _MEMORY = "sm__throughput.avg", "gpu__compute_memory_throughput.avg"


def busy(kernel: KernelProfile) -> bool:
    """Return True if some unit is used for as much as can be asked of it."""
    sm = kernel.number(_SM + _PCT) or 0.0
    memory = kernel.number(_MEMORY + _PCT) or 0.0
    return max(sm, memory) >= BUSY_PCT


def _throughput(kernel: KernelProfile) -> Iterator[CounterReading]:
    """Speed of light: compute and memory, of which one at least should be busy; then the levels of memory."""
    both = all(kernel.number(counter + _PCT) is not None for counter in (_SM, _MEMORY))
    low = both and not busy(kernel)
    told = f"{BUSY_PCT:.0f} % or more of compute or of memory"
    todo = "see occupancy, stalls and grid: there is too little in flight"
    for name, counter in (
        ("compute (SM) throughput", _SM),
        ("memory throughput", _MEMORY),
    ):
        value = kernel.number(counter + _PCT)
        if value is not None:
            yield CounterReading(
                name=name,
                value=value,
                unit="%",
                text=percent_text(value, 1),
                threshold=told if both else "",
                poor=low,
                source=_SOL if both else "",
                todo=todo if low else "",
            )
    moved = kernel.number("dram__bytes.sum.per_second")
    for name, counter in (
        ("DRAM throughput", "gpu__dram_throughput.avg" + _PCT),
        ("L2 throughput", "lts__throughput.avg" + _PCT),
        ("L1 throughput", "l1tex__throughput.avg.pct_of_peak_sustained_active"),  # as ncu's page has it
    ):
        value = kernel.number(counter)
        if value is not None:
            decimal = f", {rate(moved)}" if moved is not None else ""
            more = decimal if name.startswith("DRAM") else ""
            yield CounterReading(name=name, value=value, unit="%", text=percent_text(value, 1) + more)


def _bytes(kernel: KernelProfile) -> Iterator[CounterReading]:
    """Bytes of device memory, where the section of speed of light is not there to show them."""
    if kernel.number("gpu__dram_throughput.avg" + _PCT) is not None:
        return
    for way in ("read", "write"):
        moved = kernel.number(f"dram__bytes_{way}.sum")
        if moved is not None:
            per_second, share = (
                kernel.number(f"dram__bytes_{way}.sum{end}")
                for end in (".per_second", ".pct_of_peak_sustained_elapsed")
            )
            text = size(moved) + (f", {rate(per_second)}" if per_second is not None else "")
            text += f", {percent_text(share, 1)} of the peak" if share is not None else ""
            yield CounterReading(name=f"DRAM {way}", value=moved, unit="bytes", text=text)
    sectors = sectors_text(kernel)
    if sectors and not any(kernel.bytes_a_sector(operation) for operation in ("ld", "st")):
        yield CounterReading(name="sectors a request", value=0.0, unit="sectors", text=sectors)


def _issue(kernel: KernelProfile) -> Iterator[CounterReading]:
    """Instructions a cycle, registers, and stalls by group where their single reasons have no total."""
    per_cycle = kernel.number("sm__inst_executed.avg.per_cycle_active", "sm__inst_issued.avg.per_cycle_active")
    if per_cycle is not None:
        yield CounterReading(
            name="IPC", value=per_cycle, unit="instructions", text=f"{per_cycle:.2f} a cycle and SM"
        )
    registers = kernel.number("launch__registers_per_thread")
    if registers is not None:
        yield CounterReading(name="registers", value=registers, unit="registers", text=f"{registers:.0f} a thread")
    groups = stall_groups(kernel)
    if groups and not kernel.cycles_between:
        text = ", ".join(f"{name} {percent_text(share)}" for name, share in groups.items())
        yield CounterReading(name="stalls by group", value=next(iter(groups.values())), unit="%", text=text)


def _tensor(kernel: KernelProfile) -> Iterator[CounterReading]:
    value = kernel.tensor_pct
    if value is None:
        return
    # Some moves of constants count as its instructions: a kernel without products has up to 3 %.
    used = value >= (1.0 if is_product(kernel) else PRODUCTS_PCT)
    yield CounterReading(
        name="tensor pipe active",
        value=value,
        unit="%",
        text=percent_text(value, 1) if used else f"{percent_text(value, 1)}: not used",
        threshold="over 70 %" if used else "",
        poor=used and value <= 70.0,
        source="what large products of cuBLAS and CUTLASS reach on Ampere and Hopper" if used else "",
        todo="larger tiles or batch, sizes that are multiples of 64, bf16 or fp8, the library's own kernel "
        "(cuBLAS, FlashAttention); see stalls for what its warps wait for"
        if used and value <= 70.0
        else "",
    )


def _occupancy(kernel: KernelProfile) -> Iterator[CounterReading]:
    achieved = kernel.number("sm__warps_active.avg.pct_of_peak_sustained_active")
    allowed = kernel.number("sm__maximum_warps_per_active_cycle_pct")
    if achieved is None:
        return
    limits = " and ".join(kernel.occupancy_limits)
    by = f" of {percent_text(allowed, 1)} allowed" if allowed is not None else ""
    if by and limits and allowed is not None and allowed < 100.0:
        by += f", limited by {limits}"
    uneven = allowed is None or achieved < ACHIEVED * allowed
    # What keeps a unit busy with few warps (wgmma, large tiles) needs no more of them.
    quiet = kernel.number("sm__throughput.avg" + _PCT) is not None and not busy(kernel)
    short = quiet and (achieved < 50.0 or (allowed is not None and uneven))
    todo = ""
    if short and not uneven and limits:
        todo = f"fewer {limits} a block (__launch_bounds__, num_warps, smaller tiles)"
    elif short:
        todo = "fewer than are allowed: blocks of unequal length, or too few of them"
    yield CounterReading(
        name="achieved occupancy",
        value=achieved,
        unit="%",
        text=percent_text(achieved, 1) + by,
        threshold="50 %, and four fifths of what is allowed, where no unit is busy",
        poor=short,
        source="CUDA C++ Best Practices Guide, occupancy: low occupancy matters where latency is not hidden",
        todo=todo,
    )


def _stalls(kernel: KernelProfile) -> Iterator[CounterReading]:
    total = kernel.cycles_between
    if not total:
        return
    issued = kernel.number("smsp__issue_active.avg.pct_of_peak_sustained_active")
    for name, cycles in list(kernel.stalls.items())[:_STALLS_SHOWN]:
        share = 100.0 * cycles / total
        poor = share >= _STALLED_PCT and (issued or 0.0) < 80.0 and not _full(kernel)
        yield CounterReading(
            name=f"stall {name}",
            value=cycles,
            unit="cycles",
            text=f"{cycles:.1f} of {total:.1f} cycles between two instructions of a warp ({percent_text(share)})",
            threshold=f"under {_STALLED_PCT:.0f} % of them",
            poor=poor,
            source="Nsight Compute, rule WarpStateStats: over 30 % for one reason where under 80 % is issued",
            todo=f"{stall_text(name)}: {_STALL_ADVICE.get(name, 'see the source view of the report for the line')}"
            if poor
            else "",
        )


def _full(kernel: KernelProfile) -> bool:
    """Return True if the tensor cores are as active as can be: their warps wait by design."""
    return (kernel.tensor_pct or 0.0) > 70.0


_STALL_ADVICE = {
    "long_scoreboard": "fewer or wider loads, coalesced; prefetch (cp.async, TMA), more warps",
    "lg_throttle": "fewer, wider accesses to global and local memory",
    "short_scoreboard": "no bank conflicts, fewer accesses to shared memory, fewer special functions",
    "mio_throttle": "fewer, wider accesses to shared memory; no bank conflicts",
    "barrier": "smaller blocks, equal work for all warps of a block, fewer __syncthreads()",
    "math_pipe_throttle": "the pipe is full: another type or fewer operations",
    "wait": "more independent instructions (unrolling), more warps",
    "drain": "fewer bytes stored at the end, coalesced",
    "not_selected": "there are warps enough: fewer, with more registers each, may be faster",
}


def _caches(kernel: KernelProfile) -> Iterator[CounterReading]:
    dram = kernel.number("gpu__dram_throughput.avg" + _PCT) or 0.0
    for name, counter in (
        ("L1 hit rate", "l1tex__t_sector_hit_rate.pct"),
        ("L2 hit rate", "lts__t_sector_hit_rate.pct"),
    ):
        value = kernel.number(counter)
        if value is None:
            continue
        judged = name.startswith("L2") and dram >= BUSY_PCT
        poor = judged and value < 50.0
        # Hits and lookups are counted in different runs of the kernel.
        text = (
            percent_text(value, 1)
            if value <= 100.0
            else f"100 % ({percent_text(value, 1)} as counted in several passes)"
        )
        yield CounterReading(
            name=name,
            value=min(value, 100.0),
            unit="%",
            text=text,
            threshold="50 % where DRAM is busy" if judged else "",
            poor=poor,
            source="rule of thumb: below, most of what is read comes from DRAM each time" if judged else "",
            todo="fine if each byte is read once; else smaller tiles, blocks in an order that shares rows, fusion"
            if poor
            else "",
        )


def _shared_memory_readings(kernel: KernelProfile) -> Iterator[CounterReading]:
    total = kernel.conflicts_pct()
    if total is None:
        return
    parts = [
        f"{words} {percent_text(value, 1)}"
        for words, value in (("loads", kernel.conflicts_pct("ld")), ("stores", kernel.conflicts_pct("st")))
        if value is not None
    ]
    if not parts:  # the pipe moves other things too
        return
    poor = total >= 10.0
    each = [kernel.conflicts(operation) for operation in ("ld", "st")]
    known = sum(part for part in each if part is not None)
    split = (
        f" ({', '.join(parts)})"
        if 2 * known >= (kernel.conflicts() or 0.0)
        else ", most of neither loads nor stores"
    )
    yield CounterReading(
        name="bank conflicts",
        value=total,
        unit="%",
        text=f"{percent_text(total, 1)} of the wavefronts of shared memory{split}",
        threshold="under 10 %",
        poor=poor,
        source="Nsight Compute, shared-memory table: each is a pass more; under a tenth nobody notices",
        todo="pad rows (tile[32][33]) or swizzle, so that a warp touches 32 banks" if poor else "",
    )


def _coalescing(kernel: KernelProfile) -> Iterator[CounterReading]:
    for words, operation in (("loads", "ld"), ("stores", "st")):
        used = kernel.bytes_a_sector(operation)
        each = kernel.sectors_a_request(operation)
        if used is None or each is None:
            continue
        spread = each >= 8.0
        poor = spread and used < SECTOR_BYTES / 2
        yield CounterReading(
            name=f"bytes a sector, {words}",
            value=used,
            unit="bytes",
            text=f"{used:.1f} of 32 used, {each:.1f} sectors a request",
            threshold="16 or more, where a request touches 8 sectors",
            poor=poor,
            source="CUDA C++ Best Practices Guide, coalesced access: half of what moves is not used below",
            todo="neighbouring threads should touch neighbouring addresses" if poor else "",
        )


def _spills(kernel: KernelProfile) -> Iterator[CounterReading]:
    requests, share = (
        kernel.number("derived__local_spilling_requests"),
        kernel.number("derived__local_spilling_requests_pct"),
    )
    if requests is None or share is None:
        return
    poor = share >= 10.0
    yield CounterReading(
        name="register spills",
        value=share,
        unit="%",
        text="none" if not requests else f"{percent_text(share, 1)} of the requests to L1",
        threshold="under 10 %",
        poor=poor,
        source="rule of thumb: a tenth of the accesses are to what should be in registers",
        todo="more registers a thread (__launch_bounds__, maxnreg) or smaller tiles" if poor else "",
    )


def _grid(kernel: KernelProfile) -> Iterator[CounterReading]:
    waves, idle = kernel.waves, kernel.sm_idle_pct
    if waves is None:
        return
    without = f", SMs without a block {percent_text(idle, 1)} of the time" if idle is not None else ""
    poor = idle is not None and idle >= IDLE_SM_PCT
    yield CounterReading(
        name="waves",
        value=waves,
        unit="waves",
        text=f"{waves:.2f} times the blocks that fit at once{without}",
        threshold=f"SMs without a block under {IDLE_SM_PCT:.0f} % of the time",
        poor=poor,
        source="Nsight Compute, launch statistics: a last wave that is not full leaves SMs idle",
        todo="more or smaller blocks" if poor else "",
    )
