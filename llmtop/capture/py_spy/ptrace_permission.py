"""True if this process may read another's memory, which py-spy needs, and what would change it."""

from __future__ import annotations

import os
from pathlib import Path

from llmtop.capture.base.engine import Check, Refusal
from llmtop.system import procfs


def refusal(pid: int) -> Refusal | None:
    """Return why the process cannot be read and the one command that would change it; None if it can."""
    try:
        return None if procfs.is_memory_readable(pid) else _refusal(pid)
    except FileNotFoundError:
        return Refusal(f"there is no process {pid} here", "llmtop --once")


def _refusal(pid: int) -> Refusal:
    owner = procfs.owner(pid)
    if owner not in (None, os.geteuid()):
        return Refusal(f"process {pid} belongs to uid {owner}", "sudo llmtop")
    scope = yama_scope()
    if scope == 1:
        return Refusal(
            "the kernel allows only parents to read a process (yama ptrace_scope is 1)",
            "sudo sysctl kernel.yama.ptrace_scope=0",
        )
    if scope == 2:
        return Refusal(
            "the kernel allows reading other processes for root only (yama ptrace_scope is 2)", "sudo llmtop"
        )
    if scope == 3:
        return Refusal(
            "the kernel forbids reading other processes until the next boot (yama ptrace_scope is 3)",
            "sudo sed -i 's/ptrace_scope *= *3/ptrace_scope = 0/' /etc/sysctl.d/*.conf && sudo reboot",
        )
    if is_in_container():
        return Refusal("this container may not read other processes", "docker run --cap-add=SYS_PTRACE …")
    return Refusal("the kernel does not allow reading this process", "sudo llmtop")


def yama_scope() -> int | None:
    """kernel.yama.ptrace_scope; None where Yama is not built in, which is as good as 0."""
    return procfs.kernel_setting("kernel", "yama", "ptrace_scope")


def is_in_container() -> bool:
    """Return True if this process seems to be in a container."""
    return any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")) or "container" in os.environ


def permission_check() -> Check:
    """Return True if py-spy can read all processes of this user."""
    scope = yama_scope()
    if procfs.has_capability(procfs.CAP_SYS_PTRACE) and scope != 3:
        return Check(name="ptrace", ok=True, says="py-spy can read every process (CAP_SYS_PTRACE)")
    if scope in (None, 0):
        return Check(name="ptrace", ok=True, says="py-spy can read all processes of this user")
    says = f"kernel.yama.ptrace_scope is {scope}: py-spy can read only processes that llmtop starts"
    return Check(name="ptrace", ok=False, says=says, command="sudo sysctl kernel.yama.ptrace_scope=0")
