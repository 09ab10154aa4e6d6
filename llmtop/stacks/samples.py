"""Sampled Python stacks as they come: which process, which thread, which frames, how often. Read from folded text,
written as folded text and for speedscope.

A folded line is ``process 8:"python train.py";thread (8): MainThread;outer (file:1);inner (file:2) 42``; who wrote
it may leave out the process, the thread, or the files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from llmtop.errors import UnusableInput
from llmtop.format import encode_json, printable
from llmtop.redaction.secret_filter import without_secrets

_FRAME = re.compile(r"^(?P<name>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)$", re.DOTALL)
_THREAD = re.compile(r"^thread \((?P<id>\w+)\)(?:: (?P<name>.*))?$", re.DOTALL)
_PROCESS = re.compile(r'process (?P<pid>\d+):"(?P<command>.*?)";(?=process \d+:"|thread \()', re.DOTALL)
_BEGINS = re.compile(r'process \d+:"')
_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python3[^/]*)/|^<|^[a-z_]+$|^$")
_NATIVE = re.compile(r"\.so(?:\.[\d.]+)?$|\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|inl)$|/(?:python|pypy)[\d.]*$|^\[")
_NOT_OWN = (os.path.dirname(os.__file__) + "/", str(Path(__file__).resolve().parents[1]) + "/")
_LONGEST_COMMAND = 160
_LONGEST_FRAME = 4096
MAIN = "MainThread"


@dataclass(frozen=True)
class Frame:
    """One frame of a stack."""

    name: str
    file: str
    line: int | None

    @property
    def own(self) -> bool:
        """Return True if it is the user's own code: no library's, not the interpreter's, not llmtop's."""
        return not (_LIBRARY.search(self.file) or self.native or self.file.startswith(_NOT_OWN))

    @property
    def native(self) -> bool:
        """Return True if it is of a shared library, or of the interpreter itself."""
        return _NATIVE.search(self.file) is not None

    @property
    def text(self) -> str:
        """For a terminal: "step (train.py:12)"."""
        if not self.file:
            return printable(self.name)
        place = Path(self.file).name if self.own else shortened(self.file)
        return printable(f"{self.name} ({place}{'' if self.line is None else f':{self.line}'})")


def shortened(file: str) -> str:
    """Return a library's file from the package on: "torch/optim/sgd.py"."""
    for part in ("site-packages/", "dist-packages/"):
        if part in file:
            return file.rpartition(part)[2]
    return Path(file).name


@dataclass(frozen=True)
class SampledProcess:
    """One process, as the samples name it."""

    pid: int
    command: str = ""
    started_by: int | None = None
    """The pid of the process that was sampled first, where this one is one of those that it started."""


@dataclass(frozen=True)
class ThreadId:
    """One thread, as the samples name it."""

    os_id: int | None = None
    name: str = MAIN
    """Name in Python; "" without one."""


@dataclass(frozen=True)
class Stack:
    """One stack of one thread, with how often it was seen."""

    process: SampledProcess | None
    thread: ThreadId
    frames: tuple[Frame, ...]
    """Outermost first."""
    samples: int


def read_folded(text: str, what: str = "py-spy's output") -> list[Stack]:
    """Read folded stacks, one a line.

    Args:
        text: the lines.
        what: the sentence of a refusal is about it.

    Raises:
        UnusableInput: a line is no stack with a count.
    """
    known: dict[str, Frame] = {}
    return [_stack(line, number, what, known) for number, line in _lines(text)]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers; the command of a process may have ends of lines, and goes on in the
    next."""
    with_processes = _BEGINS.match(text) is not None
    begun, whole = 1, ""
    for number, line in enumerate(text.split("\n"), 1):
        if with_processes and whole and not _BEGINS.match(line):
            whole += " " + line
            continue
        if whole.strip():
            yield begun, whole.rstrip()
        begun, whole = number, line
    if whole.strip():
        yield begun, whole.rstrip()


def _stack(line: str, number: int, what: str, known: dict[str, Frame]) -> Stack:
    rest, _, count = line.rpartition(" ")
    if not (count.isascii() and count.isdigit() and rest) or len(count) > 15:
        raise UnusableInput(
            f'line {number} of {what} is "{printable(line, 60)}": a stack ends with its number of samples, such '
            'as "main;train 12"'
        )
    process: SampledProcess | None = None
    while match := _PROCESS.match(rest):
        first_asked = None if process is None else process.started_by or process.pid
        process = SampledProcess(int(match["pid"][:18]), _command(match["command"]), first_asked)
        rest = rest[match.end() :]
    first, _, frames = rest.partition(";")
    thread = ThreadId()
    match = _THREAD.match(first)
    if match is not None:
        # Another program's ids may be hexadecimal, of pthreads; the kernel's are decimal.
        os_id = int(match["id"]) if match["id"].isascii() and match["id"].isdigit() else None
        thread = ThreadId(os_id, printable(match["name"] or "", 80))
        rest = frames
    parts = rest.split(";") if rest else []
    return Stack(process, thread, tuple(known.get(part) or _frame(part, known) for part in parts), int(count))


@lru_cache(maxsize=256)
def _command(text: str) -> str:
    return printable(without_secrets(text[: 4 * _LONGEST_COMMAND]), _LONGEST_COMMAND)


def _frame(text: str, known: dict[str, Frame]) -> Frame:
    match = _FRAME.match(text[:_LONGEST_FRAME])
    if match is None:
        frame = Frame(text[:_LONGEST_FRAME], "", None)
    else:
        frame = Frame(match["name"], match["file"], int(match["line"][:9]) if match["line"] else None)
    return known.setdefault(text, frame)


def folded(stacks: list[Stack]) -> bytes:
    """Return the stacks as folded text, for flamegraph.pl, speedscope, inferno and `llmtop report`."""
    return "".join(f"{_path(stack)} {stack.samples}\n" for stack in stacks).encode(errors="replace")


def _path(stack: Stack) -> str:
    process, thread = stack.process, stack.thread
    parts = []
    if process is not None:
        if process.started_by is not None:
            parts.append(f'process {process.started_by}:""')
        parts.append(f'process {process.pid}:"{_word(process.command)}"')
    if process is not None or thread.os_id is not None:
        parts.append(f"thread ({thread.os_id or 0}): {_word(thread.name)}")
    for frame in stack.frames:
        line = "" if frame.line is None else f":{frame.line}"
        parts.append(_word(f"{frame.name} ({frame.file}{line})" if frame.file else frame.name))
    return ";".join(parts)


def _word(text: str) -> str:
    """Return the text without the characters that separate the words of a folded line."""
    return printable(text).replace(";", ",").replace('"', "'")


def _place(process: SampledProcess | None, thread: ThreadId) -> tuple[bool, int, bool, int]:
    """Main threads first, workers after the process that started them."""
    started = process is not None and process.started_by is not None
    return started, 0 if process is None else process.pid, thread.name != MAIN, thread.os_id or 0


def speedscope(stacks: list[Stack], name: str, rate_hz: float) -> bytes:
    """Return the stacks as a file for https://www.speedscope.app, one profile per thread.

    Args:
        stacks: of all threads, the outermost frame first.
        name: title of the file.
        rate_hz: samples per second of each thread; a sample counts as 1 / `rate_hz` seconds.

    Returns:
        JSON of speedscope's file format schema, UTF-8.
    """
    index: dict[Frame, int] = {}
    threads: dict[tuple[SampledProcess | None, ThreadId], list[Stack]] = {}
    for stack in stacks:
        threads.setdefault((stack.process, stack.thread), []).append(stack)
    profiles = []
    for (process, thread), own in sorted(threads.items(), key=lambda item: _place(*item[0])):
        weights = [stack.samples / rate_hz for stack in own]
        whose = "" if process is None or process.started_by is None else f"worker {process.pid}, "
        profiles.append(
            {
                "type": "sampled",
                "name": f"{whose}{thread.name or f'thread {thread.os_id}'}",
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [[index.setdefault(frame, len(index)) for frame in stack.frames] for stack in own],
                "weights": weights,
            }
        )
    frames = [{"name": f.name, "file": f.file, **({"line": f.line} if f.line else {})} for f in index]
    return encode_json(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "name": name,
            "exporter": "llmtop",
            "activeProfileIndex": 0,
            "shared": {"frames": frames},
            "profiles": profiles,
        }
    )
