"""Which engines can capture a process, why the others cannot, and the one command that would change that.

Asked before a key is pressed, by the dialog, by `llmtop doctor` and by the hub for each rank.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from llmtop import procfs
from llmtop.capture.job import Target
from llmtop.capture.kineto import engine as kineto_engine
from llmtop.capture.nsys import lost_records, pause
from llmtop.capture.py_spy import engine as py_spy
from llmtop.capture.py_spy import ptrace_permission
from llmtop.errors import NotPossibleHere
from llmtop.format import printable
from llmtop.nsys_cli import tool as nsys
from llmtop.nsys_cli.tool import Nsys, Session
from llmtop.wire import Hello

FRESH_SECONDS = 15.0
"""How long an answer to `capturable` holds: what it asks changes when a program is installed or ends."""
REPORTING = ("nsys", "torch.profiler", "kineto", "py-spy")
"""The engines whose captures say where time goes, best first; the memory snapshot is for another question."""


@dataclass(frozen=True)
class Ability:
    """Whether one engine can capture one process now."""

    engine: str
    can: bool
    because: str
    """What it gives when it can; why not when it cannot. One clause, without a full stop."""
    command: str = ""
    """What would change a no."""
    warning: str = ""
    """What to know before it is used, in one clause."""
    pauses: bool = False
    """Whether it pauses the training unasked."""


GIVES = {
    "nsys": "kernels, copies, CUDA calls and NVTX phases of all its processes in one report",
    "torch.profiler": "kernels, operators and phases, recorded by the training itself at step boundaries",
    "kineto": "kernels and operators, recorded by PyTorch without a line of llmtop in the process",
    "py-spy": "Python stacks only, read from outside: where the CPU's time goes",
    "memory": "every allocation of some steps with its stack, for PyTorch's memory viewer",
}


def abilities(target: Target) -> tuple[Ability, ...]:
    """What each engine says to a process, best engine first. Takes up to 0.1 s."""
    checks: dict[str, Callable[[Target], tuple[str, str] | None]] = {
        "nsys": _nsys,
        "torch.profiler": _torch_profiler,
        "kineto": _kineto,
        "py-spy": _py_spy,
        "memory": _in_process,
    }
    found = []
    for engine, check in checks.items():
        no = ("the process has ended", "") if not procfs.is_alive(target.pid) else check(target)
        if no is None and engine in ("torch.profiler", "memory"):
            no = _offered(target, engine)
        about = "" if no is not None else warning(target, engine)
        pauses = no is None and engine == "nsys" and should_pause(target) and can_pause(target)
        found.append(Ability(engine, no is None, *(no or (GIVES[engine], "")), warning=about, pauses=pauses))
    return tuple(found)


def warning(target: Target, engine: str) -> str:
    """What to know before that engine captures that process, in one clause; "" for nothing."""
    found = _session(target.pid) if engine == "nsys" and should_pause(target) else None
    if found is None:
        return ""
    if can_pause(target):
        return nsys.PAUSE_COST
    return (
        f"nsys {found[0].version_text} has crashed trainings on GPUs that did not pause for it, and this one "
        "cannot (it is not attached to this llmtop, or tells no steps): save a checkpoint first"
    )


def should_pause(target: Target) -> bool:
    """Whether its nsys harms it if it runs on while nsys starts and stops."""
    found = _session(target.pid)
    return found is not None and found[0].needs_pause and procfs.uses_gpu(target.pid)


def can_pause(target: Target) -> bool:
    """Whether it can be asked to wait at the end of a step."""
    return pause.possible(target.hello, target.pid)


def best(found: tuple[Ability, ...]) -> str | None:
    """The best engine that can; None if none can."""
    return next((ability.engine for ability in found if ability.can and ability.engine in REPORTING), None)


def best_for(targets: tuple[Target, ...]) -> str:
    """The best engine that can capture all of these.

    Raises:
        NotPossibleHere: there is none; the sentence says why for the first of them.
    """
    each = [abilities(target) for target in targets]
    for engine in REPORTING:
        if each and all(ability.can for found in each for ability in found if ability.engine == engine):
            return engine
    reasons = (
        "; ".join(f"{a.engine}: {a.because}" for a in each[0] if a.engine in REPORTING) if each else "no process"
    )
    raise NotPossibleHere(f"no engine can capture {targets[0].name if targets else 'nothing'} ({reasons})")


def require(target: Target, engine: str) -> None:
    """Refuse early and clearly.

    Raises:
        NotPossibleHere: that engine cannot capture that process.
    """
    for ability in abilities(target):
        if ability.engine == engine and not ability.can:
            change = f"; to change that: {ability.command}" if ability.command else ""
            raise NotPossibleHere(f"{engine} cannot capture {target.name}: {ability.because}{change}")


def option_refusal(name: str) -> tuple[str, str] | None:
    """Why an option of nsys cannot be had on this machine and what would change it; None if it can."""
    root = os.geteuid() == 0
    if name == "gpu-metrics" and not root and profiling_restricted():
        return (
            "the driver gives GPU metrics to root only (RmProfilingAdminOnly is 1)",
            "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia.conf, "
            "then reboot",
        )
    paranoid = perf_paranoid()
    if name == "cpu-sampling" and not root and paranoid is not None and paranoid > 0:
        # what `llmtop run --nsys` started is none of nsys's descendants: only the whole machine covers it
        return (
            f"the kernel gives CPU samples of the whole machine to root only (perf_event_paranoid is {paranoid})",
            "sudo sysctl kernel.perf_event_paranoid=0",
        )
    return None


def profiling_restricted() -> bool | None:
    """Whether the driver keeps its counters to root; None without a driver."""
    try:
        text = Path("/proc/driver/nvidia/params").read_text(errors="replace")
    except OSError:
        return None
    return "RmProfilingAdminOnly: 1" in text


def perf_paranoid() -> int | None:
    """kernel.perf_event_paranoid; None where the kernel has no perf events."""
    try:
        return int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except (OSError, ValueError):
        return None


def restart(target: Target, flags: str = "") -> str:
    """The command that starts it again so that it can be captured."""
    command = target.command or "COMMAND"
    return f"llmtop run {flags}-- {printable(command, 120)}"


def _nsys(target: Target) -> tuple[str, str] | None:
    try:
        session = nsys.session_of(target.pid)
    except NotPossibleHere as refusal:
        return (str(refusal).partition(";")[0], "sudo llmtop")
    if session is None:
        missing = _nsys_missing()
        return missing or ("nsys cannot attach, and it was not started under nsys", restart(target, "--nsys "))
    if not _is_live(target.pid, session):
        return _nsys_missing() or ("its nsys session has ended", restart(target, "--nsys "))
    if lost_records.happened(session):
        return (lost_records.REFUSAL, restart(target, "--nsys "))
    return None


def _nsys_missing() -> tuple[str, str] | None:
    try:
        nsys.find()
    except NotPossibleHere as refusal:
        because, _, command = str(refusal).partition(": ")
        return (because, command)
    return None


def _in_process(target: Target) -> tuple[str, str] | None:
    if target.hello is None or target.socket is None:
        return ("it is not attached to llmtop", restart(target))
    return None


def _torch_profiler(target: Target) -> tuple[str, str] | None:
    return _in_process(target) or _traced_by_nsys(target, "")


def _traced_by_nsys(target: Target, flags: str) -> tuple[str, str] | None:
    try:
        session = nsys.session_of(target.pid)
    except NotPossibleHere:
        return None
    if session is None or not procfs.uses_gpu(target.pid) or not _is_live(target.pid, session):
        return None
    return ("it runs under nsys, and CUPTI serves one tracer at a time", restart(target, flags))


def _offered(target: Target, engine: str) -> tuple[str, str] | None:
    if target.hello is not None and engine not in target.hello.engines:
        if target.hello.torch is None:
            return ("it has not imported torch", "")
        return ("its llmtop does not offer it", restart(target))
    return None


def _kineto(target: Target) -> tuple[str, str] | None:
    try:
        directory = kineto_engine.directory_of(target.pid)
        if directory is None:
            return ("it was not started for Kineto captures", restart(target, "--kineto "))
        asking = {poller.pid for poller in kineto_engine.pollers(directory)}
    except NotPossibleHere as refusal:
        return (str(refusal).partition(";")[0], restart(target, "--kineto "))
    if target.pid not in asking:
        return ("it has not imported torch, or its torch is built without Kineto", "")
    return _traced_by_nsys(target, "--kineto ")


def _py_spy(target: Target) -> tuple[str, str] | None:
    try:
        py_spy.find()
    except NotPossibleHere as refusal:
        because, _, command = str(refusal).partition(": ")
        return (because, command)
    if not _is_python(target):
        return ("it is no Python process", "")
    return ptrace_permission.refusal(target.pid)


def _is_python(target: Target) -> bool:
    if target.hello is not None:
        return True
    try:
        if "python" in Path(os.readlink(f"/proc/{target.pid}/exe")).name:
            return True
        return "libpython" in Path(f"/proc/{target.pid}/maps").read_text(errors="replace")
    except OSError:
        return True  # not ours to see; the check of permissions says so


class _Cache:
    """Answers that are asked for at every refresh and change rarely."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[object, tuple[float, object]] = {}

    def get(self, key: object, find: Callable[[], object]) -> object:
        now = time.monotonic()
        with self._lock:
            self._known = {k: v for k, v in self._known.items() if now - v[0] < FRESH_SECONDS}
            if key in self._known:
                return self._known[key][1]
        value = find()
        with self._lock:
            self._known[key] = (now, value)
        return value


_cache = _Cache()


def _session(pid: int) -> tuple[Nsys, Session] | None:
    """The nsys session of a process if it is alive; asking nsys takes 25 ms."""

    def ask() -> object:
        try:
            return nsys.for_process(pid)
        except NotPossibleHere:
            return None

    return cast("tuple[Nsys, Session] | None", _cache.get(("session", pid, procfs.started_ticks(pid)), ask))


def _is_live(pid: int, session: str) -> bool:
    found = _session(pid)
    return found is not None and found[1].id == session


def capturable(pid: int, hello: Hello | None) -> tuple[str, ...]:
    """Names of the engines that can capture a process now, best first.

    Cheap enough for every refresh of a screen: the answer holds `FRESH_SECONDS` for the same process and the same
    offers; a first call takes up to 0.1 s where nsys must be asked.
    """
    offers = tuple(hello.engines) if hello else ()

    def ask() -> object:
        # a socket is only needed to capture; that there is a hello says that there is one
        target = Target(pid, hello=hello, socket=Path("/") if hello else None)
        return tuple(ability.engine for ability in abilities(target) if ability.can)

    found = _cache.get(("capturable", pid, procfs.started_ticks(pid), offers), ask)
    return found if isinstance(found, tuple) else ()
