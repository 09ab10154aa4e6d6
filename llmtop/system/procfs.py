"""Facts from /proc about other processes and this machine, without a device library."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from llmtop.errors import NotPossibleHere


def environ(pid: int) -> dict[str, str]:
    """The environment that a process was started with.

    Raises:
        NotPossibleHere: it is gone, or belongs to another user.
    """
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        raise NotPossibleHere(
            f"process {pid} belongs to another user; run llmtop as that user, or as root: sudo llmtop …"
        ) from None
    except OSError:
        raise NotPossibleHere(f"there is no process {pid} here") from None
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def command(pid: int) -> str | None:
    """The command line, blanks between the words, without secrets: it is shown, and written to files.

    None when the process is gone or a kernel thread.
    """
    from llmtop.redaction.secret_filter import (
        words_without_secrets,  # what keeps a session open never asks for this
    )

    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return " ".join(words_without_secrets([os.fsdecode(word) for word in raw.split(b"\0") if word])) or None


def is_alive(pid: int) -> bool:
    """Return True if a process of that pid exists in this process's namespace and is no zombie.

    One that may not be inspected (another user's, under hidepid) counts as alive: signal 0 shows its existence.
    """
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    state = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return not state or state[0] not in ("Z", "X")


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process (ctrl+z, SIGSTOP); no debugger has."""
    return status(pid).get("State", "").startswith("T")


def is_thread_running(pid: int, thread: int) -> bool:
    """Whether a thread of a process is on a CPU or waits for one; False also where that cannot be seen."""
    state = _text(Path(f"/proc/{pid}/task/{thread}/stat")).rpartition(")")[2].split()
    return bool(state) and state[0] == "R"


def started_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot: with the pid it names one process for good."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status; empty when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def runs_python(pid: int) -> bool:
    """Return whether the process's program is a Python interpreter; False also where that cannot be seen."""
    return "python" in Path(_link_target(f"/proc/{pid}/exe")).name


def pids() -> list[int]:
    """Return the pids of all processes that /proc lists."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def has_variable(pid: int, entry: bytes) -> bool:
    """Return whether the process was started with `entry` (NAME=value); False also where that cannot be seen."""
    try:
        return entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def parent(pid: int) -> int | None:
    """The pid of a process's parent; None when the process is gone."""
    text = status(pid).get("PPid")
    return int(text) if text else None


def _text(path: Path) -> str:
    """The file's text; empty when it has gone, as threads and GPUs do at any time."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def is_trusted(path: Path) -> bool:
    """Whether only this user or root can have put that program there (its folder included)."""
    try:
        for place in (path, path.parent):
            info = place.stat()
            if info.st_uid not in (os.geteuid(), 0) or info.st_mode & stat.S_IWOTH:
                return False
    except OSError:
        return False
    return True


def gpu_models() -> tuple[str, ...]:
    """Names of the NVIDIA GPUs, as the kernel driver lists them; empty without a driver."""
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    matches = (re.search(r"^Model:\s*(.+)$", _text(file), re.MULTILINE) for file in files)
    return tuple(match[1].strip() for match in matches if match)


def driver_version() -> str | None:
    """The version of NVIDIA's kernel driver; None without one."""
    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", _text(Path("/proc/driver/nvidia/version")))
    return match[1] if match else None


def uses_gpu(pid: int) -> bool:
    """Whether the process has an NVIDIA device open; False also where that cannot be seen."""
    try:
        entries = _entries(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(re.fullmatch(r"/dev/nvidia\d+", _link_target(entry)) for entry in entries)


def _link_target(link: str) -> str:
    """Where a link points; "" when it has gone, as descriptors do at any time."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _entries(folder: str) -> list[str]:
    return [entry.path for entry in os.scandir(folder)]
