"""Python stacks of one instant: of a process, and of those that it started."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from llmtop.errors import UnusableInput
from llmtop.format import printable
from llmtop.stacks.fold import waits_for_work
from llmtop.stacks.samples import MAIN, Frame
from llmtop.system import procfs

__all__ = ["Frame", "ThreadStack", "read_dump", "sort_threads", "system_name"]


@dataclass(frozen=True)
class ThreadStack:
    """One thread at one instant."""

    name: str
    os_id: int
    active: bool
    """Running, by the kernel's state; False: asleep or waiting."""
    owns_gil: bool
    frames: tuple[Frame, ...]
    """Innermost first."""
    worker: int | None = None
    """The pid of its process, where that is one which the process asked for has started."""

    def own_frame(self) -> int | None:
        """Return the index of the innermost frame of the user's own code: where the script stands."""
        return next((index for index, frame in enumerate(self.frames) if frame.own), None)

    @property
    def is_working(self) -> bool:
        """Return True if it does something, or is blocked in it; False: it waits to be given work, or is
        llmtop's."""
        if self.name.startswith("llmtop-"):
            return False
        return self.active or not waits_for_work(self.frames[::-1])


class _DumpFrame(msgspec.Struct):
    name: str
    filename: str
    line: int | None = None


class _DumpThread(msgspec.Struct):
    thread_name: str | None = None
    os_thread_id: int | None = None
    thread_id: int = 0
    active: bool = False
    owns_gil: bool = False
    frames: list[_DumpFrame] = []


_dump_decoder = msgspec.json.Decoder(list[_DumpThread])


def read_dump(data: bytes, pid: int, worker: int | None = None) -> tuple[ThreadStack, ...]:
    """Read `py-spy dump --json`; the main thread comes first, then active ones.

    Args:
        data: what it printed.
        pid: of the process.
        worker: the same, where another process has started it.

    Raises:
        UnusableInput: not that.
    """
    try:
        threads = _dump_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise UnusableInput(f"py-spy's dump cannot be read ({error}): try a newer py-spy") from None
    return sort_threads(
        [
            ThreadStack(
                name=printable(t.thread_name or system_name(pid, t.os_thread_id) or "thread"),
                os_id=t.os_thread_id or t.thread_id,
                active=t.active,
                owns_gil=t.owns_gil,
                frames=tuple(Frame(f.name, f.filename, f.line) for f in t.frames),
                worker=worker,
            )
            for t in threads
        ]
    )


def sort_threads(threads: list[ThreadStack]) -> tuple[ThreadStack, ...]:
    """Return the main thread first, then active ones; workers after the process that started them."""
    return tuple(
        sorted(threads, key=lambda t: (t.worker is not None, t.worker or 0, t.name != MAIN, not t.active, t.name))
    )


def system_name(pid: int, thread: int | None) -> str:
    """Return the system's name of a thread that has no name in Python. llmtop's own threads are known by it."""
    if thread == pid:
        return MAIN
    name = procfs.thread_name(pid, thread)
    return name if name.startswith("llmtop-") else ""
