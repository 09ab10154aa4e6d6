"""The process that asks the driver: how it is started, what it lets go of, and what its end means in words.

The driver's library is not ours, and it has crashed on real machines. In a process of its own it takes with it
what it knows of the GPUs, which is asked for again, and not the monitor.

It is a fresh interpreter and no fork: that is safe beside threads and a screen, so the second one is started like
the first, and it costs no more. A fork shares next to nothing after a minute, because Python counts references
inside the objects (8 GPUs: 12.0 MiB of its own when forked, 13.1 with the same modules in a fresh interpreter, and
9 with the few that it needs).
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

from llmtop.system import procfs

PACE = struct.Struct("<d")
"""Down the channel: the seconds between samples; the first one starts the work."""
LENGTH = struct.Struct("<I")
"""Up the channel: the length in bytes of a message in JSON, then that: [reading, uses, or null if as before]."""
HEARTBEAT_SECONDS = 1.1
"""A reading is sent this often at least: the monitor takes silence for a process that hangs. Longer than the usual
interval of 1 s, so that neither end wakes up a moment before a reading."""

_CRASHES = frozenset({
    signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP,
})  # fmt: skip
_TERMINALS = (
    signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1,
    signal.SIGUSR2, signal.SIGALRM, signal.SIGPIPE,
)  # fmt: skip
_PR_SET_PDEATHSIG, _PR_SET_NAME, _M_ARENA_MAX = 1, 15, -8
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_UNKNOWN = -1
_CHANNEL = 3
"""The child's end of the channel has this number."""
PROGRAM = """\
import sys, types
parent, home, binding, package, vendor = sys.argv[1:]
sys.path.insert(0, home)
sys.path.append(binding)
sys.modules["llmtop"] = types.ModuleType("llmtop")
sys.modules["llmtop"].__path__ = [package]
from collectors.driver.child import isolate
channel = isolate(int(parent))
from collectors.driver.serve import serve
serve(channel, vendor)
"""
"""Program of the child. The package llmtop is put there empty: what its __init__ imports is for trainings, and
megabytes."""
_BINDINGS = {
    "NVIDIA": ("pynvml", "nvidia-ml-py"),
    "AMD": ("amdsmi", "amdsmi"),
    "Google": ("tpu_info", "tpu-info"),
}
"""The module that binds each vendor's library, and the package that has it."""


class Child:
    """A process that was started, and the monitor's end of the channel to it."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid, self.channel = pid, channel


def start(vendor: str = "NVIDIA") -> Child:
    """Start one that asks the driver of "NVIDIA", "AMD" or "Google".

    Raises:
        OSError: the system allows no further process, there is no interpreter to start, or no binding to the
            driver's library.
    """
    import errno
    from importlib.util import find_spec  # not for the child, which imports this module too

    from llmtop import errors

    module, distribution = _BINDINGS[vendor]
    binding = find_spec(module)
    if binding is None or binding.origin is None:
        raise FileNotFoundError(
            errno.ENOENT, f"the package {distribution} is not installed: pip install {distribution}"
        )
    package = os.path.dirname(os.path.abspath(errors.__file__))
    inside = binding.origin if binding.submodule_search_locations is None else os.path.dirname(binding.origin)
    arguments = (str(os.getpid()), _HOME, os.path.dirname(inside), package, vendor)
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            pid = os.posix_spawn(
                sys.executable or "python3",
                # Isolated: neither the current folder nor what site-packages starts is this process's business.
                [sys.executable, "-IS", "-c", PROGRAM, *arguments],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _CHANNEL)],
            )
        except OSError:
            ours.close()
            raise
    return Child(pid, ours)


def reap(child: Child, seconds: float) -> int | None:
    """Return the wait status of an ended child.

    Args:
        child: a child of this process; no other code may wait for it.
        seconds: the longest wait; polled every 5 ms.

    Returns:
        The status as of `os.waitpid`; -1 where the kernel discarded it because SIGCHLD is ignored; None if the
        child still runs.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            pid, status = os.waitpid(child.pid, os.WNOHANG)
        except ChildProcessError:  # SIGCHLD is ignored, inherited from the parent: the kernel discarded the status
            return _UNKNOWN
        if pid:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.005)


def kill(child: Child) -> None:
    """End a child that has not been reaped."""
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)


def exit_reason(status: int) -> str:
    """Return why a child ended unexpectedly."""
    if status == _UNKNOWN:
        return "the process that asks the driver ended"
    if not os.WIFSIGNALED(status):
        return f"the process that asks the driver ended by itself (exit code {os.waitstatus_to_exitcode(status)})"
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number in _CRASHES:
        return f"the driver's library crashed ({name})"
    return f"the process that asks the driver was killed ({name})"


# ---- in the child ----


def isolate(parent: int) -> socket.socket:
    """Detach from everything but the monitor: no terminal, no terminal signals, no open files; end with it.

    Returns the end of the channel.
    """
    import ctypes

    os.setsid()
    for number in _TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    for known in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(known, signal.SIG_DFL)
    nowhere = _open_null_device()
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    # Whatever the monitor itself was started with lies open here too.
    for descriptor in procfs.open_descriptors():
        if descriptor > _CHANNEL:
            with suppress(OSError):  # that of the listing itself is closed already
                os.close(descriptor)
    os.set_inheritable(_CHANNEL, False)
    _disable_core_dumps()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, b"llmtop-driver", 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if hasattr(libc, "mallopt"):  # not in every C library
        libc.mallopt(_M_ARENA_MAX, 1)  # two threads a GPU would each have one, and none allocates much
    if os.getppid() != parent:
        os._exit(0)  # it died before it could be promised that this process dies with it
    return socket.socket(fileno=_CHANNEL)


def _open_null_device() -> int:
    """Return a descriptor that takes what is written, or refuses it where a root folder has no /dev/null."""
    try:
        return os.open(os.devnull, os.O_RDWR)
    except OSError:
        reader, writer = os.pipe()
        os.close(reader)
        return writer


def _disable_core_dumps() -> None:
    """A driver that crashes again and again must not fill the folder that the monitor was started in."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
