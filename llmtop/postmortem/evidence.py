"""Facts that files of a dead or hung job contain, before anything is concluded from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

MAIN_GROUP = "default_pg"
SAMPLED = "sampled"
"""Reason of stacks that py-spy took from outside."""
RUN_FILE = "run file"
"""Reason of stacks that the training itself took in a slow step."""


class CodeLine(NamedTuple):
    """One frame of a Python stack."""

    function: str
    file: str
    line: int

    @property
    def text(self) -> str:
        """For sentences: "train.py:88 in load"."""
        name = self.file.replace("\\", "/").rpartition("/")[2] or self.file
        return f"{name}:{self.line} in {self.function}" if self.line else f"{name} in {self.function}"


class Place(NamedTuple):
    """Where a fact was read."""

    file: str
    line: int = 0

    @property
    def text(self) -> str:
        """For sentences: "logs/2/stderr.log:17"."""
        return f"{self.file}:{self.line}" if self.line else self.file


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a flight recorder."""

    group: str
    group_text: str = ""
    """The group's description, as the training named it."""
    seq: int
    """Number of the collective in its group; of p2p operations among these."""
    operation: str
    """Operation without the backend: "all_reduce"."""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    is_done: bool
    is_certain: bool = False
    """True if the backend reports the end itself (NCCL); gloo's calls are only retired, also after an error."""
    is_p2p: bool = False
    frames: tuple[CodeLine, ...] = ()
    """Innermost first."""
    time: float | None = None
    """Unix time of the call in seconds."""
    thread: int = 0
    """pthread id of the caller; 0: absent."""


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as one rank knows it."""

    text: str = ""
    ranks: tuple[int, ...] = ()
    """Global ranks; empty: absent (gloo)."""
    enqueued: int | None = None
    completed: int | None = None


class FlightDump(msgspec.Struct, kw_only=True):
    """Dump of the flight recorder of one rank."""

    file: str = ""
    rank: int | None = None
    version: str = ""
    host: str = ""
    groups: dict[str, GroupRecord] = {}
    calls: tuple[CollectiveCall, ...] = ()
    left_out: int = 0
    """Older entries that were not read."""


@dataclass(frozen=True)
class ThreadTrace:
    """Stack of one thread."""

    frames: tuple[CodeLine, ...]
    """Innermost first."""
    name: str = ""
    thread: int = 0
    """Thread id in the file: pthread id, or the kernel's."""
    state: str = ""
    """py-spy: "active", "idle", "active+gil"."""
    is_main: bool = False


@dataclass
class StackDump:
    """Stacks of all threads of a process at one moment."""

    place: Place
    reason: str
    """"timeout", "dump", `SAMPLED`, or the text of a fatal error."""
    rank: int | None = None
    pid: int | None = None
    threads: list[ThreadTrace] = field(default_factory=list)
    time: float | None = None


ErrorKind = Literal["own", "peer_lost", "timed_out", "mismatch", "stopped_by_launcher"]


@dataclass
class PythonError:
    """An exception in a log or an error file."""

    place: Place
    name: str
    message: str
    rank: int | None = None
    pid: int | None = None
    host: str = ""
    frames: tuple[CodeLine, ...] = ()
    """Innermost first."""
    code: str = ""
    """The source line of the innermost frame that is of no library, as the traceback quotes it."""
    time: float | None = None
    kind: ErrorKind = "own"

    @property
    def text(self) -> str:
        """For sentences: "ValueError: bad label"."""
        return f"{self.name}: {self.message}" if self.message else self.name


@dataclass
class ProcessEnd:
    """How a process ended, as its launcher or the kernel recorded it."""

    place: Place
    rank: int | None = None
    pid: int | None = None
    host: str = ""
    local_rank: int | None = None
    """Number in torchrun's table: among the ranks of one launcher."""
    code: int | None = None
    signal: int | None = None
    time: float | None = None
    is_first: bool = False
    """True if the launcher names it as the first failure."""
    is_escalated: bool = False
    """True if the launcher sent SIGKILL because SIGTERM had no effect."""
    is_by_launcher: bool = False
    """True if the launcher ended the process after another one had failed."""


MarkKind = Literal[
    "xid", "oom_kill", "segfault", "blocked_task", "storage", "network", "slurm_cancelled", "node_failed",
    "watchdog", "work_status", "joined", "not_joined", "ras_behind", "ras_dead", "step", "world", "process",
    "last_sign", "phase", "device_oom", "launcher_kill", "process_state", "aborted", "link_down",
    "host_ranks", "gpu_error", "named_rank",
]  # fmt: skip


@dataclass
class Mark:
    """Any other fact of one line."""

    kind: MarkKind
    place: Place
    text: str = ""
    rank: int | None = None
    pid: int | None = None
    host: str = ""
    gpu: str = ""
    pci: str = ""
    """Address of the GPU as NCCL writes it: hexadecimal digits without signs and leading zeros."""
    group: str = ""
    number: int = 0
    second: int | None = None
    time: float | None = None


@dataclass
class InputFile:
    """One file that was read."""

    path: str
    kind: str
    rank: int | None = None
    is_certain: bool = False
    """True if the content names the rank, not the path."""


@dataclass
class Evidence:
    """All facts of all files."""

    dumps: list[FlightDump] = field(default_factory=list)
    stacks: list[StackDump] = field(default_factory=list)
    errors: list[PythonError] = field(default_factory=list)
    ends: list[ProcessEnd] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    files: list[InputFile] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Files that could not be read, one sentence each."""
