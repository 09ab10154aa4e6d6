"""Threads of a worker besides the one that prepares its batches: a pool, the one that sends batches, a library's.

Where the first thread waits for a pool, what the pool's threads do is what the batch costs. Threads of a library
(OpenMP, OpenCV) have no line of Python; the kernel counts their CPU time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from llmtop.loading.frames import Calls, StackActivity, classify_stack, function
from llmtop.loading.seen import LoaderSamples
from llmtop.stacks.fold import waits_for_work
from llmtop.stacks.samples import MAIN, Stack

_POOL_WAITS = {
    "_base.py": {"result", "result_iterator", "wait", "as_completed", "_result_or_cancel", "map"},
    "thread.py": {"submit"},
    "pool.py": {"get", "wait", "next"},
}
"""Functions of `concurrent.futures` and of `multiprocessing.pool` in which a thread feeds or awaits a pool."""
_FEEDER = "queues.py", "_feed"
_PYTHON = ("own", "collate", "collate_fn")
_ONE_CPU = 1.2
"""CPUs that threads want together, waiting for one included, where only one of them runs Python, with some code
of C beside it."""


def is_first(stack: Stack, pid: int) -> bool:
    """Return whether it is a stack of the first thread of a process."""
    return stack.thread.name == MAIN or stack.thread.os_id == pid


def waits_for_pool(stack: Stack) -> bool:
    """Return whether the innermost frames of a stack wait for the result of a pool."""
    inner = [frame for frame in stack.frames if not frame.native][-4:]
    return any(
        not frame.own and function(frame) in _POOL_WAITS.get(PurePath(frame.file).name, ()) for frame in inner
    )


def pool_activities(
    pid: int, stacks: Sequence[Stack], seen: LoaderSamples, calls: Calls
) -> list[tuple[StackActivity, float]]:
    """Return what the pool of a process does, as shares of the time in which its first thread waits for the pool.

    Args:
        pid: of the process.
        stacks: of all threads of that process.
        seen: whole window.
        calls: what the line of a frame calls.
    """
    found: Counter[StackActivity] = Counter()
    threads: Counter[int] = Counter()
    for stack in stacks:
        if is_first(stack, pid) or _feeds(stack) or waits_for_work(stack.frames):
            continue
        shown = classify_stack(stack.frames, calls)
        if shown.work != "idle":
            found[shown] += stack.samples
            threads[stack.thread.os_id or 0] += stack.samples
    total = found.total()
    known = [seen.cpu[thread] for thread in threads if thread in seen.cpu]
    have = sum(one.pct for one in known) / 100
    wanted = have + sum(one.wait_pct for one in known) / 100
    sharing = sum(2 * number * len(threads) >= total for number in threads.values())
    # Threads that a CPU is missing for wait for one all the time; those that wait for the GIL do not.
    gil = sharing > 1 and 0 < have <= _ONE_CPU and wanted <= max(_ONE_CPU, sharing / 2)
    return [
        (
            StackActivity("gil", one.library, one.place) if gil and one.work in _PYTHON else one,
            number / total,
        )
        for one, number in found.items()
    ]


def sending_share(pid: int, stacks: Sequence[Stack]) -> float:
    """Return the share of the samples in which the process pickles or sends a batch, in a thread made for that."""
    mine = [stack for stack in stacks if not is_first(stack, pid) and _feeds(stack)]
    total = sum(stack.samples for stack in mine)
    sends = sum(stack.samples for stack in mine if not waits_for_work(stack.frames))
    return sends / total if total else 0.0


def library_threads(pids: Sequence[int], seen: LoaderSamples) -> float:
    """Return for how much threads without a line of Python run, with the time they wait for a CPU, in CPUs.

    Args:
        pids: of the processes whose threads are meant.
        seen: whole window.
    """
    python = {stack.thread.os_id for stack in seen.stacks if any(not frame.native for frame in stack.frames)}
    return sum(
        (one.pct + one.wait_pct) / 100
        for thread, one in seen.cpu.items()
        if one.pid in pids and thread != one.pid and thread not in python
    )


def _feeds(stack: Stack) -> bool:
    file, name = _FEEDER
    return any(PurePath(frame.file).name == file and function(frame) == name for frame in stack.frames)
