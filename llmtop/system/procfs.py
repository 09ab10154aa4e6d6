"""Facts from /proc on processes, threads and this machine, read without a device library.

The only module that names /proc: `tests/system/test_procfs.py` holds that. It imports next to nothing, because
trainings and the driver's process load it; where a monitor needs what psutil has too, it asks psutil, unless
it needs it every second.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from types import ModuleType
from typing import TYPE_CHECKING, Literal, cast

from llmtop.errors import NotPossibleHere

if TYPE_CHECKING:
    from pathlib import Path

    Pid = int | Literal["self"]

ROOT = "/proc"
"""Where it is mounted; tests put a folder of theirs in its place."""
CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 19, 21, 38
"""Numbers of capabilities (linux/capability.h)."""
_CHUNK_BYTES = 1 << 16
_SCHEDSTAT_BYTES = 80
"""Three numbers of 64 bits."""
_MAPPED = re.compile(rb"^(?:\S+ +){5}(\S.*)$", re.MULTILINE)
_CPU_FIELDS, _IDLE, _IOWAIT = 8, 3, 4
"""Numbers of a CPU in /proc/stat, and the places of those without work (proc_stat(5))."""
_DISK_FIELDS = 13
"""Fields of a line of /proc/diskstats at least."""
_MEMORY = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")


# ---- files ----


_MOUNT_POINT = 4
"""Place of a mount's folder among the fields of mountinfo (proc_pid_mountinfo(5))."""


_own_files: ModuleType | None = None
"""`llmtop.system.own_files` in a training."""


def share_process() -> None:
    """Read with care from now on: the script of this process may close every descriptor, also one in use here."""
    global _own_files
    from llmtop.system import own_files

    _own_files = own_files


def path(*parts: object) -> str:
    """Return the path of a file or folder of /proc."""
    return "/".join((ROOT, *map(str, parts)))


def read(*parts: object) -> bytes:
    """Return the content of a file of /proc.

    Raises:
        OSError: it is gone, or this user may not read it.
    """
    if _own_files is not None:
        return cast("bytes", _own_files.read_all(path(*parts)))
    descriptor = os.open(path(*parts), os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(descriptor, _CHUNK_BYTES):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def _read_once(*parts: object) -> bytes:
    """Return the same of a file that the kernel gives in one piece (stat, status): no call to find its end."""
    if _own_files is not None:
        return cast("bytes", _own_files.read_all(path(*parts)))
    descriptor = os.open(path(*parts), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    finally:
        os.close(descriptor)


def text(*parts: object) -> str:
    """Return the text of a file of /proc; empty when it has gone, as threads and GPUs do at any time."""
    try:
        return read(*parts).decode(errors="replace")
    except OSError:
        return ""


def link(*parts: object) -> str:
    """Return where a link of /proc points; "" when it has gone, as descriptors do at any time."""
    try:
        return os.readlink(path(*parts))
    except OSError:
        return ""


# ---- processes ----


def pids() -> list[int]:
    """Return the pids of all processes that /proc lists."""
    return [int(name) for name in os.listdir(ROOT) if name.isdigit()]


def own_pids() -> set[int]:
    """Return the pids of all processes of this user."""
    uid = os.geteuid()
    found = set()
    for entry in os.scandir(ROOT):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    found.add(int(entry.name))
    return found


def environ(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with.

    Raises:
        NotPossibleHere: it is gone, or belongs to another user.
    """
    try:
        raw = read(pid, "environ")
    except PermissionError:
        raise NotPossibleHere(
            f"process {pid} belongs to another user; run llmtop as that user, or as root: sudo llmtop …"
        ) from None
    except OSError:
        raise NotPossibleHere(
            f"there is no process {pid} on this machine; llmtop --once lists the trainings"
        ) from None
    pairs = (entry.partition("=") for entry in os.fsdecode(raw).split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}


def has_variable(pid: int, entry: bytes) -> bool:
    """Return whether the process was started with `entry` (NAME=value); False also where that cannot be seen."""
    try:
        return entry in read(pid, "environ").split(b"\0")
    except OSError:
        return False


def words(pid: Pid) -> list[str]:
    """Return the words of the command line, secrets included; empty for a kernel thread.

    What is no UTF-8 is replaced: no terminal and no file of ours could hold it.

    Raises:
        OSError: the process is gone.
    """
    raw = read(pid, "cmdline").rstrip(b"\0")
    return [word.decode(errors="replace") for word in raw.split(b"\0")] if raw else []


def command(pid: int) -> str | None:
    """Return the command line, blanks between the words, without secrets: it is shown, and written to files.

    None when the process is gone or a kernel thread.
    """
    from llmtop.redaction.secret_filter import (
        words_without_secrets,  # what keeps a session open never asks for this
    )

    try:
        return " ".join(words_without_secrets([word for word in words(pid) if word])) or None
    except OSError:
        return None


def folder(pid: int) -> str:
    """Return the folder that the process works in.

    Raises:
        OSError: the process is gone, or belongs to another user.
    """
    return os.readlink(path(pid, "cwd"))


def executable(pid: int) -> str:
    """Return the path of the process's program.

    Raises:
        OSError: the process is gone, or belongs to another user.
    """
    return os.readlink(path(pid, "exe"))


def root_folder(pid: int) -> str:
    """Return where this process finds the files of `pid`: "", or a folder where they are a container's."""
    root = path(pid, "root")
    try:
        same = os.path.samefile(root, "/")
    except OSError:
        return ""
    return "" if same else root


def runs_python(pid: int) -> bool:
    """Return whether the process's program is a Python interpreter; False also where that cannot be seen."""
    return "python" in os.path.basename(link(pid, "exe"))


def mapped_files(pid: int) -> list[str]:
    """Return the files that the process has mapped, libraries among them, each once.

    Raises:
        OSError: the process is gone, or belongs to another user.
    """
    names = dict.fromkeys(_MAPPED.findall(read(pid, "maps")))
    return [name.decode(errors="replace") for name in names]


def is_memory_readable(pid: int) -> bool:
    """Return whether this process may read the memory of `pid`.

    Asks the kernel itself: opening the file makes the same check as reading it, and does nothing else.

    Raises:
        FileNotFoundError: there is no such process.
    """
    try:
        os.close(os.open(path(pid, "mem"), os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


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
    return thread_state(pid, None) not in ("Z", "X")


def is_stopped(pid: int) -> bool:
    """Return True if a signal has stopped the process (ctrl+z, SIGSTOP); no debugger has."""
    return thread_state(pid, None) == "T"


def started_ticks(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot: with the pid it names one process for good."""
    try:
        return int(stat_fields(pid)[19])
    except (OSError, IndexError, ValueError):
        return None


def stat_fields(pid: int, thread: int | None = None) -> list[str]:
    """Return the fields of /proc/PID/stat after the name (proc_pid_stat(5)): the state is the first.

    Args:
        pid: of the process.
        thread: one of its threads, whose fields to return instead.

    Raises:
        OSError: it is gone, or hidden from this user.
    """
    parts = (pid, "stat") if thread is None else (pid, "task", thread, "stat")
    return _read_once(*parts).decode(errors="replace").rpartition(")")[2].split()


def status(pid: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status; empty when the process is gone."""
    lines = text(pid, "status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def status_fields(pid: int, *names: str) -> list[list[str]]:
    """Return the words of some fields of /proc/PID/status: cheaper than all of them.

    Raises:
        OSError: the process is gone, or hidden from this user.
    """
    lines = _read_once(pid, "status").decode(errors="replace")
    return [lines.partition(f"\n{name}:")[2].partition("\n")[0].split() for name in names]


def io_bytes(pid: int) -> tuple[int, int]:
    """Return the bytes that a process has had read from disks, and written.

    Raises:
        OSError: the process is gone, or hidden from this user.
        ValueError: this kernel does not count them.
    """
    lines = "\n" + _read_once(pid, "io").decode(errors="replace")
    read, written = (
        lines.partition(f"\n{name}: ")[2].partition("\n")[0] for name in ("read_bytes", "write_bytes")
    )
    return int(read), int(written)


def parent(pid: int) -> int | None:
    """Return the pid of a process's parent; None when the process is gone."""
    found = status(pid).get("PPid")
    return int(found) if found else None


def owner(pid: int) -> int | None:
    """Return the uid that the process runs as; None when it is gone."""
    uids = status(pid).get("Uid", "").split()
    return int(uids[0]) if uids else None


def has_capability(number: int) -> bool:
    """Return whether this process has a capability in effect."""
    return bool(int(status(os.getpid()).get("CapEff") or "0", 16) >> number & 1)


def namespace(pid: Pid, kind: str) -> str:
    """Return the name of a process's namespace of that kind ("net", "pid", "time"); "" where unknown."""
    return link(pid, "ns", kind)


def private_bytes() -> int:
    """Return the resident memory of this process that no file backs; 0 where the system does not tell it."""
    fields = text("self", "statm").split()
    try:
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    except (IndexError, ValueError):
        return 0


# ---- descriptors ----


def descriptor_path(descriptor: int) -> str:
    """Return a path of what one of this process's descriptors is open on."""
    return path("self", "fd", descriptor)


def open_descriptors() -> list[int]:
    """Return the descriptors of this process; that of the listing itself, closed again, is among them."""
    return [int(name) for name in os.listdir(path("self", "fd"))]


def opened_files(pid: int) -> list[str]:
    """Return what the descriptors of a process are open on: paths, "socket:[INODE]" and the like.

    Empty where that cannot be seen.
    """
    try:
        names = os.listdir(path(pid, "fd"))
    except OSError:
        return []
    return [target for name in names if (target := link(pid, "fd", name))]


def uses_gpu(pid: int) -> bool:
    """Return True if the process has an NVIDIA device open; False also where that cannot be seen."""
    return any(re.fullmatch(r"/dev/nvidia\d+", target) for target in opened_files(pid))


# ---- threads ----


def thread_ids(pid: int) -> list[int]:
    """Return the threads of a process, by number; empty when it is gone."""
    try:
        return sorted(int(name) for name in os.listdir(path(pid, "task")))
    except OSError:
        return []


def thread_state(pid: int, thread: int | None) -> str | None:
    """Return the state of a thread, or of a process: R, S, D, T, Z and so on; None where unknown or gone."""
    try:
        return stat_fields(pid, thread)[0]
    except (OSError, IndexError):
        return None


def is_thread_running(pid: int, thread: int) -> bool:
    """Return True if a thread of a process is on a CPU or waits for one; False also where that cannot be seen."""
    return thread_state(pid, thread) == "R"


def thread_name(pid: int, thread: int | None) -> str:
    """Return what the system calls a thread; "" when it has gone."""
    return text(pid, "task", thread, "comm").strip()


def set_own_thread_name(thread: int, name: str) -> None:
    """Name a thread of this process, as py-spy and the like show it; does nothing where that is forbidden."""
    with contextlib.suppress(OSError):
        name_file = path("self", "task", thread, "comm")
        if _own_files is not None:
            _own_files.write(name_file, os.O_WRONLY, name.encode())
            return
        with open(name_file, "wb") as comm:
            comm.write(name.encode())


def wait_channel(pid: int, thread: int) -> str:
    """Return the function of the kernel in which a thread waits; "" where the kernel does not tell."""
    return text(pid, "task", thread, "wchan").strip("0\0\n ")


def system_call(pid: int, thread: int) -> tuple[int, ...]:
    """Return the number of the system call that a thread is in and its arguments; empty where unknown."""
    number, *arguments = text(pid, "task", thread, "syscall").split() or [""]
    try:
        return (int(number), *(int(one, 16) for one in arguments))
    except ValueError:
        return ()


def thread_cpu_ns(pid: int, thread: int) -> tuple[int, int] | None:
    """Return the ns that a thread was on a CPU, and waited for one; None when it has gone."""
    fields = text(pid, "task", thread, "schedstat").split()
    try:
        return int(fields[0]), int(fields[1])
    except (IndexError, ValueError):
        return None


def own_cpu_wait_ns() -> int | None:
    """Return the ns that this thread has waited for a CPU, without giving up Python's lock; None where unknown.

    Some 5 µs. For a process that shares its descriptors (`share_process`).
    """
    if _own_files is None:
        return None
    fields = _own_files.read_with_lock(os.fsencode(path("thread-self", "schedstat")), _SCHEDSTAT_BYTES).split()
    # A kernel that does not count writes zeros.
    return int(fields[1]) if len(fields) > 2 and fields[2] != b"0" else None


# ---- the machine ----


def kernel_setting(*parts: str) -> int | None:
    """Return a number of /proc/sys; None where this kernel has no such setting."""
    try:
        return int(text("sys", *parts))
    except ValueError:
        return None


def perf_event_paranoid() -> int | None:
    """Return kernel.perf_event_paranoid; None where the kernel has no perf events."""
    return kernel_setting("kernel", "perf_event_paranoid")


def boot_id() -> str:
    """Return the name of the machine's boot; "" where unknown."""
    return text("sys", "kernel", "random", "boot_id").strip()


def mounts() -> dict[str, str]:
    """Return the kind of each mounted file system, "ext4", by the folder that it is mounted at."""
    kinds: dict[str, str] = {}
    for line in text("self", "mountinfo").splitlines():
        place, _, rest = line.partition(" - ")
        fields = place.split(" ")
        if len(fields) > _MOUNT_POINT and rest:
            point = fields[_MOUNT_POINT].encode().decode("unicode_escape")  # a space is \\040
            kinds[point] = rest.split(" ", 1)[0]
    return kinds


def memory() -> dict[str, int]:
    """Return MemTotal, MemAvailable, SwapTotal and SwapFree in bytes; without those that this kernel hides."""
    try:
        lines = "\n" + _read_once("meminfo").decode(errors="replace")
    except OSError:
        return {}
    found = {name: lines.partition(f"\n{name}:")[2].partition(" kB\n")[0].strip() for name in _MEMORY}
    return {name: int(number) * 1024 for name, number in found.items() if number.isdecimal()}


def cpu_ticks() -> dict[bytes, tuple[int, int]]:
    """Return, by CPU that is online ("cpu0"), the clock ticks since boot: without work, and all.

    psutil gives the same with an object for each CPU: 0.76 ms for 200 CPUs, of which this takes 0.24.

    Raises:
        OSError: this user may not read them.
    """
    found: dict[bytes, tuple[int, int]] = {}
    for line in read("stat").split(b"\n")[1:]:
        if not line.startswith(b"cpu"):
            break
        name, *fields = line.split()[: _CPU_FIELDS + 1]
        ticks = list(map(int, fields))  # a guest's are in the user's
        found[name] = ticks[_IDLE] + ticks[_IOWAIT], sum(ticks)
    return found


def disk_counters() -> dict[str, list[bytes]]:
    """Return the fields of /proc/diskstats by disk and partition.

    The sixth and the tenth are sectors of 512 bytes that were read and written.

    Raises:
        OSError: this user may not read them.
    """
    lines = [line.split() for line in read("diskstats").split(b"\n")]
    return {fields[2].decode(errors="replace"): fields for fields in lines if len(fields) > _DISK_FIELDS}


def network_counters() -> dict[str, list[bytes]]:
    """Return the fields of /proc/net/dev after the name, by network interface.

    The first and the ninth are bytes that were received and sent.

    Raises:
        OSError: this user may not read them.
    """
    pairs = [line.rpartition(b":") for line in read("net", "dev").split(b"\n")[2:]]
    return {name.strip().decode(errors="replace"): fields.split() for name, _, fields in pairs if name}


def cpu_model() -> str | None:
    """Return the name of the CPU; None where the kernel does not tell."""
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text("cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else None


def gpu_models() -> tuple[str, ...]:
    """Names of the NVIDIA GPUs, as the kernel driver lists them; empty without a driver."""
    gpus = ("driver", "nvidia", "gpus")
    try:
        names = sorted(os.listdir(path(*gpus)))
    except OSError:
        return ()
    matches = (re.search(r"^Model:\s*(.+)$", text(*gpus, name, "information"), re.MULTILINE) for name in names)
    return tuple(match[1].strip() for match in matches if match)


def driver_version() -> str | None:
    """Return the version of NVIDIA's kernel driver; None without one."""
    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text("driver", "nvidia", "version"))
    return match[1] if match else None


def are_gpu_counters_restricted() -> bool | None:
    """Return whether NVIDIA's driver keeps the GPU's counters to administrators; None without a driver."""
    parameters = text("driver", "nvidia", "params")
    return "RmProfilingAdminOnly: 1" in parameters if parameters else None


# ---- other files ----


def is_trusted(program: Path) -> bool:
    """Return True if only this user or root can have put that program there (its folder included)."""
    try:
        for place in (program, program.parent):
            info = place.stat()
            if info.st_uid not in (os.geteuid(), 0) or info.st_mode & stat.S_IWOTH:
                return False
    except OSError:
        return False
    return True
