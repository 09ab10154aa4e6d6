"""jax.profiler over some steps of this process, in the way of none that the script starts itself.

XLA has one profiler a process, and `jax.profiler.start_trace` raises in the script where a trace runs already. So
llmtop's session is not in JAX's own state. Taking JAX's lock on that state, which start_trace and stop_trace do
first, ends llmtop's session before: the script's trace begins as if there had been none.

JAX runs ahead of its devices. What was dispatched within the window has run only once the arrays that live then
are there, so the end waits for them (as `block_until_ready` does), and the beginning as well: else the file would
be of steps that were dispatched before it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from llmtop.instrument.control.recording import Recording
from llmtop.instrument.guest import registry
from llmtop.naming import file_names, profiler_marks

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder import Recorder

PHASE = "llmtop_phase"
"""The argument by which a phase is known in the file: JAX's own annotations have names of the same kind."""
DEVICES = "llmtop_devices"
"""Its argument: the devices' numbers and kinds, which XLA leaves out of the file."""
DEVICE_SECONDS = 20.0
"""How long a boundary waits for the devices: a host is seldom more than some steps ahead."""
_POLL_SECONDS = 0.0002


class _GivesWay:
    """JAX's lock on its trace, taken as ever; before that ours is ended."""

    def __init__(self, lock: Any, give_way: Any) -> None:
        self.lock = lock
        self._give_way = give_way

    def __enter__(self) -> Any:
        self._give_way()
        return self.lock.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return self.lock.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lock, name)


class JaxProfiler(Recording):
    """A session of XLA's profiler, with llmtop's steps and phases as annotations."""

    engine = "jax.profiler"
    library = "jax"
    least_steps = 2
    # Not measured with JAX: as torch.profiler, whose export is of the same kind.
    peak_factor = 12.0

    @classmethod
    def is_available(cls, module: Any) -> bool:
        return _state() is not None

    @classmethod
    def refusal(cls) -> str:
        if getattr(_state(), "profile_session", None) is not None:
            return "the script records with jax.profiler itself, and two cannot run: use its trace, or nsys"
        return ""

    def __init__(self, recorder: Recorder, steps: int, options: dict[str, bool]) -> None:
        import jax

        self._jax: Any = jax
        self._recorder = recorder
        self._stacks = options.get("stacks", False)
        self._session: Any = None
        self._stopped: Any = None
        """The session, once it is over: it alone can write what it recorded."""
        self._space: bytes | None = None
        self._exported: str | None = None
        """A folder that holds what this JAX writes when it stops."""
        self._mark: Any = None
        self._displaced = False
        self._pid = os.getpid()
        self._ending = threading.RLock()
        """Held by the thread that ends the session: the script's, or one that begins a trace. A signal's handler
        may do that in the midst of the former."""

    def start(self) -> None:
        state = _state()
        if state is None:
            raise RuntimeError("this JAX keeps its trace where llmtop does not know it")
        if state.profile_session is not None:
            raise RuntimeError("the script has begun a trace of jax.profiler itself")
        if not _devices_started():
            # To begin would start them, and jax.distributed.initialize() must come before.
            raise RuntimeError("JAX has not started its devices yet: try again once it computes")
        _await_devices(self._jax)
        self._jax.profiler.start_trace(os.devnull, **self._options())
        with self._ending:
            self._session = state.profile_session
            state.reset()
            state.lock = _GivesWay(state.lock, self._give_way)
        self._recorder.annotate_with(self._phase)
        self._begin_mark()

    def step(self) -> None:
        self._end_mark()
        self._check()
        self._begin_mark()

    def stop(self) -> None:
        self._end_mark()
        self._recorder.annotate_with(None)
        self._check()
        if self._session is None:
            return
        if _await_devices(self._jax):
            with self._jax.profiler.TraceAnnotation(profiler_marks.DEVICES_DONE, **{DEVICES: _devices(self._jax)}):
                pass
        with self._ending:
            _put_back(self)
            session, self._session = self._session, None
            if session is None:
                return
            if hasattr(session, "stop") and hasattr(session, "export"):
                self._space, self._stopped = session.stop(), session
            else:
                self._exported = tempfile.mkdtemp(prefix="llmtop-jax-")
                session.stop_and_export(self._exported)

    def abandon(self) -> None:
        """Stop without the wait for the devices, which may never end."""
        self._recorder.annotate_with(None)
        self._end_mark()
        self._end_session()

    def write(self, path: str) -> None:
        folder = self._exported or f"{path}.d"
        try:
            if self._space is not None:
                self._stopped.export(self._space, folder)
                self._space = self._stopped = None
            found = sorted(Path(folder).glob(f"plugins/profile/*/*{file_names.CHROME_TRACE_OF_XLA}"))
            if not found:
                raise RuntimeError("JAX wrote no trace")
            space = found[-1].with_name(
                found[-1].name.removesuffix(file_names.CHROME_TRACE_OF_XLA) + file_names.XSPACE
            )
            if space.exists():
                beside = (
                    path.removesuffix(file_names.PARTIAL).removesuffix(file_names.CHROME_TRACE_OF_XLA)
                    + file_names.XSPACE
                )
                shutil.move(space, beside)
            shutil.move(found[-1], path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _options(self) -> dict[str, Any]:
        """Return the arguments of start_trace beside the folder, for this JAX: Python's calls are recorded on
        request."""
        kind = getattr(self._jax.profiler, "ProfileOptions", None)
        if kind is None:
            return {}
        options = kind()
        options.python_tracer_level = int(self._stacks)
        with suppress(AttributeError):
            # Else a session that cannot record shows that only when it stops.
            options.raise_error_on_start_failure = True
        return {"profiler_options": options}

    def _phase(self, name: str) -> Any:
        return self._jax.profiler.TraceAnnotation(name, **{PHASE: 1})

    def _begin_mark(self) -> None:
        """Mark the step that begins, where the script does not mark it by llmtop.integrations.jax."""
        are_marked = registry.jax_steps_are_marked
        if are_marked is None or not are_marked():
            number = self._recorder.next_index
            self._mark = self._jax.profiler.StepTraceAnnotation(profiler_marks.STEP, step_num=number)
            self._mark.__enter__()

    def _end_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _check(self) -> None:
        if self._displaced:
            raise RuntimeError("the script began a trace of jax.profiler itself, and this one made way for it")

    def _give_way(self) -> None:
        """Release JAX's lock, in whatever thread of the script requests it."""
        if self._session is not None and os.getpid() == self._pid:
            self._displaced = True
        self._end_session()

    def _end_session(self) -> None:
        if os.getpid() != self._pid:  # a forked child has nothing to end
            _put_back(self)
            return
        with self._ending:
            _put_back(self)
            session, self._session = self._session, None
            if session is not None:
                with suppress(Exception):  # nothing of it is wanted, and what asks for the lock shall go on
                    session.stop()


def _state() -> Any:
    """JAX's books on its trace; None where this JAX has none that are known here."""
    state = getattr(sys.modules.get("jax._src.profiler"), "_profile_state", None)
    known = all(hasattr(state, name) for name in ("profile_session", "lock", "reset"))
    return state if known else None


def _devices_started() -> bool:
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    return started is None or bool(started())


def _devices(jax: Any) -> str:
    """Number and kind of each device of this process: "0=NVIDIA H100 80GB HBM3|1=…"; "" on the CPU."""
    try:
        mine = [one for one in jax.local_devices() if one.platform != "cpu"]
        return "|".join(f"{one.local_hardware_id}={one.device_kind}" for one in mine)
    except Exception:  # noqa: BLE001 - a plugin's devices may know neither: the capture goes without
        return ""


def _put_back(recording: JaxProfiler) -> None:
    """Restore JAX's lock, if llmtop's is in its place."""
    state = _state()
    lock = getattr(state, "lock", None)
    if isinstance(lock, _GivesWay) and lock._give_way == recording._give_way:
        state.lock = lock.lock


def _await_devices(jax: Any) -> bool:
    """Wait until all that was dispatched is done, `DEVICE_SECONDS` at most; whether it is."""
    waiting = [array for array in jax.live_arrays() if not _is_ready(array)]
    until = time.monotonic() + DEVICE_SECONDS
    while waiting and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        waiting = [array for array in waiting if not _is_ready(array)]
    return not waiting


def _is_ready(array: Any) -> bool:
    try:
        return bool(array.is_ready())
    except Exception:  # noqa: BLE001 - it was given away (donated) meanwhile: there is nothing to wait for
        return True
