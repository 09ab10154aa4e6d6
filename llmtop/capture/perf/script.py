"""Output of `perf script` as stacks: where threads ran on a CPU, and where and how long they were off it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from llmtop.stacks.samples import MAIN, Frame, SampledProcess, Stack, ThreadId

_HEAD = re.compile(r"^(?P<comm>.+?)\s+(?P<pid>-?\d+)/(?P<tid>-?\d+)\s+(?P<time>\d+\.\d+):\s+(?P<event>.*?):?\s*$")
_FRAME = re.compile(r"^\s+[0-9a-f]+ (?P<name>.*) \((?P<file>[^()]*(?:\(deleted\))?)\)$")
PREEMPTED = Frame("ready, and waits for a CPU", "[kernel]", None)
ASLEEP = Frame("off the CPU, where perf may not say", "[kernel]", None)


@dataclass
class _Thread:
    """One thread while the lines are read."""

    pid: int
    comm: str
    on_cpu: Counter[tuple[Frame, ...]] = field(default_factory=Counter)
    off_us: Counter[tuple[Frame, ...]] = field(default_factory=Counter)
    off_frames: tuple[Frame, ...] = ()
    """Its stack at the last switch."""
    left_at: float | None = None


@dataclass(frozen=True)
class PerfStacks:
    """All of it."""

    on_cpu: list[Stack]
    """A sample each time a thread was seen on a CPU."""
    off_cpu: list[Stack]
    """Off it; "samples" are microseconds."""
    has_python: bool
    """True if functions of Python are among the frames (its perf trampoline)."""


def read_script(lines: Iterable[str], asked: dict[int, str], started_by: dict[int, int]) -> PerfStacks:
    """Read what was printed with -F comm,pid,tid,time,event,ip,sym,dso and the events of switches.

    Args:
        lines: of the output.
        asked: the command of each process, by pid.
        started_by: by pid, the process asked for that has started it.
    """
    threads: dict[int, _Thread] = {}
    last = 0.0
    for head, frames in _read_events(lines):
        tid = int(head["tid"])
        thread = threads.setdefault(tid, _Thread(int(head["pid"]), head["comm"].strip()))
        last = max(last, float(head["time"]))
        _add_event(thread, head["event"], float(head["time"]), frames)
    for thread in threads.values():
        _resume(thread, last)
    on, off = [], []
    for tid, thread in threads.items():
        pid = thread.pid if thread.pid > 0 else tid
        process = SampledProcess(pid, asked.get(pid, ""), started_by.get(pid))
        named = ThreadId(tid, MAIN if tid == pid else thread.comm)
        on += [Stack(process, named, frames, number) for frames, number in thread.on_cpu.items()]
        off += [Stack(process, named, frames, number) for frames, number in thread.off_us.items() if number]
    python = any(_is_python(frame) for stack in on for frame in stack.frames)
    return PerfStacks(on, off, python)


def _add_event(thread: _Thread, event: str, at: float, frames: tuple[Frame, ...]) -> None:
    if event.startswith("PERF_RECORD_SWITCH"):
        if "OUT" in event:
            thread.left_at = at
            if "preempt" in event:
                thread.off_frames = (*thread.off_frames, PREEMPTED)
        else:
            _resume(thread, at)
    elif "sched_switch" in event:
        thread.off_frames = frames
    elif frames:
        thread.on_cpu[frames] += 1


def _resume(thread: _Thread, at: float) -> None:
    """It runs again."""
    if thread.left_at is not None:
        thread.off_us[thread.off_frames or (ASLEEP,)] += round(1e6 * (at - thread.left_at))
    thread.left_at, thread.off_frames = None, ()


def _read_events(lines: Iterable[str]) -> Iterator[tuple[re.Match[str], tuple[Frame, ...]]]:
    head: re.Match[str] | None = None
    frames: list[Frame] = []
    for line in lines:
        if line[:1] in ("\t", " ") and (match := _FRAME.match(line.rstrip("\n"))):
            frames.append(_parse_frame(match["name"], match["file"]))
            continue
        found = _HEAD.match(line)
        if found is None:
            continue
        if head is not None:
            yield head, tuple(reversed(frames))
        head, frames = found, []
    if head is not None:
        yield head, tuple(reversed(frames))


def _parse_frame(name: str, file: str) -> Frame:
    if name.startswith("py::"):
        function, _, place = name[4:].partition(":")
        return Frame(function, place, None)
    where = "[kernel]" if file.startswith(("[kernel", "[guest")) else file
    if name == "[unknown]":
        name = f"[{PurePath(file).name or 'unknown'}]"
    return Frame(name, where, None)


def _is_python(frame: Frame) -> bool:
    return not frame.native and frame.file.endswith(".py")
