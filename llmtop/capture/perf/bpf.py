"""One-liners of bpftrace and tools of BCC that answer what a loader's finding leaves open, where they are."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass

from llmtop.capture.base.engine import Check
from llmtop.capture.py_spy.cpu_times import descendant_pids
from llmtop.format import printable

RUN_SECONDS = 3
PATIENCE_SECONDS = 20.0
"""How long bpftrace may take, its start included."""
_MOST_PROCESSES = 65
"""Most processes, as for py-spy: the training and 64 workers."""
_MOST_CALLS = 12
_CALLS = {
    name: dict(zip(("x86_64", "aarch64"), numbers, strict=True))
    for name, numbers in {
        "read": (0, 63), "write": (1, 64), "close": (3, 57), "lseek": (8, 62), "mmap": (9, 222),
        "munmap": (11, 215), "pread64": (17, 67), "madvise": (28, 233), "sendto": (44, 206), "recvfrom": (45, 207),
        "wait4": (61, 260), "fcntl": (72, 25), "flock": (73, 32), "fsync": (74, 82), "futex": (202, 98),
        "clock_nanosleep": (230, 115), "openat": (257, 56), "newfstatat": (262, 79), "ppoll": (271, 73),
        "epoll_pwait": (281, 22), "preadv": (295, 69), "poll": (7, None), "select": (23, None),
        "epoll_wait": (232, None), "io_uring_enter": (426, 426), "fstat": (5, 80), "mprotect": (10, 226),
        "brk": (12, 214), "rt_sigprocmask": (14, 135), "ioctl": (16, 29), "sched_yield": (24, 124),
        "socket": (41, 198), "connect": (42, 203), "getsockname": (51, 204), "setsockopt": (54, 208),
        "gettid": (186, 178),
    }.items()
}  # fmt: skip
"""Numbers of the system calls that loaders make, from the kernel's tables (Linux 6.1); bpftrace gives no names."""
_COUNT = re.compile(r"@\[(\d+)\]: (\d+)$")


@dataclass(frozen=True)
class Question:
    """Question that one script answers."""

    name: str
    causes: tuple[str, ...]
    """The causes of loading that it fits."""
    bpftrace: str
    """The program; "{ours}" is true of the training and of those that it started."""
    bcc: tuple[str, ...]
    """BCC's equivalent tool, by its names in distributions, and its arguments."""


QUESTIONS = (
    Question(
        "system calls",
        ("lock", "unknown", "sleep", "network"),
        "tracepoint:raw_syscalls:sys_enter /{ours}/ { @[args->id] = count(); }",
        ("syscount-bpfcc", "-p", "{pid}", "-d", "3"),
    ),
    Question(
        "block I/O latency",
        ("disk",),
        "tracepoint:block:block_rq_issue { @t[args->dev, args->sector] = nsecs; } "
        "tracepoint:block:block_rq_complete /@t[args->dev, args->sector]/ "
        "{ @us = hist((nsecs - @t[args->dev, args->sector]) / 1000); delete(@t[args->dev, args->sector]); }",
        ("biolatency-bpfcc", "3", "1"),
    ),
    Question(
        "run-queue latency",
        ("cpu", "slow_worker", "too_few_workers", "own_code"),
        "tracepoint:sched:sched_wakeup { @q[args->pid] = nsecs; } tracepoint:sched:sched_switch "
        "/@q[args->next_pid]/ { @us = hist((nsecs - @q[args->next_pid]) / 1000); delete(@q[args->next_pid]); }",
        ("runqlat-bpfcc", "3", "1"),
    ),
)


def question_command(question: Question, pid: int) -> list[str]:
    """Return how it is asked here: by bpftrace, else by BCC, which knows of one process only; [] where neither is
    there.

    Args:
        question: one of `QUESTIONS`.
        pid: of the training. What it started by now, as its loader's workers, is asked about as well.
    """
    if shutil.which("bpftrace"):
        ours = " || ".join(f"pid == {one}" for one in [pid, *descendant_pids([pid])][:_MOST_PROCESSES])
        ended = question.bpftrace.replace("{ours}", ours) + f" interval:s:{RUN_SECONDS} {{ exit(); }}"
        return ["bpftrace", "-e", ended]
    tool = question.bcc[0]
    for name in (tool, tool.removesuffix("-bpfcc")):
        if shutil.which(name):
            return [name, *(word.replace("{pid}", str(pid)) for word in question.bcc[1:])]
    return []


def questions_for(cause: str | None) -> tuple[Question, ...]:
    """Return the questions that fit a cause of loading; all questions without a cause."""
    return tuple(question for question in QUESTIONS if cause is None or cause in question.causes)


def checks() -> list[Check]:
    """Return True if bpftrace or BCC is here."""
    found = [name for name in ("bpftrace", *(question.bcc[0] for question in QUESTIONS)) if shutil.which(name)]
    if not found:
        says = "neither bpftrace nor BCC's tools are installed"
        return [Check(name="eBPF", ok=None, says=says, command="sudo apt-get install bpftrace")]
    root = "" if os.geteuid() == 0 else " (installed; they run as root only)"
    return [
        Check(
            name="eBPF",
            ok=not root,
            says=f"{', '.join(found)}{root}",
            command="sudo llmtop doctor" if root else "",
        )
    ]


def answer_question(question: Question, pid: int) -> str:
    """Run it for `RUN_SECONDS` and return its output; "" where it cannot be run (no root, not installed)."""
    words = question_command(question, pid)
    if not words or os.geteuid() != 0:
        return ""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode:
        return f"it failed: {printable(done.stderr.decode(errors='replace').strip(), 200)}"
    return "\n".join(_answer_lines(done.stdout.decode(errors="replace")))


def _answer_lines(text: str) -> list[str]:
    """Return the lines of an answer: system calls by name, the most frequent first."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("Attaching ")]
    counted = [(int(found[2]), int(found[1])) for line in lines if (found := _COUNT.match(line))]
    rest = [printable(line, 120) for line in lines if not _COUNT.match(line)]
    names = {numbers.get(platform.machine()): name for name, numbers in _CALLS.items()}
    calls = [f"{names.get(call, f'system call {call}')}: {times}" for times, call in sorted(counted, reverse=True)]
    return [*calls[:_MOST_CALLS], *rest]
