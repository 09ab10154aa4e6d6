"""Python stacks as py-spy gives them: one instant (dump) or many samples (record), and what is drawn from them."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from llmtop.errors import UnusableInput
from llmtop.format import printable

_FRAME = re.compile(r"^(?P<name>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)$", re.DOTALL)
_THREAD = re.compile(r"^thread \((?P<id>\w+)\)(?:: (?P<name>.*))?$")
_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python3[^/]*)/|^<|^[a-z_]+$")


@dataclass(frozen=True)
class Frame:
    """One frame of a Python stack."""

    name: str
    file: str
    line: int | None

    @property
    def own(self) -> bool:
        """Whether it is the user's own code: no library's, not the interpreter's, not llmtop's."""
        return not (_LIBRARY.search(self.file) or self.file.startswith(_NOT_OWN))

    @property
    def text(self) -> str:
        """For a terminal: "step (train.py:12)"."""
        place = Path(self.file).name if self.own else _shortened(self.file)
        return printable(f"{self.name} ({place}{'' if self.line is None else f':{self.line}'})")


_NOT_OWN = (sysconfig.get_paths()["stdlib"] + "/", str(Path(__file__).resolve().parents[2]) + "/")


def _shortened(file: str) -> str:
    """A library's file from the package on: "torch/optim/sgd.py"."""
    for part in ("site-packages/", "dist-packages/"):
        if part in file:
            return file.rpartition(part)[2]
    return Path(file).name


@dataclass(frozen=True)
class ThreadStack:
    """One thread at one instant."""

    name: str
    os_id: int
    active: bool
    """Running, as far as the kernel says; False: asleep or waiting."""
    owns_gil: bool
    frames: tuple[Frame, ...]
    """Innermost first."""

    def own_frame(self) -> int | None:
        """The index of the innermost frame of the user's own code: where the script stands."""
        return next((index for index, frame in enumerate(self.frames) if frame.own), None)


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


def from_dump(data: bytes, pid: int) -> tuple[ThreadStack, ...]:
    """Read `py-spy dump --json`; the main thread comes first, then active ones.

    Raises:
        UnusableInput: not that.
    """
    try:
        threads = _dump_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise UnusableInput(f"py-spy's dump cannot be read ({error}): try a newer py-spy") from None
    read = [
        ThreadStack(
            name=printable(t.thread_name or _system_name(pid, t.os_thread_id) or "thread"),
            os_id=t.os_thread_id or t.thread_id,
            active=t.active,
            owns_gil=t.owns_gil,
            frames=tuple(Frame(f.name, f.filename, f.line) for f in t.frames),
        )
        for t in threads
    ]
    return tuple(sorted(read, key=lambda t: (t.os_id != pid and t.name != "MainThread", not t.active, t.name)))


def _system_name(pid: int, thread: int | None) -> str:
    """What the system calls a thread that Python has no name for: of llmtop's own it knows the name."""
    if thread == pid:
        return "MainThread"
    try:
        name = Path(f"/proc/{pid}/task/{thread}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
    return name if name.startswith("llmtop-") else ""


@dataclass
class Flame:
    """Samples merged into a tree, root first."""

    name: str
    frame: Frame | None = None
    samples: int = 0
    own_samples: int = 0
    """Of these, with this frame innermost."""
    children: dict[str, Flame] = field(default_factory=dict)

    def ordered(self) -> list[Flame]:
        """The children, most samples first."""
        return sorted(self.children.values(), key=lambda child: (-child.samples, child.name))


@dataclass(frozen=True)
class Samples:
    """What `py-spy record --format raw --threads` wrote."""

    stacks: tuple[tuple[str, tuple[Frame, ...], int], ...]
    """(thread, frames outermost first, number of samples)."""

    @property
    def threads(self) -> tuple[str, ...]:
        """Names, the main thread first, then by samples in which it did something."""
        counts: Counter[str] = Counter()
        for thread, _, number in self.stacks:
            counts[thread] += number
        return tuple(sorted(counts, key=lambda name: (not name.startswith("MainThread"), -counts[name], name)))

    def of(self, thread: str) -> list[tuple[tuple[Frame, ...], int]]:
        """The stacks of one thread."""
        return [(frames, number) for name, frames, number in self.stacks if name == thread]

    def flame(self, thread: str) -> Flame:
        """The tree of one thread."""
        root = Flame(thread)
        for frames, number in self.of(thread):
            root.samples += number
            node = root
            for frame in frames:
                node = node.children.setdefault(frame.text, Flame(frame.text, frame))
                node.samples += number
            node.own_samples += number
        return root


def from_raw(text: str) -> Samples:
    """Read folded stacks: ``thread (7): MainThread;outer (file:1);inner (file:2) 42`` a line.

    Raises:
        UnusableInput: a line is not that.
    """
    return Samples(
        tuple(_folded(line, number) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    )


def _folded(line: str, number: int) -> tuple[str, tuple[Frame, ...], int]:
    stack, _, count = line.rpartition(" ")
    parts = stack.split(";")
    if not count.isdigit() or not stack:
        raise UnusableInput(f"line {number} of py-spy's output is no stack with a count: {printable(line, 60)}")
    thread = "MainThread"
    match = _THREAD.match(parts[0])
    if match:
        name = match["name"] or "thread"
        thread = printable(name if name == "MainThread" else f"{name} ({match['id']})")
        parts = parts[1:]
    return thread, tuple(_frame(part) for part in parts), int(count)


def _frame(text: str) -> Frame:
    match = _FRAME.match(text)
    if match is None:
        return Frame(text, "", None)
    return Frame(match["name"], match["file"], int(match["line"]) if match["line"] else None)


def speedscope(samples: Samples, name: str, rate_hz: int) -> bytes:
    """The same as a file for https://www.speedscope.app, one profile a thread."""
    index: dict[Frame, int] = {}
    profiles = []
    for thread in samples.threads:
        stacks = samples.of(thread)
        lists = [[index.setdefault(frame, len(index)) for frame in frames] for frames, _ in stacks]
        weights = [number / rate_hz for _, number in stacks]
        profiles.append(
            {
                "type": "sampled",
                "name": thread,
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": lists,
                "weights": weights,
            }
        )
    frames = [{"name": f.name, "file": f.file, **({"line": f.line} if f.line else {})} for f in index]
    return msgspec.json.encode(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "name": name,
            "exporter": "llmtop",
            "activeProfileIndex": 0,
            "shared": {"frames": frames},
            "profiles": profiles,
        }
    )


def hottest(samples: Samples, thread: str, top: int = 10) -> list[tuple[str, int, int]]:
    """(frame, samples with it innermost, samples with it anywhere) of one thread, most innermost first."""
    innermost: Counter[str] = Counter()
    anywhere: Counter[str] = Counter()
    for frames, number in samples.of(thread):
        if frames:
            innermost[frames[-1].text] += number
        for text in {frame.text for frame in frames}:
            anywhere[text] += number
    return [(text, number, anywhere[text]) for text, number in innermost.most_common(top)]


def tree_lines(root: Flame, width: int = 100, least_pct: float = 1.0) -> Iterable[str]:
    """The tree as lines of text with the share of each frame, leaving out what has under `least_pct`."""

    def walk(node: Flame, depth: int) -> Iterable[str]:
        share = 100.0 * node.samples / max(root.samples, 1)
        if share < least_pct:
            return
        mark = "▸" if node.frame is not None and node.frame.own else " "
        yield printable(f"{share:5.1f}% {mark} {'  ' * depth}{node.name}", width)
        for child in node.ordered():
            yield from walk(child, depth + 1)

    for child in root.ordered():
        yield from walk(child, 0)
