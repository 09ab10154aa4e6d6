"""Inputs of `llmtop.loading.cost`: stacks, states and rates of the threads that load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from llmtop.stacks.fold import CpuTime
from llmtop.stacks.samples import Stack

Waits: TypeAlias = Literal[
    "runs",
    "disk",
    "device",
    "network",
    "socket",
    "lock",
    "futex",
    "gil",
    "pipe",
    "poll",
    "sleep",
    "child",
    "asleep",
]
"""Kernel state of a thread: "runs" is on a CPU or waits for one; "disk" and "network" wait for a file's bytes;
"device" waits uninterruptibly for something else; "futex" for another thread; "gil" likewise, with a timeout, as
Python's own lock is waited for; "asleep" for what the kernel does not name."""


@dataclass(frozen=True)
class LoaderSamples:
    """Samples of the loader's threads of one training, over some seconds."""

    pid: int
    """Pid of the training."""
    stacks: tuple[Stack, ...]
    """Stacks of its threads and of the processes that it started, waiting ones included."""
    states: Mapping[int, Counter[Waits]] = field(default_factory=dict)
    """Samples per state, by thread; empty where not sampled."""
    cpu: Mapping[int, CpuTime] = field(default_factory=dict)
    """CPU time and wait for a CPU, by thread."""
    cores: float | None = None
    """CPUs that it may use."""
    step_seconds: float | None = None
    """The usual step, from start to start."""
    read_bytes_per_s: float | None = None
    """Rate of reads from storage, all of its processes together."""
    written_bytes_per_s: float | None = None
    """To storage, likewise."""
    workers: tuple[int, ...] = ()
    """The pids of the processes that it has started: where their stacks could not be read, their states are
    used."""
