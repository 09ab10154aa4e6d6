"""Which CLOCK_MONOTONIC this process reads: two processes may compare stamps only where it is the same one."""

from __future__ import annotations

import functools

from llmtop.system import procfs


@functools.cache
def clock_name() -> str:
    """Return a name for it: the machine's boot, and the time namespace that the process is in. Empty where
    unknown.

    A host name identifies neither: containers of one machine have different ones, and two machines the same.
    """
    boot, namespace = procfs.boot_id(), procfs.namespace("self", "time")
    return f"{boot}-{namespace}" if boot and namespace else boot  # a kernel before 5.6 has no such namespaces
