"""Kind of the file at a path, from its content. Loads no numpy, which reading a report does not need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from llmtop.errors import UnusableInput
from llmtop.naming import file_names
from llmtop.recording.members import is_recording
from llmtop.system.inputs import open_input
from llmtop.trace.files.foreign_files import foreign_by_suffix, foreign_file
from llmtop.trace.files.gunzip import Gunzip

Kind: TypeAlias = Literal[
    "nsys-sqlite",
    "nsys-report",
    "chrome-json",
    "xspace",
    "recording",
    "json",
    "stacks",
    "memory-snapshot",
    "folder",
]
"""``json`` is a JSON file that is no trace: a report, perhaps. ``stacks``: folded stacks, a line each, or a file
of speedscope. ``xspace``:
XLA's own file of a trace."""

TRACES = "traces"
"""The folder of PyTorch's traces within a capture's: HTA would take other JSON beside them for traces as well."""
_SQLITE = b"SQLite format 3\0"
_GZIP = b"\x1f\x8b"
_NSYS_REPORT = b"NVIDIA Tegra Profiler Report"
_NCU_REPORT = b"NVR\0"
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
"""How a pickle begins, with the number of its protocol: a snapshot of PyTorch's allocator, perhaps."""
_EVENT = re.compile(rb'\{\s*"ph"\s*:\s*"')
"""How an event of a Chrome trace begins: what is left to know one by where the beginning is damaged."""
_FOLDED = re.compile(rb'process \d+:"')
"""How folded stacks begin where py-spy names the process, whose command may have ends of lines."""
_SPEEDSCOPE = b"speedscope.app/file-format-schema"
HEAD_BYTES = 1 << 20
"""Bytes read to find the kind of a file."""


class Examined(NamedTuple):
    """A path whose head was read; its loader need not read it again."""

    path: Path
    kind: Kind
    packed: bool = False
    """True if it is gzipped."""


def examine(path: Path) -> Examined:
    """Return the kind of a file, from its content.

    Raises:
        UnusableInput: it is not there, cannot be read, is empty, or is none of what llmtop reads.
    """
    if path.is_dir():
        return Examined(path, "folder")
    with open_input(path) as file:
        try:
            head = file.read(HEAD_BYTES)
            if is_recording(head):
                return Examined(path, "recording", packed=True)
            packed = head.startswith(_GZIP)
            if packed:
                file.seek(0)
                # As much of the beginning as can be unpacked: the file may be cut right after it.
                head = Gunzip(file).read(HEAD_BYTES)
        except OSError as error:
            raise UnusableInput(f"{path} cannot be read: {error.strerror}; check its permissions") from None
    if not head:
        said = "begins like a gzip file but cannot be unpacked" if packed else "is empty"
        raise UnusableInput(f"{path} {said}")
    return Examined(path, _kind_of(path, head), packed)


def _kind_of(path: Path, head: bytes) -> Kind:  # noqa: PLR0911 - a kind each
    """Return the kind of a file that begins like that, unpacked."""
    if head.startswith(_SQLITE):
        return "nsys-sqlite"
    if head.startswith(_NCU_REPORT) or path.suffix == file_names.NCU_REPORT:
        raise UnusableInput(f"{path} is what ncu measured of kernels; to read it: llmtop kernel {path}")
    if head.startswith(_NSYS_REPORT) or path.suffix == ".nsys-rep":
        return "nsys-report"
    if path.name.endswith(file_names.XSPACE):
        return "xspace"
    foreign = foreign_file(path.name, head)
    if foreign is not None:
        raise UnusableInput(foreign.sentence(path))
    if path.suffix == ".qdstrm":
        raise UnusableInput(f"{path} is what nsys leaves when it cannot write its report; run: nsys import {path}")
    if _PICKLE.match(head):
        return "memory-snapshot"
    start = head.lstrip()[:1]
    if start == b"[" or b'"traceEvents"' in head or _EVENT.search(head):
        return "chrome-json"
    if start == b"{" and _SPEEDSCOPE in head:
        return "stacks"
    if start == b"{":
        return "json"
    if _is_folded(head):
        return "stacks"
    foreign = foreign_by_suffix(path.name)
    if foreign is not None:
        raise UnusableInput(foreign.sentence(path))
    raise UnusableInput(
        f"{path} is neither a capture (.nsys-rep, .sqlite, trace .json or .json.gz, memory snapshot .pickle), a "
        "recording nor a report"
    )


def _is_folded(head: bytes) -> bool:
    """Return True if it begins with a stack and how often it was seen: "outer;inner (file:2) 42"."""
    stack, _, count = head.partition(b"\n")[0].rstrip().rpartition(b" ")
    frames = b";" in stack or stack.endswith(b")")
    return _FOLDED.match(head) is not None or (frames and count.isdigit())
