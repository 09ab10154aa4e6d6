"""Python stacks that were sampled for a while, folded into one tree a thread: plain typed data for every output.

A `StackReport` has processes (the training, then those it started, such as DataLoader workers), a process has
threads, and a thread has a tree of `StackNode`:

    root = thread.tree            # stands for the thread itself: its samples are the thread's samples
    root.children                 # outermost frames, most samples first; theirs are what they called
    node.samples / root.samples   # the share of the thread's samples with this frame at this place
    node.self_samples             # of these, with it innermost

Shares are of samples: a sample says where a thread stood, waiting or not. How much of its time a thread was on a
CPU is `ThreadStacks.cpu_pct`, which the kernel counts. A thread that only waits for work is `waiting`, llmtop's
own are `llmtop`; both are told apart from those that are `working`, which come first.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from llmtop.format import encode_json
from llmtop.model.snapshot import LoadingCost

SCHEMA = 1
MAX_DEPTH = 200
"""Levels of a tree; what is called from deeper is folded into the last of them."""

Kind: TypeAlias = Literal["working", "waiting", "llmtop"]


class StackNode(msgspec.Struct, frozen=True, kw_only=True):
    """One frame with all that was called from it; the root of a tree is the thread."""

    name: str
    """The function, or the thread's name."""
    file: str = ""
    """File as the interpreter has it; "" for a thread, a shared library's for a native frame."""
    line: int | None = None
    samples: int
    """Samples with this frame at this place of the stack."""
    self_samples: int = 0
    """Samples of these with it innermost."""
    own: bool = False
    """True if it is the script's own code: no library's, not the interpreter's, not llmtop's."""
    children: tuple[StackNode, ...] = ()
    """Most samples first."""


class HotFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame, wherever in the stacks of a thread it was seen."""

    frame: str
    """For a person: "step (train.py:12)"."""
    self_samples: int
    """Samples with it innermost."""
    total_samples: int
    """Samples with it anywhere; one in which it calls itself counts once."""
    own: bool = False


class ThreadStacks(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one thread."""

    thread: str
    os_id: int | None = None
    """Number in the kernel."""
    kind: Kind = "working"
    samples: int
    unit: Literal["samples", "microseconds"] = "samples"
    """Unit of `samples` and of the tree."""
    cpu_pct: float | None = None
    """Time on a CPU in percent of the window, as the kernel counts it; None where it was not asked."""
    cpu_wait_pct: float | None = None
    """Time in which it could have run and waited for a CPU, likewise: others had them all."""
    tree: StackNode
    hottest: tuple[HotFrame, ...] = ()
    """Most often innermost first."""


class ProcessStacks(msgspec.Struct, frozen=True, kw_only=True):
    """The threads of one process."""

    pid: int | None
    """None where the file does not say."""
    rank: int | None = None
    started_by: int | None = None
    """The pid of the process that was asked for and started this one: a DataLoader worker, for one."""
    command: str = ""
    threads: tuple[ThreadStacks, ...] = ()
    """The main thread first, then by kind and samples."""

    @property
    def name(self) -> str:
        """For sentences: "rank 3 (pid 812)"; "worker 840" for one that another process started."""
        if self.pid is None:
            return "the process"
        if self.started_by is not None:
            return f"worker {self.pid}"
        return f"pid {self.pid}" if self.rank is None else f"rank {self.rank} (pid {self.pid})"


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a training with its workers, from the kernel and the hardware; None where a counter is
    unavailable."""

    seconds: float
    cpus: float | None = None
    """CPU seconds a second."""
    context_switches_per_s: float | None = None
    migrations_per_s: float | None = None
    page_faults_per_s: float | None = None
    ipc: float | None = None
    """Instructions a cycle."""
    cache_miss_pct: float | None = None
    """Percent of the references to the last cache."""
    branch_miss_pct: float | None = None
    bound: Literal["memory", "compute", "neither"] | None = None
    """Bound by instructions a cycle: under 1 the cores mostly wait for memory, over 2 they compute."""
    absent: tuple[str, ...] = ()
    """Counters that this machine does not have."""


class StackReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a capture of Python stacks."""

    schema: int = SCHEMA
    engine: str = "py-spy"
    source: str = ""
    taken_by: Literal["py-spy", "training", "linux-perf", "file"] = "py-spy"
    """Source of the samples: py-spy from outside, the training itself, perf, or a file of another program."""
    exporter: str = ""
    """Name and version of the program that wrote the file; "" where it does not say."""
    rate_hz: float | None = None
    """Samples a second of each thread."""
    window_seconds: float | None = None
    native: bool = False
    """True if frames of shared libraries are among them."""
    processes: tuple[ProcessStacks, ...] = ()
    """Requested processes first, each before those it started."""
    counters: dict[str, Counters] = {}
    """Counters by the name of a process, with its workers; perf alone has them."""
    loading: dict[str, LoadingCost] = {}
    """Cost of the data loader by the name of a process (`ProcessStacks.name`), where it waits for the loader."""
    notes: tuple[str, ...] = ()
    """Left-out parts, with the reason."""
    stopped_early: str | None = None
    """If the capture recorded less than was asked for: how much, and why, in one sentence, from capture.json."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StackReport)


def to_json(report: StackReport) -> bytes:
    """Return the report as one line of JSON."""
    return encode_json(report, _encoder.encode)


def from_json(data: bytes | str) -> StackReport:
    """Read what was written as JSON; fields that this version does not know are ignored.

    Raises:
        msgspec.DecodeError: not JSON, or no such report (`msgspec.ValidationError`, a subclass).
    """
    return _decoder.decode(data)
