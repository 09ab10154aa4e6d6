"""Lines of a log from both ends of the file, each with the rank that its prefix names."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from llmtop.postmortem.wrapped_lines import numbered_lines, terminal_width
from llmtop.system.inputs import open_input

LARGEST_SHARE = 12 << 20
"""Bytes of one log that are read at most: a quarter from its beginning, the rest from its end."""
LEAST_SHARE = 1 << 20
ALL_LOGS = 256 << 20
_LONGEST_LINE = 4000
_HEAD_SECONDS, _TAIL_SECONDS = 0.4, 0.8
"""Processor time of the two parts of one log, which usual logs do not need."""
_CHECKED = 256
_SAMPLED, _SAMPLED_ENDS = 64, 400
_SHORTEST = 8
"""A shorter line holds no fact."""
_FOLLOWING = 600
"""Lines after one that begins a stack or a table."""
_OPENS = re.compile(
    rb"Traceback \(most|Fatal Python|most recent call first|^Process \d|Timeout \(|Failures:|Root Cause|\bPID\b|"
    rb"terminate called|first process to do so"
)
_WORDS = re.compile(
    rb"rror|ERROR|[Ww]atchdog|WARN|[Rr]ank \d|[Rr]anks|last enq|joined|NVRM|[Mm]emory|oom|segfault|traps|blocked|"
    rb"I/O|EXT4|XFS|nfs|Lustre|slurm|srun|DUE|CANCEL|NCCL INFO (?:comm|nccl)|shutdown|closing|[Ll]ink|route|"
    rb"[Uu]nreachable|launched|dead|missing|anag|[Kk]illed|No space|Stale|DataLoader|exit|Exit|pid|process|"
    rb"global_rank|Unexpected|signal|Signal|what\(\)|[Aa]bort|Terminated|world"
)
"""Words of lines that may hold a fact (`llmtop.postmortem.log_marks`), beside steps."""
_STYLE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")
_RANK_PREFIX = re.compile(r"^\s*\[rank(\d{1,6})\]:?\s?")
_TAGGED = (
    re.compile(r"^\[[a-zA-Z_]+(\d{1,6})\]:\s?"),  # torchrun --tee: [default3]:, the local rank
    re.compile(r"^\s{0,6}(\d{1,6}): (?=\S|\s{2})"),  # srun --label
    re.compile(r"^\[\d+,(\d{1,6})\]<std(?:out|err)>:\s?"),  # mpirun --tag-output
)


_TIME = re.compile(
    r"^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?\s(?!\S+ kernel:)"
)
"""A collector's time before each line: kubectl, docker, systems that gather logs."""
_HOST = re.compile(r"^([A-Za-z][\w.-]{0,63}):(?: |$)")
_LEAST_HOST_LINES = 0.5
"""Share of lines that begin with the name of a host where the names are a launcher's prefix."""
_MOST_HOSTS = 64
_SAID = re.compile(rb"(?<![\w-])[Rr]ank[=:]? ?(\d{1,6})\b(?! (?:has launched|--))")
_NCCL = re.compile(rb"NCCL (?:INFO|WARN)")
_SEARCHED = 1 << 16


class LogLine(NamedTuple):
    """One line without its prefix."""

    text: str
    number: int
    """Number from 1; 0 where the middle of a large file was left out before it."""
    rank: int | None
    """torch's own prefix "[rank3]:" names a global rank."""
    tag: int | None
    """A launcher's prefix."""
    host: str = ""
    """The prefix of pdsh and of launchers that use it."""


def share_bytes(logs: int) -> int:
    """Return how many bytes of each of so many logs are read at most."""
    return max(LEAST_SHARE, min(LARGEST_SHARE, ALL_LOGS // max(logs, 1)))


def read_ends(path: Path, most: int) -> tuple[bytes, bytes]:
    """Return the beginning of a file, and its end where the middle is left out.

    Args:
        path: the file.
        most: bytes that are read.

    Raises:
        UnusableInput: it cannot be read.
    """
    with open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= most:
            return file.read(most), b""
        head = file.read(most // 4)
        file.seek(size - (most - most // 4))
        tail = file.read(most)
    return head[: head.rfind(b"\n") + 1], tail[tail.find(b"\n") + 1 :]


def said_rank(head: bytes, tail: bytes) -> int | None:
    """Return the one rank that the lines at both ends name ("rank=2"); None where there are several or none."""
    ends = head[:_SEARCHED] + (tail or head[_SEARCHED:])[-_SEARCHED:]
    found = {int(one[1]) for line in ends.splitlines() if not _NCCL.search(line) for one in _SAID.finditer(line)}
    return found.pop() if len(found) == 1 else None


def log_lines(head: bytes, tail: bytes) -> Iterator[LogLine]:
    """Yield the lines of both parts that may hold a fact: see `_worth_reading`."""
    has_hosts = _begins_with_hosts(head)
    for part, is_numbered, seconds in ((head, True, _HEAD_SECONDS), (tail, False, _TAIL_SECONDS)):
        for number, raw in _worth_reading(part, seconds if tail else _HEAD_SECONDS + _TAIL_SECONDS):
            line = raw[:_LONGEST_LINE].rstrip(b"\n")
            if b"\x1b" in line or b"\r" in line:
                line = _STYLE.sub(b"", line)
            text, host = line.decode("utf-8", "replace"), ""
            if has_hosts and (found := _HOST.match(text)) is not None:
                host, text = found[1], text[found.end() :]
            yield _split(text, number if is_numbered else 0, host)


def _worth_reading(part: bytes, seconds: float) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers: those with a word of a fact, those after one that begins a stack or a table,
    those at both ends, and of the others a sample.

    Args:
        part: of the file.
        seconds: of processor time after which only the last lines are read; their number is 0.
    """
    until = time.process_time() + seconds
    last = _last_lines(part)
    place = follow = 0
    for number, raw, taken in numbered_lines(part, terminal_width(part)):
        place += taken
        if _OPENS.search(raw, 0, _LONGEST_LINE):
            follow = _FOLLOWING
        elif follow:
            follow -= 1
        elif not (number <= _SAMPLED_ENDS or place > last or number % _SAMPLED == 0):
            if number % _CHECKED == 0 and time.process_time() > until:
                break
            if len(raw) < _SHORTEST or not _WORDS.search(raw, 0, _LONGEST_LINE):
                continue
        yield number, raw
        if number % _CHECKED == 0 and time.process_time() > until:
            break
    if place < last:
        for raw in io.BytesIO(part[last:]):
            yield 0, raw


def _last_lines(part: bytes) -> int:
    """Offset of the last lines."""
    place = len(part)
    for _ in range(_SAMPLED_ENDS):
        place = part.rfind(b"\n", 0, max(place, 0))
        if place < 0:
            return 0
    return place + 1


def _begins_with_hosts(head: bytes) -> bool:
    """True where most lines begin with one of a few names: "node07: Traceback …"."""
    lines = head[:_SEARCHED].decode("utf-8", "replace").splitlines()
    names = [found[1] for line in lines if (found := _HOST.match(line)) is not None]
    if len(names) < 4 or len(names) < _LEAST_HOST_LINES * len(lines):
        return False
    return len(set(names)) <= min(_MOST_HOSTS, len(names) // 2) and all(
        re.search(r"\d", name) or "." in name for name in set(names)
    )


def _split(text: str, number: int, host: str) -> LogLine:
    tag: int | None = None
    if text[:1] in "[0123456789" and (time := _TIME.match(text)) is not None:
        text = text[time.end() :]
    if text[:1] in "[ 0123456789":
        for pattern in _TAGGED:
            if (found := pattern.match(text)) is not None and not text.startswith("[rank"):
                tag, text = int(found[1]), text[found.end() :]
                break
        if (found := _RANK_PREFIX.match(text)) is not None:
            return LogLine(text[found.end() :], number, int(found[1]), tag, host)
    return LogLine(text, number, None, tag, host)
