"""Which CLOCK_MONOTONIC this process reads: two processes may compare stamps only where it is the same one."""

from __future__ import annotations

import functools
import os


@functools.cache
def clock_name() -> str:
    """A name for it: the machine's boot, and the time namespace that the process is in. Empty where unknown.

    A host name identifies neither: containers of one machine have different ones, and two machines the same.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except (OSError, ValueError):
        return ""
    try:
        return f"{boot}-{os.readlink('/proc/self/ns/time')}"
    except OSError:  # a kernel before 5.6, which has no such namespaces
        return boot
