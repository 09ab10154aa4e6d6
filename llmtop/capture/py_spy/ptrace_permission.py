"""Whether this process may read another's memory, which py-spy needs, and what would change it."""

from __future__ import annotations

import os
from pathlib import Path

from llmtop.capture.base.engine import Check, Refusal
from llmtop.system import procfs

CAP_SYS_PTRACE = 19


def refusal(pid: int) -> Refusal | None:
    """Why the process cannot be read and the one command that would change it; None if it can.

    Asks the kernel itself: opening /proc/PID/mem makes the same check as reading it, and does nothing else.
    """
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError:
        return Refusal(f"there is no process {pid} here", "llmtop --once")
    except OSError:
        return _refusal(pid)
    return None


def _refusal(pid: int) -> Refusal:
    owner = procfs.status(pid).get("Uid", "").split()
    if owner and int(owner[0]) != os.geteuid():
        return Refusal(f"process {pid} belongs to uid {owner[0]}", "sudo llmtop")
    scope = yama_scope()
    if scope == 1:
        return Refusal(
            "the kernel lets a process be read by its parents only (yama ptrace_scope is 1)",
            "sudo sysctl kernel.yama.ptrace_scope=0",
        )
    if scope == 2:
        return Refusal("the kernel lets only root read other processes (yama ptrace_scope is 2)", "sudo llmtop")
    if scope == 3:
        return Refusal(
            "the kernel forbids it to all until the next boot (yama ptrace_scope is 3)",
            "sudo sed -i 's/ptrace_scope *= *3/ptrace_scope = 0/' /etc/sysctl.d/*.conf && sudo reboot",
        )
    if is_in_container():
        return Refusal("this container may not read other processes", "docker run --cap-add=SYS_PTRACE …")
    return Refusal("the kernel refuses to let it be read", "sudo llmtop")


def yama_scope() -> int | None:
    """kernel.yama.ptrace_scope; None where Yama is not built in, which is as good as 0."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None


def has_capability(bit: int = CAP_SYS_PTRACE) -> bool:
    """Whether this process has that capability in effect."""
    text = procfs.status(os.getpid()).get("CapEff", "0")
    return bool(int(text, 16) >> bit & 1)


def is_in_container() -> bool:
    """Whether this process seems to be in a container."""
    return any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")) or "container" in os.environ


def permission_check() -> Check:
    """Whether this user's processes may be read."""
    scope = yama_scope()
    if has_capability() and scope != 3:
        return Check(name="ptrace", ok=True, says="this user may read any process (CAP_SYS_PTRACE)")
    if scope in (None, 0):
        return Check(name="ptrace", ok=True, says="this user's processes may be read")
    says = f"kernel.yama.ptrace_scope is {scope}: py-spy may read only what llmtop itself starts"
    return Check(name="ptrace", ok=False, says=says, command="sudo sysctl kernel.yama.ptrace_scope=0")
