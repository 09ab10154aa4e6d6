"""One-liners of bpftrace and tools of BCC that answer what a loader's finding leaves open, where they are "
"installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from llmtop.capture.engine import Check
from llmtop.format import printable

RUN_SECONDS = 3
_PATIENCE_SECONDS = 20.0


@dataclass(frozen=True)
class Question:
    """What one of them answers."""

    name: str
    about: tuple[str, ...]
    """The causes of loading that it fits."""
    bpftrace: str
    """The program; "{pid}" is the training's."""
    bcc: tuple[str, ...]
    """BCC's tool that tells the same, by its names in distributions, and its arguments."""


QUESTIONS = (
    Question(
        "system calls",
        ("lock", "unknown", "sleep", "network"),
        "tracepoint:raw_syscalls:sys_enter /pid == {pid}/ { @[args->id] = count(); }",
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
        ("cpu", "slow_worker", "too_few_workers"),
        "tracepoint:sched:sched_wakeup { @q[args->pid] = nsecs; } tracepoint:sched:sched_switch "
        "/@q[args->next_pid]/ { @us = hist((nsecs - @q[args->next_pid]) / 1000); delete(@q[args->next_pid]); }",
        ("runqlat-bpfcc", "3", "1"),
    ),
)


def command(question: Question, pid: int) -> list[str]:
    """How it is asked here: by bpftrace, else by BCC; [] where neither is installed."""
    if shutil.which("bpftrace"):
        ended = question.bpftrace.replace("{pid}", str(pid)) + f" interval:s:{RUN_SECONDS} {{ exit(); }}"
        return ["bpftrace", "-e", ended]
    tool = question.bcc[0]
    for name in (tool, tool.removesuffix("-bpfcc")):
        if shutil.which(name):
            return [name, *(word.replace("{pid}", str(pid)) for word in question.bcc[1:])]
    return []


def fitting(cause: str | None) -> tuple[Question, ...]:
    """Those that fit a cause of loading; all where there is none."""
    return tuple(question for question in QUESTIONS if cause is None or cause in question.about)


def checks() -> list[Check]:
    """Whether bpftrace or BCC is here."""
    found = [name for name in ("bpftrace", *(question.bcc[0] for question in QUESTIONS)) if shutil.which(name)]
    if not found:
        says = "neither bpftrace nor BCC's tools are installed"
        return [Check(name="eBPF", ok=None, says=says, command="sudo apt-get install bpftrace")]
    root = "" if os.geteuid() == 0 else "; they need root"
    return [
        Check(
            name="eBPF",
            ok=not root,
            says=f"{', '.join(found)}{root}",
            command="sudo llmtop doctor" if root else "",
        )
    ]


def ask(question: Question, pid: int) -> str:
    """Run it for `RUN_SECONDS` and return what it said; "" where it cannot be run (no root, not installed)."""
    words = command(question, pid)
    if not words or os.geteuid() != 0:
        return ""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode:
        return f"it failed: {printable(done.stderr.decode(errors='replace').strip(), 200)}"
    return "\n".join(
        printable(line, 120) for line in done.stdout.decode(errors="replace").splitlines() if line.strip()
    )
