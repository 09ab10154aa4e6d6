"""Report from sampled stacks: a tree per thread, the deepest frames, working and waiting threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

from llmtop.stacks.model import MAX_DEPTH, HotFrame, Kind, ProcessStacks, StackNode, ThreadStacks
from llmtop.stacks.samples import MAIN, Frame, SampledProcess, Stack, ThreadId

_HOTTEST = 20
_WAITS = {
    "threading.py": {"wait", "join", "acquire", "_wait_for_tstate_lock"},
    "queue.py": {"get", "put"},
    "queues.py": {"get", "put", "_feed"},
    "selectors.py": {"select"},
    "connection.py": {"wait", "poll", "_poll", "accept", "recv", "recv_bytes", "_recv", "_recv_bytes"},
    "synchronize.py": {"wait", "acquire", "__enter__"},
    "popen_fork.py": {"wait", "poll"},
    "subprocess.py": {"wait", "_wait", "_try_wait"},
    "socket.py": {"accept"},
    "socketserver.py": {"serve_forever"},
    "thread.py": {"_worker"},
    "subproc_pool.py": {"_read_thread", "_recv_msg", "main"},
}
"""Functions of the standard library and of torch's pool of compilers in which a thread waits to be given work."""
_WAITING_SHARE = 0.99
_IDLE_CPU_PCT = 2.0
"""A thread that wakes up now and then to see whether there is work takes less."""
_OURS = "llmtop/instrument/guest/threads.py"


class CpuTime(NamedTuple):
    """Kernel accounting of one thread over the window."""

    pct: float
    """Share on a CPU, in percent of the window."""
    wait_pct: float
    """Ready to run, and waiting for a CPU."""
    name: str
    """Name in the kernel."""
    pid: int | None = None
    """Pid of its process."""


CpuTimes = Mapping[int, CpuTime]
"""Times by the thread's number."""


def fold(stacks: Iterable[Stack], ranks: Mapping[int, int], cpu: CpuTimes) -> tuple[ProcessStacks, ...]:
    """Fold samples into processes, threads and trees.

    Args:
        stacks: of all processes.
        ranks: by pid, of those that have one.
        cpu: by thread, where it was asked for.
    """
    processes: dict[SampledProcess | None, dict[ThreadId, list[Stack]]] = {}
    for stack in stacks:
        processes.setdefault(stack.process, {}).setdefault(stack.thread, []).append(stack)
    made = [_process(process, threads, ranks, cpu) for process, threads in processes.items()]
    first = [one for one in made if one.started_by is None]
    return tuple(
        one
        for asked in sorted(first, key=lambda one: (one.rank is None, one.rank or 0, one.pid or 0))
        for one in (asked, *_started_processes(made, asked))
    ) + tuple(one for one in made if one.started_by not in (None, *(asked.pid for asked in first)))


def _started_processes(made: list[ProcessStacks], by: ProcessStacks) -> list[ProcessStacks]:
    own = [one for one in made if by.pid is not None and one.started_by == by.pid]
    return sorted(own, key=lambda one: one.pid or 0)


def _process(
    process: SampledProcess | None, threads: dict[ThreadId, list[Stack]], ranks: Mapping[int, int], cpu: CpuTimes
) -> ProcessStacks:
    found = [_thread(process, thread, stacks, cpu) for thread, stacks in threads.items()]
    order = {"working": 0, "waiting": 1, "llmtop": 2}
    found.sort(key=lambda one: (not _is_main(process, one.os_id, one.thread), order[one.kind], -one.samples))
    if process is None:
        return ProcessStacks(pid=None, threads=tuple(found))
    return ProcessStacks(
        pid=process.pid,
        rank=ranks.get(process.pid),
        started_by=process.started_by,
        command=process.command,
        threads=tuple(found),
    )


def _is_main(process: SampledProcess | None, os_id: int | None, name: str) -> bool:
    return name == MAIN or (process is not None and os_id == process.pid)


def _thread(process: SampledProcess | None, thread: ThreadId, stacks: list[Stack], cpu: CpuTimes) -> ThreadStacks:
    known = cpu.get(thread.os_id) if thread.os_id is not None else None
    name = thread.name or (known.name if known is not None and known.name.startswith("llmtop-") else "")
    if not name:
        is_main = process is not None and thread.os_id == process.pid
        name = MAIN if is_main else f"thread {thread.os_id or ''}".strip()
    return ThreadStacks(
        thread=name,
        os_id=thread.os_id,
        kind=_kind(process, thread, name, stacks, known),
        samples=sum(stack.samples for stack in stacks),
        cpu_pct=None if known is None else round(known.pct, 1),
        cpu_wait_pct=None if known is None else round(known.wait_pct, 1),
        tree=tree(name, stacks),
        hottest=hottest(stacks),
    )


def _kind(
    process: SampledProcess | None, thread: ThreadId, name: str, stacks: list[Stack], cpu: CpuTime | None
) -> Kind:
    outermost = stacks[0].frames[0].file if stacks[0].frames else ""
    if name.startswith("llmtop-") or outermost.endswith(_OURS):
        return "llmtop"
    if _is_main(process, thread.os_id, name) and (process is None or process.started_by is None):
        return "working"  # what the training's own thread waits for is what is to be seen
    if cpu is not None and cpu.pct >= _IDLE_CPU_PCT:
        return "working"
    total = sum(stack.samples for stack in stacks)
    waits = sum(stack.samples for stack in stacks if waits_for_work(stack.frames))
    return "waiting" if waits >= _WAITING_SHARE * total else "working"


def waits_for_work(frames: tuple[Frame, ...]) -> bool:
    """Return True if the innermost Python frame, which is the last one, waits to be given work."""
    python = next((frame for frame in reversed(frames) if not frame.native), None)
    if python is None:
        return True  # a thread of a library, without a line of Python
    function = python.name.rpartition(".")[2]
    return not python.own and function in _WAITS.get(PurePath(python.file).name, ())


class _TreeBuilder:
    """A node while samples come in."""

    __slots__ = ("children", "frame", "own", "samples")

    def __init__(self, frame: Frame | None) -> None:
        self.frame = frame
        self.samples = 0
        self.own = 0
        self.children: dict[Frame, _TreeBuilder] = {}


def tree(name: str, stacks: Iterable[Stack]) -> StackNode:
    """Return the stacks of one thread as a tree whose root is the thread."""
    root = _TreeBuilder(None)
    for stack in stacks:
        node = root
        node.samples += stack.samples
        for frame in stack.frames[:MAX_DEPTH]:
            node = node.children.get(frame) or node.children.setdefault(frame, _TreeBuilder(frame))
            node.samples += stack.samples
        node.own += stack.samples
    return _grown(root, name)


def _grown(node: _TreeBuilder, name: str) -> StackNode:
    frame = node.frame
    children = sorted(node.children.values(), key=lambda one: (-one.samples, one.frame.text if one.frame else ""))
    return StackNode(
        name=name,
        file="" if frame is None else frame.file,
        line=None if frame is None else frame.line,
        samples=node.samples,
        self_samples=node.own,
        own=frame is not None and frame.own,
        children=tuple(_grown(child, child.frame.name if child.frame else "") for child in children),
    )


def hottest(stacks: Iterable[Stack], top: int = _HOTTEST) -> tuple[HotFrame, ...]:
    """Return the frames of one thread that were most often innermost."""
    innermost: Counter[str] = Counter()
    anywhere: Counter[str] = Counter()
    own: dict[str, bool] = {}
    for stack in stacks:
        texts = {frame: frame.text for frame in set(stack.frames)}
        if stack.frames:
            innermost[texts[stack.frames[-1]]] += stack.samples
        for text in set(texts.values()):
            anywhere[text] += stack.samples
        own.update((text, frame.own) for frame, text in texts.items())
    return tuple(
        HotFrame(frame=text, self_samples=number, total_samples=anywhere[text], own=own[text])
        for text, number in innermost.most_common(top)
    )
