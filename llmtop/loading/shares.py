"""Time shares of each thread that prepares batches, from stacks and the kernel's states.

A stack shows in which code a thread is, the kernel whether it runs there or what it waits for. What it waits for
wins: a thread within PIL whose pages come from a slow disk waits for the disk. States and stacks are counted
beside each other and not at the same instants, so a share is taken from the kinds of code that such a wait can
stand in, first from those that it mostly does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from llmtop.loading.frames import (
    CHILD_PROCESS,
    TORCH_LOADER,
    TORCH_WORKER,
    Calls,
    IsGenerator,
    StackActivity,
    classify_stack,
    loading_frame,
)
from llmtop.loading.other_threads import is_first, pool_activities, sending_share, waits_for_pool
from llmtop.loading.seen import LoaderSamples, Waits
from llmtop.stacks.fold import waits_for_work
from llmtop.stacks.samples import MAIN, Stack

Part: TypeAlias = Literal[
    "decode",
    "tokenize",
    "collate",
    "collate_fn",
    "disk",
    "network",
    "lock",
    "gil",
    "file",
    "sleep",
    "transfer",
    "start",
    "own",
    "unseen",
]
"""Kinds of time. "unseen": the thread runs, and its stacks could not be read."""

_FROM: tuple[Part, ...] = ("file", "own", "collate_fn", "decode", "collate", "tokenize", "transfer", "start")
_IDLE: tuple[Waits, ...] = ("pipe", "poll", "asleep")


@dataclass
class LoaderThread:
    """Thread that prepares batches, as shares of the window."""

    pid: int
    worker: bool
    """True if its process was started for it."""
    trains: bool = False
    """True if it is the training's own thread, which makes most of what it waits for itself."""
    present: float = 1.0
    """How much of the window it was there: workers come and go with each epoch."""
    idle: float = 0.0
    parts: dict[Part, float] = field(default_factory=dict)
    cpu: float | None = None
    """Share on a CPU."""
    cpu_wait: float = 0.0
    """Ready, and waiting for one."""
    shares_lock: bool = False
    """True if another thread of its process runs Python for half of the time: its code may wait for the GIL."""
    samples: int = 0
    places: Counter[tuple[Part, str, str]] = field(default_factory=Counter)
    """(part, library, place) by how often it was seen."""

    @property
    def busy(self) -> float:
        """The share of the window in which it was at a batch, waiting for disks and locks included."""
        return sum(self.parts.values())


@dataclass
class LoadingShares:
    """Loader threads, and how the training's main thread waits for them."""

    wait: float
    """Share of the training's own thread in which it awaits or makes a batch."""
    wait_samples: int
    samples: int
    threads: list[LoaderThread]
    cpus: float
    """How many CPUs all threads of the training and of those that it started had."""
    wanted_cpus: float = 0.0
    """The same with the time in which they waited for one."""
    by_torch: bool = False
    """True if a DataLoader of torch is on the stacks of the training's own thread."""

    @property
    def judged(self) -> list[LoaderThread]:
        """The threads whose work is the cost: where the training's own thread makes the batches, only that."""
        return [one for one in self.threads if one.trains] or self.threads

    @property
    def workers(self) -> int:
        """How many workers there are at a time."""
        present = [one.present for one in self.threads if one.worker]
        return max(round(sum(present)), 1) if present else 0

    @property
    def started(self) -> int:
        """How many workers were started while samples were taken, in the place of others that ended."""
        return sum(one.worker for one in self.threads) - self.workers


def loading_shares(seen: LoaderSamples, calls: Calls, is_generator: IsGenerator) -> LoadingShares | None:
    """Return the time shares of the loading threads; None where the training's own thread was not sampled.

    Args:
        seen: stacks, states and rates of one window.
        calls: what the line of a frame calls (`llmtop.loading.source`).
        is_generator: whether a frame's function has a yield.
    """
    main = [stack for stack in seen.stacks if _own(stack, seen) and _is_main_thread(stack, seen)]
    samples = sum(stack.samples for stack in main)
    if not samples:
        return None
    at = [(stack, index) for stack in main if (index := loading_frame(stack.frames, is_generator)) is not None]
    activities = [(classify_stack(stack.frames[index:], calls), stack.samples) for stack, index in at]
    waiting = sum(number for _, number in activities)
    moving = sum(number for one, number in activities if one.work == "transfer")
    itself = sum(number for one, number in activities if one.work != "idle") - moving
    threads = [] if 2 * moving > waiting else _workers(seen, calls, samples)
    if not threads or 2 * itself > waiting:
        own = _thread(seen.pid, seen.pid, activities, samples, seen, worker=False)
        # Between its batches it trains: that is no time in which it could load.
        if own.busy > 0:
            own.trains = True
            threads.append(own)
    if not any(one.worker for one in threads) and 2 * itself <= waiting:
        threads += _others(seen, calls, samples)
    _off_disk(threads, seen)
    have = sum(one.pct for one in seen.cpu.values()) / 100
    return LoadingShares(
        waiting / samples,
        waiting,
        samples,
        threads,
        have,
        have + sum(one.wait_pct for one in seen.cpu.values()) / 100,
        any(_has(stack, TORCH_LOADER) for stack, _ in at),
    )


_PAGE_BYTES = 4096


def _off_disk(threads: Sequence[LoaderThread], seen: LoaderSamples) -> None:
    """Count waits for pages of files as network waits while nothing comes from local storage.

    Each such wait is for a page at least, and on a disk of this machine takes no second.
    """
    moved = (seen.read_bytes_per_s, seen.written_bytes_per_s)
    waited = sum(one.parts.get("disk", 0.0) for one in threads)
    if None in moved or sum(filter(None, moved)) >= _PAGE_BYTES * waited:
        return
    for one in threads:
        share = one.parts.pop("disk", 0.0)
        if share > 0:
            one.parts["network"] = one.parts.get("network", 0.0) + share


def _own(stack: Stack, seen: LoaderSamples) -> bool:
    return stack.process is None or stack.process.pid == seen.pid


def _is_main_thread(stack: Stack, seen: LoaderSamples) -> bool:
    return stack.thread.name == MAIN or stack.thread.os_id == seen.pid


def _is_llmtop(stack: Stack) -> bool:
    ours = bool(stack.frames) and "llmtop/instrument/" in stack.frames[0].file
    return ours or stack.thread.name.startswith("llmtop-")


def _workers(seen: LoaderSamples, calls: Calls, samples: int) -> list[LoaderThread]:
    """Return the first threads of the processes that load; where no stack of any could be read, what their
    states say."""
    by: dict[int, list[Stack]] = {}
    whole: dict[int, list[Stack]] = {}
    for stack in seen.stacks:
        if stack.process is None or _own(stack, seen):
            continue
        whole.setdefault(stack.process.pid, []).append(stack)
        if is_first(stack, stack.process.pid):
            by.setdefault(stack.process.pid, []).append(stack)
    torch = {pid for pid, stacks in by.items() if any(_has(stack, TORCH_WORKER) for stack in stacks)}
    chosen = torch or {pid for pid, stacks in by.items() if all(_has(stack, CHILD_PROCESS) for stack in stacks)}
    found = []
    for pid in sorted(chosen):
        own = sum(stack.samples for stack in by[pid])
        pool = pool_activities(pid, whole[pid], seen, calls)
        activities = [one for stack in by[pid] for one in _activities(stack, pool, calls)]
        passing = bool(seen.cpu) and pid not in seen.cpu  # it has begun or ended meanwhile
        one = _thread(pid, pid, activities, max(samples, own) if passing else own, seen, worker=True)
        one.present = min(own / samples, 1.0) if passing else 1.0
        sends = min(sending_share(pid, whole[pid]), one.idle)
        if sends > 0:
            one.idle -= sends
            one.parts["transfer"] = one.parts.get("transfer", 0.0) + sends
            one.samples += round(sends * own)
        found.append(one)
    if by:
        return [one for one in found if torch or one.busy > 0]
    return [_by_states(pid, seen) for pid in seen.workers if pid in seen.states]


def _activities(
    stack: Stack, pool: Sequence[tuple[StackActivity, float]], calls: Calls
) -> list[tuple[StackActivity, float]]:
    """Return the activities in a stack of a worker's first thread. While the thread waits for a pool, the
    pool's count."""
    if pool and waits_for_pool(stack):
        return [(one, share * stack.samples) for one, share in pool]
    return [(classify_stack(stack.frames, calls), stack.samples)]


def _has(stack: Stack, file: str) -> bool:
    return any(frame.file.endswith(file) for frame in stack.frames)


def _others(seen: LoaderSamples, calls: Calls, samples: int) -> list[LoaderThread]:
    """Return the training's other threads that do something: one that prefetches, a pool."""
    by: dict[int, list[Stack]] = {}
    for stack in seen.stacks:
        if _own(stack, seen) and not _is_main_thread(stack, seen) and stack.thread.os_id is not None:
            by.setdefault(stack.thread.os_id, []).append(stack)
    found = []
    for thread, stacks in by.items():
        if any(_is_llmtop(stack) for stack in stacks):
            continue
        activities = [(classify_stack(stack.frames, calls), stack.samples) for stack in stacks]
        one = _thread(
            seen.pid, thread, activities, max(samples, sum(number for _, number in activities)), seen, worker=False
        )
        if one.busy > 0:
            found.append(one)
    return found


def _thread(
    pid: int,
    thread: int,
    activities: Iterable[tuple[StackActivity, float]],
    samples: int,
    seen: LoaderSamples,
    *,
    worker: bool,
) -> LoaderThread:
    one = LoaderThread(pid, worker)
    for doing_, number in activities:
        if doing_.work == "idle":
            one.idle += number / samples
        else:
            one.parts[doing_.work] = one.parts.get(doing_.work, 0.0) + number / samples
            one.places[doing_.work, doing_.library, doing_.place] += round(number)
            one.samples += round(number)
    known = seen.cpu.get(thread)
    if known is not None:
        one.cpu, one.cpu_wait = known.pct / 100, known.wait_pct / 100
    states = seen.states.get(thread)
    if states:
        trains = not worker and thread == pid
        _take_waits(one, states, _others_cpu(seen, pid, thread), trains=trains)
        if trains:
            _take_gil_of_others(one, states, seen, samples)
    return one


def _take_gil_of_others(one: LoaderThread, states: Counter[Waits], seen: LoaderSamples, samples: int) -> None:
    """Move what a training's own thread waits for Python's lock while it loads, where another thread runs Python.

    It waits for the lock in its steps too, so loading has its part of those waits. Waits for a batch of workers
    have a timeout as well: those are idle time. The place is that of the other thread.
    """
    works = 1.0 - one.idle
    waits = max(states["gil"] / sum(states.values()) - one.idle, 0.0)
    places: Counter[str] = Counter()
    others: set[int] = set()
    for stack in seen.stacks:
        number = stack.thread.os_id or 0
        if not _own(stack, seen) or _is_main_thread(stack, seen) or _is_llmtop(stack) or number not in seen.cpu:
            continue
        place = next((frame.text for frame in reversed(stack.frames) if frame.own), "")
        if place and not waits_for_work(stack.frames):
            others.add(number)
            places[place] += stack.samples
    one.shares_lock = 2 * places.total() >= samples
    wants = sum((seen.cpu[number].pct + seen.cpu[number].wait_pct) / 100 for number in others)
    if not places or works <= 0 or wants < waits:
        return
    _take(one, "gil", waits * one.busy / works, ("own", "file", "collate_fn", "collate", "tokenize", "decode"))
    one.places["gil", "", places.most_common(1)[0][0]] += 1


def _take_waits(one: LoaderThread, states: Counter[Waits], others_cpu: float, *, trains: bool) -> None:
    """Move the share of the kernel's waits from the code in which these waits occur."""
    total = sum(states.values())
    part = {name: number / total for name, number in states.items()}
    _take(one, "disk", part.get("disk", 0.0))
    # A thread that trains waits at sockets for other ranks too.
    _take(one, "network", part.get("network", 0.0) + (0.0 if trains else part.get("socket", 0.0)))
    _take(one, "sleep", part.get("sleep", 0.0), ("own", "collate_fn"))
    _take(one, "lock", part.get("lock", 0.0))
    if trains:
        return  # for what a thread that trains waits in a futex is mostly not its loader's
    # A library's own threads are waited for in a futex as well, and then have the CPU meanwhile.
    futex = part.get("futex", 0.0) - one.idle
    if futex > 2 * others_cpu:
        _take(one, "lock", futex, ("own", "collate_fn", "file"))
    if others_cpu >= part.get("gil", 0.0):
        _take(one, "gil", part.get("gil", 0.0), ("own", "collate_fn", "collate", "tokenize", "decode"))


def _take(one: LoaderThread, kind: Part, share: float, takes: Sequence[Part] = _FROM) -> None:
    """Bring a kind to that share, at the cost of others; what it has by its stacks already is a part of it."""
    wanted = share - one.parts.get(kind, 0.0)
    for other in takes:
        if wanted <= 0:
            return
        given = min(wanted, one.parts.get(other, 0.0))
        if given > 0:
            one.parts[other] -= given
            one.parts[kind] = one.parts.get(kind, 0.0) + given
            wanted -= given


def _others_cpu(seen: LoaderSamples, pid: int, thread: int) -> float:
    """Return how many CPUs the other threads of a process had."""
    return sum(one.pct for number, one in seen.cpu.items() if one.pid == pid and number != thread) / 100


def _by_states(pid: int, seen: LoaderSamples) -> LoaderThread:
    states = seen.states[pid]
    total = sum(states.values())
    one = LoaderThread(pid, True, samples=total)
    one.idle = sum(states[name] for name in _IDLE) / total
    one.parts["unseen"] = 1.0 - one.idle
    _take(one, "disk", states["disk"] / total, ("unseen",))
    _take(one, "network", (states["network"] + states["socket"]) / total, ("unseen",))
    _take(one, "lock", states["lock"] / total, ("unseen",))
    known = seen.cpu.get(pid)
    if known is not None:
        one.cpu, one.cpu_wait = known.pct / 100, known.wait_pct / 100
    return one
