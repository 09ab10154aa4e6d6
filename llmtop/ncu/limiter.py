"""Limiter of a kernel, in one word and a sentence: the busy unit, the waste that keeps it busy, or neither.

The order is that of an expert: work that is not wasted and keeps the tensor cores busy; else what is wasted;
else the busiest unit; and where none is busy, why there is too little to do.
"""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

from llmtop.format import percent_text
from llmtop.naming.kernel_names import is_from_a_library, kind_of
from llmtop.ncu.chosen import (
    counted_text,
    dram_counted,
    dram_pct,
    issue_pct,
    sectors_text,
    stall_group,
    stall_groups,
)
from llmtop.ncu.profile import KernelProfile

LimiterId = Literal[
    "compute", "memory", "L2", "L1", "uncoalesced", "bank conflicts", "latency", "small grid", "unknown"
]
BUSY_PCT = 60.0
"""Percent of a unit's peak. If every unit is below it, a kernel waits for latency: ncu's own rule,
SOLBottleneck."""
CONFLICTS_PCT = 20.0
"""Percent of the wavefronts of shared memory: without them a busy pipe would have a fifth less to do."""
WASTED_PCT = 50.0
"""Percent of the bytes that global loads and stores move: half, as reading every other value of four bytes
does."""
_WAITING_PCT = 40.0
"""Percent of the cycles between two instructions: above it, most of a warp's time goes there."""
_CACHED_PCT = 80.0
"""Where L1 serves so much of the sectors, spread reads find what their neighbours fetched."""
_WITHIN = 0.75
"""All that comes from DRAM passes L2 as well: it is DRAM's limit unless L2 is a third busier. What moves shared
memory's data is a part of L1 in the same way."""
ACHIEVED = 0.8
"""Share of the occupancy that a launch allows: ncu's rule on occupancy uses a difference above a fifth."""
IDLE_SM_PCT = 20.0
"""Percent of the kernel's time without a block on the mean SM: a fifth of the GPU."""
_NO_WASTE = 1.25
"""Bytes that DRAM moves over those that threads asked for: below, caches put spread accesses together."""
_FULL_WARP = 32
PRODUCTS_PCT = 5.0
"""Percent of the time of the tensor pipe: above, products already use it."""

STALLS = {
    "long_scoreboard": "waiting for data of L1, L2 or memory",
    "lg_throttle": "too many loads and stores of global memory queued",
    "short_scoreboard": "waiting for shared memory or special functions",
    "mio_throttle": "the queue to shared memory and special functions full",
    "barrier": "waiting for other warps of the block at a barrier",
    "membar": "waiting for a memory fence",
    "math_pipe_throttle": "the arithmetic pipe full",
    "gmma": "waiting for the tensor cores' products",
    "wait": "a fixed latency of the instruction before",
    "drain": "waiting at the end for stores",
    "no_instruction": "waiting for instructions to be fetched",
    "branch_resolving": "waiting for a branch",
    "imc_miss": "waiting for constants",
    "tex_throttle": "the queue to textures full",
    "sleeping": "asleep",
    "dispatch_stall": "the dispatcher held back",
    "not_selected": "ready, another warp was taken",
    "misc": "for another reason",
}
"""ncu's names of stalls in words, by its guide's section on warp states."""


class Limiter(NamedTuple):
    """Limiter of a kernel."""

    id: LimiterId
    word: str
    sentence: str
    todo: str
    """Advice on it."""


class _Units(NamedTuple):
    """How busy the parts of the GPU were, in percent of what each can do."""

    sm: float
    tensor: float
    dram: float
    l2: float
    l1: float
    whole: float
    """ncu's own figure of memory: also the paths between these levels."""

    @property
    def memory(self) -> float:
        return max(self.dram, self.l2, self.l1, self.whole)

    @property
    def dram_bound(self) -> bool:
        return self.dram >= BUSY_PCT and self.dram >= _WITHIN * self.memory

    @property
    def top(self) -> float:
        return max(self.sm, self.tensor, self.memory)


def limiter(kernel: KernelProfile) -> Limiter:
    """Return the limiter of a kernel; "unknown" where the report lacks the counters that show it."""
    units = _units(kernel)
    if units is None:
        return _by_chosen_counters(kernel)
    found = _tensor(units) or _conflicts(kernel, units) or _uncoalesced_limiter(kernel, units)
    if found is None:
        found = _busiest(kernel, units) if units.top >= BUSY_PCT else _waiting(kernel, units)
    return found


def _by_chosen_counters(kernel: KernelProfile) -> Limiter:
    """Return the limiter without the section of speed of light: the first that the counters show."""
    found = (
        _counted_waste(kernel)
        or _counted_dram(kernel)
        or _counted_issue(kernel)
        or _counted_conflicts(kernel)
        or _counted_memory(kernel)
        or _small_grid(kernel)
        or _counted_stalls(kernel)
    )
    if found is not None:
        return found
    counted = counted_text(kernel)
    words = f"no limit is in what was counted ({counted})." if counted else "no unit of the GPU was counted."
    return Limiter("unknown", "unknown", words, "Profile it again with ncu --set full.")


def _counted_conflicts(kernel: KernelProfile) -> Limiter | None:
    share = kernel.conflicts_pct()
    if share is None or share < CONFLICTS_PCT:
        return None
    return Limiter(
        "bank conflicts",
        "shared-memory bank conflicts",
        f"{percent_text(share)} of the wavefronts of shared memory are there because threads of a warp meet in "
        f"one bank; how busy other units were was not counted{_few_blocks(kernel)}.",
        _CONFLICTS_ADVICE,
    )


def _few_blocks(kernel: KernelProfile) -> str:
    """Return a clause on a grid of fewer blocks than SMs; "" where there are enough."""
    small = _small_grid(kernel)
    return f"; also, {small.sentence.removesuffix('.')}" if small is not None else ""


def _counted_waste(kernel: KernelProfile) -> Limiter | None:
    wasted = kernel.wasted_pct
    if wasted is None or wasted < WASTED_PCT or _is_merged(kernel):
        return None
    return Limiter(
        "uncoalesced",
        "uncoalesced access",
        f"{percent_text(wasted)} of what global loads and stores move was asked for by no thread (sectors a "
        f"request: {sectors_text(kernel)}).",
        _UNCOALESCED_ADVICE,
    )


def _counted_dram(kernel: KernelProfile) -> Limiter | None:
    dram = dram_pct(kernel)
    if dram is None or dram < BUSY_PCT:
        return None
    return Limiter("memory", "memory (DRAM)", f"{dram_counted(kernel)}.", _MEMORY_ADVICE)


def _counted_memory(kernel: KernelProfile) -> Limiter | None:
    end = ".avg.pct_of_peak_sustained_elapsed"
    whole = kernel.number(f"gpu__compute_memory_throughput{end}", f"gpu__compute_memory_request_throughput{end}")
    if whole is not None and whole >= BUSY_PCT:
        words = f"the busiest level of memory is at {percent_text(whole)} of its peak; which one was not counted."
        return Limiter("memory", "memory", words, _MEMORY_ADVICE)
    return None


def _counted_issue(kernel: KernelProfile) -> Limiter | None:
    issue = issue_pct(kernel)
    if issue is None or issue < BUSY_PCT:
        return None
    words = f"{percent_text(issue)} of the slots for instructions are used."
    return Limiter("compute", _ISSUE, words, _fewer_instructions(kernel))


def _counted_stalls(kernel: KernelProfile) -> Limiter | None:
    groups = stall_groups(kernel)
    group = next(iter(groups), "")
    if not group or groups[group] < _WAITING_PCT:
        return None
    said = ", ".join(f"{name} {percent_text(share)}" for name, share in groups.items() if share >= 1.0)
    if group == "memory" and dram_pct(kernel) is None:
        words = f"of all stalls: {said}; whether memory is full or too few loads are in flight was not counted."
        todo = f"{_STALL_GROUP_ADVICE[group]} Fewer bytes if DRAM is full: count dram__throughput."
        return Limiter("memory", "waiting for memory", words, todo)
    if group in ("not selected", "arithmetic"):
        word = _ISSUE if group == "not selected" else "compute"
        return Limiter("compute", word, f"of all stalls: {said}.", _fewer_instructions(kernel))
    return Limiter("latency", "latency", f"of all stalls: {said}.", _STALL_GROUP_ADVICE[group])


_STALL_GROUP_ADVICE = {
    "memory": "More loads in flight (unrolling, vector loads, cp.async), more warps an SM, shared memory.",
    "synchronisation": "Fewer __syncthreads() and fences, smaller blocks, equal work for all warps of a block.",
    "fixed latency": "More independent instructions a thread (unrolling, several values a thread).",
    "instruction fetch": "Shorter code: less unrolling and inlining, fewer branches; a warm-up before measuring.",
}
_CONFLICTS_ADVICE = (
    "Let the 32 threads of a warp touch 32 different banks (of 4 bytes): pad the rows of a tile by one value "
    "(tile[32][33]), swizzle the index, or read along rows; in Triton another layout or block shape."
)
_UNCOALESCED_ADVICE = (
    "Let neighbouring threads read neighbouring addresses: transpose or .contiguous() the tensor once, iterate "
    "over the last dimension with threadIdx.x, arrays of values in place of arrays of structures; or load a tile "
    "to shared memory in rows and read it from there in columns."
)
_MEMORY_ADVICE = (
    "Move fewer bytes: fuse it with its neighbours (torch.compile), a narrower type, no copies that only change "
    "layout; what is read twice should come from L2 or shared memory."
)


_RANDOM = re.compile(r"distribution_|philox|curand|random|bernoulli|dropout", re.I)
"""Kernels that draw random numbers: nearly all of their instructions are integer ones."""


def _fewer_instructions(kernel: KernelProfile) -> str:
    """Return the advice for a kernel that computes much: only products can use the tensor cores."""
    fewer = "Fewer instructions for each value: vector types, cheaper functions (__expf), indices computed once."
    name = kernel.demangled or kernel.name
    if _busiest_pipe(kernel)[0] == "fp64":
        return f"fp32 where the accuracy allows it: most GPUs have few fp64 units. {fewer}"
    if _RANDOM.search(name):
        return (
            "Draw fewer random numbers: a mask that is kept instead of drawn anew, initial values once; "
            f"torch.compile draws those of a dropout within the kernel that uses them. {fewer}"
        )
    if not is_product(kernel):
        return fewer
    if (kernel.tensor_pct or 0.0) >= PRODUCTS_PCT:
        return f"Larger tiles, so that more of the instructions are products. {fewer}"
    own = "" if is_from_a_library(name) else "Compare it with the library's product (cuBLAS). "
    return f"{own}Give products to the tensor cores (bf16, TF32). {fewer}"


def is_product(kernel: KernelProfile) -> bool:
    """Return True if the kernel's name is that of a matrix product, a convolution or attention."""
    return kind_of(kernel.demangled or kernel.name) in ("GEMM", "convolution", "attention")


def _units(kernel: KernelProfile) -> _Units | None:
    end = "_throughput.avg.pct_of_peak_sustained_elapsed"
    sm, dram = kernel.number("sm_" + end), kernel.number("gpu__dram" + end, "dram_" + end)
    if sm is None or dram is None:
        return None
    l2, whole = kernel.number("lts_" + end) or 0.0, kernel.number("gpu__compute_memory" + end) or 0.0
    return _Units(sm, kernel.tensor_pct or 0.0, dram, l2, kernel.l1_pct or 0.0, whole)


def _tensor(units: _Units) -> Limiter | None:
    if units.tensor < BUSY_PCT or units.tensor < units.memory:
        return None
    return Limiter(
        "compute",
        "compute (tensor)",
        f"the tensor cores are active {percent_text(units.tensor)} of the time, more than any other unit is busy "
        f"(DRAM {percent_text(units.dram)}, L2 {percent_text(units.l2)}).",
        "It is near what the GPU can do: fewer FLOPs (a smaller type such as fp8, less recomputation, no "
        "padding) or higher clocks (power limit, cooling) make it shorter, little else.",
    )


def _conflicts(kernel: KernelProfile, units: _Units) -> Limiter | None:
    share, pipe = kernel.conflicts_pct(), kernel.shared_pipe_pct or 0.0
    waits = kernel.stall_pct("short_scoreboard", "mio_throttle")
    busy = pipe >= BUSY_PCT and pipe >= _WITHIN * units.top
    if share is None or share < CONFLICTS_PCT or not (busy or (units.top < BUSY_PCT and waits >= _WAITING_PCT)):
        return None
    return Limiter(
        "bank conflicts",
        "shared-memory bank conflicts",
        f"{percent_text(share)} of the wavefronts of shared memory are there because threads of a warp meet in "
        f"one bank; its pipe is busy {percent_text(pipe)} of the time and warps wait for it "
        f"{percent_text(waits)} of theirs.",
        _CONFLICTS_ADVICE,
    )


def _uncoalesced_limiter(kernel: KernelProfile, units: _Units) -> Limiter | None:
    wasted = kernel.wasted_pct
    if wasted is None or wasted < WASTED_PCT or (units.dram_bound and _is_merged(kernel)):
        return None
    cached = (kernel.number("l1tex__t_sector_hit_rate.pct") or 0.0) >= _CACHED_PCT
    moved = units.l1 if cached else units.memory
    waits = kernel.stall_pct("long_scoreboard", "lg_throttle")
    quiet = units.top < BUSY_PCT and waits >= _WAITING_PCT and not cached
    if not quiet and (moved < BUSY_PCT or moved < units.sm):
        return None
    used = " and ".join(
        f"{words} use {value:.1f}"
        for words, value in (("loads", kernel.bytes_a_sector("ld")), ("stores", kernel.bytes_a_sector("st")))
        if value is not None
    )
    return Limiter(
        "uncoalesced",
        "uncoalesced access",
        f"global {used} of the 32 bytes of a sector: no thread asked for {percent_text(wasted)} of what moves "
        f"between the caches. L1 is busy {percent_text(units.l1)}, L2 {percent_text(units.l2)} and DRAM "
        f"{percent_text(units.dram)} of the time.",
        _UNCOALESCED_ADVICE,
    )


def _is_merged(kernel: KernelProfile) -> bool:
    """Return True if DRAM moved little more than threads asked for: then its load is no waste."""
    moved = [kernel.number(f"dram__bytes_{way}.sum") for way in ("read", "write")]
    asked = kernel.asked_bytes
    if asked is None or any(part is None for part in moved):
        return False
    return sum(part for part in moved if part is not None) <= _NO_WASTE * asked


def _busiest(kernel: KernelProfile, units: _Units) -> Limiter:
    memory, compute = units.memory, max(units.sm, units.tensor)
    pipe, share = _busiest_pipe(kernel)
    # The pipe of loads and stores counts as the SM's and as memory's: accesses to shared memory are no arithmetic.
    moves = pipe == _LOADS and share >= _SAME * compute and units.l1 >= _SAME * compute
    if compute > memory and not moves:
        return _compute(kernel, units)
    if units.dram_bound:
        return Limiter(
            "memory",
            "memory (DRAM)",
            f"DRAM is busy {percent_text(units.dram)} of the time, compute {percent_text(compute)}.",
            _MEMORY_ADVICE,
        )
    if units.l2 >= max(units.l1, BUSY_PCT):
        return Limiter(
            "L2",
            "L2",
            f"L2 is busy {percent_text(units.l2)} of the time, DRAM {percent_text(units.dram)}, compute "
            f"{percent_text(compute)}.",
            "Read each value from L2 fewer times: larger tiles in shared memory or registers, multicast between "
            "the blocks of a cluster, an order of blocks that shares rows; fewer atomics on one address.",
        )
    return Limiter(
        "L1",
        "L1 and shared memory",
        f"L1 and shared memory are busy {percent_text(units.l1)} of the kernel's time, L2 "
        f"{percent_text(units.l2)}, DRAM "
        f"{percent_text(units.dram)}, compute {percent_text(compute)}.",
        "Fewer, wider accesses (float4, ldmatrix), values that are used again kept in registers.",
    )


_ISSUE = "the issue of instructions"
_SAME = 0.95
"""Two figures of one unit, of which one counts while a kernel runs and one while an SM has a warp."""
_LOADS, _INTEGER = "loads and stores", "integer and logic"
_PIPES = {
    "alu": _INTEGER,
    "fma": "fp32",
    "fp64": "fp64",
    "xu": "special functions and conversions",
    "lsu": _LOADS,
    "adu": "addresses and branches",
    "uniform": "uniform",
}


def _busiest_pipe(kernel: KernelProfile) -> tuple[str, float]:
    """Return the pipe of an SM that is used most, without the tensor cores, and for how much of the time in
    percent.

    An instruction of fp64, or of fp32 on some GPUs, keeps its pipe for several cycles: ncu has both figures.
    """
    used = {
        words: max(
            (
                kernel.number(f"{stem}{pipe}{end}_elapsed", f"{stem}{pipe}{end}_active") or 0.0
                for stem, end in (
                    ("sm__inst_executed_pipe_", ".avg.pct_of_peak_sustained"),
                    ("sm__pipe_", "_cycles_active.avg.pct_of_peak_sustained"),
                )
            )
        )
        for pipe, words in _PIPES.items()
    }
    pipe = max(used, key=lambda words: used[words])
    return (pipe, used[pipe]) if used[pipe] else ("", 0.0)


def _compute(kernel: KernelProfile, units: _Units) -> Limiter:
    pipe, share = _busiest_pipe(kernel)
    issue = issue_pct(kernel)
    memory = percent_text(units.memory)
    if issue and round(share) < BUSY_PCT and units.tensor < BUSY_PCT and issue >= _SAME * units.sm:
        busiest = f" (the busiest, {pipe}, {percent_text(share)})" if pipe else ""
        words = (
            f"{percent_text(issue)} of the slots for instructions are used, and no pipe is busy for "
            f"{BUSY_PCT:.0f} % of the time{busiest}; memory {memory}."
        )
        return Limiter("compute", _ISSUE, words, _fewer_instructions(kernel))
    by = f", the busiest pipe is {pipe} ({percent_text(share)})" if pipe else ""
    issued = f", {percent_text(issue)} of the slots for instructions are used" if issue and issue > share else ""
    tensor = f", the tensor cores {percent_text(units.tensor)}" if kernel.tensor_pct is not None else ""
    words = f"the SMs are busy {percent_text(units.sm)} of the time{tensor}{by}{issued}; memory {memory}."
    word = "integer instructions" if pipe == _INTEGER and share >= BUSY_PCT else "compute"
    return Limiter("compute", word, words, _fewer_instructions(kernel))


def _waiting(kernel: KernelProfile, units: _Units) -> Limiter:
    small = _small_grid(kernel)
    if small is not None:
        return small
    return Limiter(
        "latency",
        "latency and occupancy",
        f"no unit is busy for {BUSY_PCT:.0f} % of the time (compute {percent_text(units.sm)}, memory "
        f"{percent_text(units.memory)}).{_waits_text(kernel)}{_occupancy_text(kernel)}{_idle_text(kernel)}",
        _part_warps_advice(kernel) or _atomics_advice(kernel) or _stall_advice(kernel) or _more_work(kernel),
    )


def _more_work(kernel: KernelProfile) -> str:
    """Return how to have more in flight: by more warps only where an SM has places for them."""
    loads = "more independent loads a thread (unrolling, vector loads, asynchronous copies)"
    if _is_occupied(kernel):
        return f"More work in flight with the warps that are there: {loads}."
    return (
        "More work in flight: more warps an SM (fewer registers or less shared memory a block, other block "
        f"sizes), {loads}."
    )


def _is_occupied(kernel: KernelProfile) -> bool:
    return (kernel.number("sm__warps_active.avg.pct_of_peak_sustained_active") or 0.0) >= _OCCUPIED_PCT


_OCCUPIED_PCT = 75.0
"""Achieved occupancy above which more warps hide little more: fewer than a third can be added."""


def _atomics_advice(kernel: KernelProfile) -> str:
    """Return the advice where atomics make up a good part of the requests to global memory; else ""."""
    stem = "l1tex__t_requests_pipe_lsu_mem_global_op_"
    counts = {
        operation: kernel.number(f"{stem}{operation}.sum") or 0.0 for operation in ("ld", "st", "atom", "red")
    }
    total, atomic = sum(counts.values()), counts["atom"] + counts["red"]
    if not total or 100.0 * atomic / total < _ATOMICS_PCT:
        return ""
    return (
        f"{percent_text(100.0 * atomic / total)} of the requests to global memory are atomics: add up within the "
        "warp (shuffles) and the block (shared memory) first, then one atomic a block."
    )


_ATOMICS_PCT = 20.0
"""Percent of the requests to global memory: L2 carries out those on one address one after the other."""


def _idle_text(kernel: KernelProfile) -> str:
    """Return a sentence on SMs without a block that no last wave explains; "" where they are few."""
    idle, seconds = kernel.sm_idle_pct, kernel.seconds
    if idle is None or idle < IDLE_SM_PCT:
        return ""
    why = "blocks differ in length"
    if seconds and seconds < SHORT_S:
        why = "so short a kernel mostly starts and ends"
    elif (kernel.waves or 1.0) < 1.0:
        why = "blocks differ in length or are too few"
    return f" The mean SM has no block for {percent_text(idle)} of the time: {why}."


SHORT_S = 10e-6
"""Start and end of a kernel take 2 to 3 µs on current GPUs: an empty one lasts that long under ncu."""


def _stall_advice(kernel: KernelProfile) -> str:
    """Return the advice on the group of the longest stall, where it is not memory and makes up two fifths; else
    ""."""
    group, groups = stall_group(next(iter(kernel.stalls), "")), stall_groups(kernel)
    if group in ("", "memory") or groups.get(group, 0.0) < _WAITING_PCT:
        return ""
    warps = " More warps an SM." if group == "fixed latency" and not _is_occupied(kernel) else ""
    return _STALL_GROUP_ADVICE.get(group, "") + warps


def _waits_text(kernel: KernelProfile) -> str:
    stalls, between = list(kernel.stalls.items())[:1], kernel.cycles_between
    if not stalls or not between:
        return ""
    name, cycles = stalls[0]
    return f" A warp waits {between:.0f} cycles between two instructions, {cycles:.0f} of them {stall_text(name)}."


def _occupancy_text(kernel: KernelProfile) -> str:
    """Achieved occupancy, and what limits it: the launch only where nearly all that it allows was achieved."""
    achieved = kernel.number("sm__warps_active.avg.pct_of_peak_sustained_active")
    allowed = kernel.number("sm__maximum_warps_per_active_cycle_pct")
    if achieved is None:
        return ""
    limits = " and ".join(kernel.occupancy_limits)
    if allowed is None or allowed >= 100.0 or not limits:
        return f" Achieved occupancy is {percent_text(achieved)}."
    if achieved >= ACHIEVED * allowed:
        return f" Achieved occupancy is {percent_text(achieved)}, limited by {limits}."
    return (
        f" Achieved occupancy is {percent_text(achieved)}, below the {percent_text(allowed)} that {limits} allow: "
        "blocks of unequal length, or too few."
    )


def _part_warps_advice(kernel: KernelProfile) -> str:
    """Return the advice on blocks of less than one warp; "" where they are larger, or unknown."""
    threads = kernel.number("launch__block_size") or float(math.prod(kernel.block))
    if not 0 < threads < _FULL_WARP:
        return ""
    return (
        f"Blocks of 64 to 256 threads: a block of {threads:.0f} uses {threads:.0f} of the {_FULL_WARP} lanes of "
        "its warp. Let each thread of a block take one of the values."
    )


_PART_OF_SMS = 1 - IDLE_SM_PCT / 100
"""A grid of nearly all SMs, or of nearly all places on them, is what persistent kernels launch."""


def _small_grid(kernel: KernelProfile) -> Limiter | None:
    waves, idle = kernel.waves, kernel.sm_idle_pct
    sms = kernel.number("launch__sm_count", "device__attribute_multiprocessor_count")
    blocks = kernel.number("launch__grid_size") or float(math.prod(kernel.grid))
    if waves is None or not waves or not sms or not blocks:
        return None
    last = math.ceil(waves) - waves
    idle_pct = idle if idle is not None else 0.0
    fix = (
        "Give it more blocks: a larger batch or smaller tiles, split the reduced dimension (split-k, stream-k), "
        "fuse small kernels (torch.compile), or run independent ones beside it; CUDA graphs for the time between."
    )
    if blocks <= _PART_OF_SMS * sms:
        many = "block" if blocks == 1 else "blocks"
        words = f"{blocks:.0f} {many} for {sms:.0f} SMs: {sms - blocks:.0f} are idle."
    elif waves <= _PART_OF_SMS:
        words = (
            f"{blocks:.0f} blocks fill {percent_text(100 * waves)} of what the {sms:.0f} SMs hold at once, so "
            "too few warps run to hide how long each waits."
        )
    elif idle_pct >= IDLE_SM_PCT and 100.0 * last / math.ceil(waves) >= IDLE_SM_PCT:
        words = (
            f"{waves:.2f} waves of blocks: in the last one SMs are idle, {percent_text(idle_pct)} of the time "
            "over all."
        )
    else:
        return None
    return Limiter("small grid", "too small a grid", words, fix)


def stall_text(stall: str) -> str:
    """Return a stall's name with its meaning: "long_scoreboard (waiting for data of L1, L2 or memory)"."""
    return f"{stall} ({STALLS[stall]})" if stall in STALLS else stall
