"""Effect on a capture of the nsys session that a process was started in. Asking nsys takes 25 ms."""

from __future__ import annotations

from llmtop.capture.base.engine import Refusal
from llmtop.capture.base.job import Target
from llmtop.capture.base.ttl_cache import TtlCache
from llmtop.capture.nsys import pause
from llmtop.errors import NotPossibleHere
from llmtop.nsys_cli import tool as nsys
from llmtop.nsys_cli.tool import Nsys, Session
from llmtop.system import procfs

_cache: TtlCache[tuple[Nsys, Session] | None] = TtlCache()


def live_session(pid: int) -> tuple[Nsys, Session] | None:
    """Return the nsys session of a process, and an nsys that knows it; None if it has none, or that has ended."""

    def find() -> tuple[Nsys, Session] | None:
        try:
            return nsys.find_session(pid)
        except NotPossibleHere:
            return None

    return _cache.get((pid, procfs.started_ticks(pid)), find)


def is_live(pid: int, session: str) -> bool:
    """Return True if that session of the process can still be asked."""
    found = live_session(pid)
    return found is not None and found[1].id == session


def should_pause(target: Target) -> bool:
    """Return True if its nsys harms it if it runs on while nsys starts and stops."""
    found = live_session(target.pid)
    return found is not None and found[0].needs_pause and procfs.uses_gpu(target.pid)


def can_pause(target: Target) -> bool:
    """Return True if it can be asked to wait at the end of a step."""
    return pause.can_pause(target.hello, target.pid)


def tracer_refusal(target: Target, restart: str) -> Refusal | None:
    """Return why nothing else that needs CUPTI can record a process; None if nsys does not trace it.

    Args:
        target: the process.
        restart: the command that starts it again without nsys.
    """
    try:
        session = nsys.session_of(target.pid)
    except NotPossibleHere:
        return None
    if session is None or not procfs.uses_gpu(target.pid) or not is_live(target.pid, session):
        return None
    return Refusal(
        "the process runs under nsys, and only one CUDA profiler can trace it at a time: capture with nsys",
        restart,
    )
