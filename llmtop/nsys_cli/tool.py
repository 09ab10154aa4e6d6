"""Nsight Systems on this machine: where it is, what it can, how a training is started under it, its sessions.

nsys attaches to nothing: a process can be captured only when an ancestor of it is `nsys launch` (or `nsys profile
--start-later`). Such a process carries the session's id in its environment, from where every other process of the
same user can start and stop a collection. What nsys does with a collection is in `llmtop/capture/nsys/`.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.naming import variable_names
from llmtop.system import procfs

OLDEST = (2023, 4)
"""Older ones lack switches that are used here."""
SESSION_VARIABLE = variable_names.NSYS_SESSION
"""Set by nsys in everything it launches, and accepted by ``--session``."""
COMMAND_SECONDS = 20.0
"""How long a command that answers at once (version, help, sessions) may take; they take 10 to 30 ms."""

PAUSE_COST = "pauses the training after a step, some 0.2 s to start and 0.5 s to stop"
"""Effect of a capture on trainings for which `Nsys.needs_pause` holds."""

_VERSION = re.compile(r"version (\d+(?:\.\d+)+)")
_BLACKWELL = re.compile(r"\bG?B(?:10|100|102|200|202|300)\b|Blackwell|RTX 50\d\d")
_PLACES = (
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "/opt/nvidia/nsight-systems*/bin/nsys",
    "/usr/local/cuda*/bin/nsys",
)
_WHERE = "install it (https://developer.nvidia.com/nsight-systems) or set LLMTOP_NSYS to its path"


@dataclass(frozen=True)
class Nsys:
    """An nsys that can be used here."""

    path: Path
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        """The version as nsys writes it, without the build: "2023.4.4"."""
        return ".".join(map(str, self.version[:3]))

    def run(self, *arguments: str, seconds: float = COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
        """Run one command of nsys to its end, with none of this process's streams.

        Args:
            arguments: after the program's name; the first one is the command.
            seconds: time limit, after which nsys is killed.

        Returns:
            The ended command with its output; its exit code is not checked.

        Raises:
            NotPossibleHere: nsys cannot be started, or did not end in time.
        """
        try:
            return subprocess.run(
                [str(self.path), *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
                env=child_environment(),
            )
        except subprocess.TimeoutExpired:
            raise NotPossibleHere(
                f"`nsys {arguments[0]}` did not answer within {seconds:.0f} s; try it by hand: {self.path} "
                f"{' '.join(arguments)}"
            ) from None
        except OSError as error:
            raise NotPossibleHere(f"{self.path} cannot be started: {error.strerror}; {_WHERE}") from None

    @property
    def needs_pause(self) -> bool:
        """Return True if a training on a GPU must pause while it starts and stops: llmtop.capture.nsys.pause."""
        return self.version[:2] >= (2025, 3)

    def supports(self, command: str, word: str) -> bool:
        """Return True if the help of one of its commands names `word`: switches come, go and change their
        names."""
        return word in _help(self, command)


@functools.lru_cache(maxsize=16)
def _help(nsys: Nsys, command: str) -> str:
    return nsys.run(command, "--help").stdout


@dataclass(frozen=True)
class Option:
    """Something more that nsys can record, off unless asked for."""

    name: str
    """Name on the command line, without the dashes."""
    summary: str
    cost: str
    """Cost for the training or the waiting person, shown before the key is pressed."""
    at_launch: bool
    """True: only `llmtop run --nsys` can ask for it. False: each capture can."""


OPTIONS: tuple[Option, ...] = (
    Option("pause", "the training waits after a step, its GPU idle, while nsys starts and stops",
           "some 0.2 s to start and 0.5 s to stop; done unasked on a GPU from nsys 2025.3 on", False),
    Option("no-pause", "the training never waits for nsys",
           "crashes the training on a GPU (nsys 2025.3)", False),
    Option("ops", "PyTorch's operators with the sizes of their inputs; of attached trainings",
           "some µs of the host for each: launch-bound steps become clearly longer within the window, which the "
           "report corrects by the step without the profiler", False),
    Option("gpu-metrics", "SM, tensor and memory activity over time, whole machine",
           "start takes 1.0 s instead of 0.25 s; needs root or profiling opened to all users", False),
    Option("cpu-sampling", "where all threads' CPU time goes",
           "up to 110 s to stop, 2.3 GB per second", False),
    Option("osrt", "waits in the C library (poll, read, mutexes)",
           "some 10 % on a training that makes many system calls", True),
    Option("memory-usage", "each device allocation and the memory in use",
           "each cudaMalloc and cudaFree becomes slower", True),
    Option("cuda-backtraces", "the C stack of slow CUDA calls; needs cpu-sampling as well",
           "a stack walk at each CUDA call of over 80 µs", True),
    Option("python-backtraces", "the Python stack of CUDA calls",
           "a stack walk at CUDA calls: launch-bound trainings become clearly slower", True),
    Option("python-sampling", "the Python stack 100 times a second",
           "about 1 %; the report grows by 100 stacks a second and thread", True),
    Option("cuda-graphs-whole", "CUDA graphs as one block each instead of kernel by kernel",
           "cheaper than the default; the kernels inside graphs are not seen", True),
)  # fmt: skip


def find_option(name: str) -> Option:
    """Return the option of that name.

    Raises:
        UnusableInput: there is none.
    """
    for known in OPTIONS:
        if known.name == name:
            return known
    raise UnusableInput(f"nsys has no option {name!r} here; it has: {', '.join(o.name for o in OPTIONS)}")


def find_nsys(environ: Mapping[str, str] | None = None) -> Nsys:
    """Return the nsys to use: `$LLMTOP_NSYS`, else the first on PATH, else the newest in NVIDIA's usual places.

    Raises:
        NotPossibleHere: there is none, or none is new enough; the sentence names what to install or set.
    """
    environ = os.environ if environ is None else environ
    given = environ.get("LLMTOP_NSYS")
    if given:
        return _usable(Path(given))
    on_path = shutil.which("nsys", path=environ.get("PATH"))
    first = _try(Path(on_path)) if on_path else None
    if isinstance(first, Nsys):
        return first
    others = [_try(candidate) for candidate in _installed_tools()]
    usable = [nsys for nsys in others if isinstance(nsys, Nsys)]
    if usable:
        return max(usable, key=lambda nsys: nsys.version)
    refusals = [refusal for refusal in (first, *others) if isinstance(refusal, NotPossibleHere)]
    raise refusals[0] if refusals else NotPossibleHere(f"nsys (Nsight Systems) is not on this machine: {_WHERE}")


def _try(path: Path) -> Nsys | NotPossibleHere:
    try:
        return _usable(path)
    except NotPossibleHere as refusal:
        return refusal


def nsys_at(path: Path) -> Nsys:
    """Return the nsys at that path.

    Raises:
        NotPossibleHere: it is missing, does not run, or is too old.
    """
    return _usable(path)


def _installed_tools() -> Iterator[Path]:
    for pattern in _PLACES:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))


def _usable(path: Path) -> Nsys:
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        raise NotPossibleHere(f"there is no nsys at {path}: {_WHERE}") from None
    nsys = Nsys(path, _version(path, changed))
    if nsys.version[:2] < OLDEST:
        raise NotPossibleHere(
            f"nsys {nsys.version_text} at {path} is too old, {'.'.join(map(str, OLDEST))} is needed: {_WHERE}"
        )
    return nsys


@functools.lru_cache(maxsize=64)
def _version(path: Path, changed: int) -> tuple[int, ...]:
    del changed  # only part of the key: an nsys that was replaced is asked again
    match = _VERSION.search(Nsys(path, ()).run("--version").stdout)
    if match is None:
        raise NotPossibleHere(f"{path} does not answer --version as nsys does: {_WHERE}")
    return tuple(int(part) for part in match[1].split("."))


def child_environment() -> dict[str, str]:
    """Return the environment for an nsys that llmtop calls: this one, without what an outer nsys may have put
    there.

    A monitor that itself runs in a pane under `nsys launch` must not have its children injected.
    """
    kept = dict(os.environ)
    for name in ("LD_PRELOAD", SESSION_VARIABLE, variable_names.CUDA_INJECTION, variable_names.NVTX_INJECTION):
        kept.pop(name, None)
    return kept


def new_session_name() -> str:
    """Return a name for ``--session-new`` that no other session has; nsys wants a letter first."""
    return f"llmtop-{os.getpid()}-{os.urandom(3).hex()}"


def launch_command(session: str, options: Iterable[str] = (), nsys: Nsys | None = None) -> list[str]:
    """Return the command line to put before a training's own, so that its windows can be captured later.

    Args:
        session: the session's name, from `new_session_name()`.
        options: names of `OPTIONS` with `at_launch`; others may be given and are left to the captures.
        nsys: which one; by default the one that `find_nsys()` gives.

    Raises:
        NotPossibleHere: no usable nsys.
        UnusableInput: an option that does not exist.
    """
    nsys = find_nsys() if nsys is None else nsys
    asked = {find_option(name).name for name in options}
    trace = ["cuda-sw" if _needs_software_tracing(nsys) else "cuda", "nvtx"]
    if "osrt" in asked:
        trace.append("osrt")
    command = [
        str(nsys.path),
        "launch",
        f"--session-new={session}",
        f"--trace={','.join(trace)}",
        f"--cuda-graph-trace={'graph' if 'cuda-graphs-whole' in asked else 'node'}",
    ]
    if "memory-usage" in asked:
        command.append("--cuda-memory-usage=true")
    if "cuda-backtraces" in asked:
        command.append("--cudabacktrace=all")
    if "python-backtraces" in asked:
        command.append("--python-backtrace=cuda")
    if "python-sampling" in asked:
        command += ["--python-sampling=true", "--python-sampling-frequency=100"]
    return command


def _needs_software_tracing(nsys: Nsys) -> bool:
    """Return True on Blackwell, where newer nsys trace by hardware events, which lost kernels in the middle of
    runs."""
    return any(_BLACKWELL.search(name) for name in procfs.gpu_models()) and nsys.supports("launch", "cuda-sw")


@dataclass(frozen=True)
class Session:
    """One line of `nsys sessions list`."""

    id: str
    state: str
    """nsys's word: "Launched" (idle, can be started), "Collection", "Started", …"""
    name: str

    @property
    def collecting(self) -> bool:
        """Return True if a capture is running in the session."""
        return self.state.startswith(("Collect", "Started", "Delay"))


def list_sessions(nsys: Nsys) -> tuple[Session, ...]:
    """Return all sessions of this user that are alive.

    Raises:
        NotPossibleHere: nsys does not answer.
    """
    lines = nsys.run("sessions", "list").stdout.splitlines()
    found = []
    for line in lines:
        # ID, time, state, number of launches, name; the name is the user's and may have blanks
        fields = line.split(maxsplit=4)
        if len(fields) == 5 and fields[0].isdigit():
            found.append(Session(id=fields[0], state=fields[2], name=fields[4].strip()))
    return tuple(found)


def session_of(pid: int) -> str | None:
    """Return the id of the nsys session that the process was started in; None when it was in none.

    Raises:
        NotPossibleHere: the process is gone, or belongs to another user.
    """
    return procfs.environ(pid).get(SESSION_VARIABLE)


def find_session(pid: int) -> tuple[Nsys, Session]:
    """Return the session of a process, and an nsys that knows it.

    A session answers only to the version that made it; where the nsys of `find_nsys()` does not list it, the one
    that the process was launched with may.

    Raises:
        NotPossibleHere: not started under nsys, the session has ended, or no nsys here knows it.
    """
    environ = procfs.environ(pid)
    session_id = environ.get(SESSION_VARIABLE)
    if session_id is None:
        raise NotPossibleHere(
            f"process {pid} was not started under nsys, which cannot attach; restart it with: "
            "llmtop run --nsys -- COMMAND"
        )
    refusal: NotPossibleHere | None = None
    for nsys in (_try_find(), *_nsys_beside_injection(environ)):
        if isinstance(nsys, NotPossibleHere):
            refusal = nsys
            continue
        known = [session for session in list_sessions(nsys) if session.id == session_id]
        if known:
            return nsys, known[0]
    raise refusal or NotPossibleHere(
        f"the nsys session {session_id} of process {pid} has ended (nsys was killed or shut down); restart it "
        "with: llmtop run --nsys -- COMMAND"
    )


def _try_find() -> Nsys | NotPossibleHere:
    try:
        return find_nsys()
    except NotPossibleHere as refusal:
        return refusal


def _nsys_beside_injection(environ: Mapping[str, str]) -> Iterator[Nsys | NotPossibleHere]:
    """Yield the nsys next to the library that was injected into the process: the very one that launched it."""
    library = environ.get(variable_names.NVTX_INJECTION) or environ.get(variable_names.CUDA_INJECTION)
    beside = Path(library).with_name("nsys") if library else None
    if beside is not None and beside.is_file() and procfs.is_trusted(beside):
        yield _try(beside)
