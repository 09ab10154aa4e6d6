"""NVTX ranges around PyTorch's operators, with sequence numbers and sizes of inputs, for as long as nsys records.

PyTorch makes them itself (torch.autograd.profiler.emit_nvtx) for the calling thread, and for the backward passes
that this thread starts. So the training thread enables them after a step and disables them after a later one: on
request, when the monitor has gone, or when the time is over. No synchronisation, no hook, nothing of the script's
is touched; what a script annotates itself is left out, or it would be taken for phases of its steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from llmtop.instrument.control import recordings
from llmtop.instrument.guest import registry
from llmtop.instrument.guest.interrupts import raised_by_handler
from llmtop.protocol import wire

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder import Recorder
    from llmtop.instrument.record.state import State

LONGEST_SECONDS = 700.0
"""Whatever a monitor asks for: longer than the longest window by the clock."""
COMPILED = (
    "its model is compiled, or replays CUDA graphs: what runs in there is the operators' around it, or nobody's"
)

_BEGINS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
"""Functions of torch.autograd.profiler by which all its profilers begin."""

Send = Callable[[wire.OpRangesState], None]


class _RangeRequester(Protocol):
    @property
    def is_closed(self) -> bool: ...


def is_available() -> bool:
    """Return True if this process has loaded a PyTorch that can mark operators; imports nothing."""
    torch: Any = sys.modules.get("torch")
    found = getattr(getattr(torch, "_C", None), "_autograd", None)
    return hasattr(found, "_enable_profiler") and hasattr(found, "_disable_profiler")


def handle(request: wire.OpRanges, recorder: Recorder, send: Send, asker: _RangeRequester) -> None:
    """Handle a monitor's request; called in the server thread, returns at once.

    Args:
        request: check for support, begin, or end.
        recorder: whose steps end.
        send: reports states to the monitors; called from the training thread too.
        asker: connection of the monitor: when it closes, the ranges end.
    """
    known = recorder.op_ranges
    running = known if isinstance(known, OperatorRanges) and not known.ended else None
    if request.want == "off":
        if running is not None and running.request.id == request.id:
            running.end_soon()
        return
    refusal, note = "", ""
    if running is not None:
        refusal = "another llmtop has its operators marked"
    elif not is_available():
        refusal = "it has loaded no PyTorch that can mark operators"
    elif recorder.pause.request is None and recorder.boundary_hook is not None:
        refusal = "a capture runs inside it"
    elif request.want == "ready":
        refusal = _refusal()
        note = COMPILED if not refusal and _hides_operators() else ""
    if refusal or request.want != "on":
        send(wire.OpRangesState(id=request.id, state="failed" if refusal else "ready", detail=refusal or note))
        return
    recorder.op_ranges = OperatorRanges(request, recorder, send, asker)


def end_here(recorder: State) -> None:
    """End the marking in the marked thread: at the end of the process, or of llmtop's own work in it.

    In a forked child as well: it has the thread, and the ranges with it, but no monitor that would end them.
    """
    known, recorder.op_ranges = recorder.op_ranges, None
    if isinstance(known, OperatorRanges):
        known.drop()


class OperatorRanges:
    """One stretch of marked operators, from the request to the step after which it ended."""

    def __init__(self, request: wire.OpRanges, recorder: Recorder, send: Send, asker: _RangeRequester) -> None:
        """Prepare; the training thread marks its operators from the next step boundary on.

        Args:
            request: `seconds` of it is clipped to `LONGEST_SECONDS`, by the monotonic clock from now.
            recorder: whose step boundaries begin and end the ranges.
            send: reports each state; called from the server thread and the training thread.
            asker: the monitor; the ranges end when its connection is closed.
        """
        self.request = request
        self.ended = False
        self._recorder = recorder
        self._send = send
        self._asker = asker
        self._thread = 0
        """Thread whose operators are marked; 0 for none yet."""
        self._before: dict[str, tuple[Any, Any]] = {}
        """Start functions of PyTorch's profilers that a wrapper of llmtop replaces, each with that wrapper."""
        self._wanted = True
        self._until = time.monotonic() + max(0.0, min(request.seconds, LONGEST_SECONDS))

    def end_soon(self) -> None:
        """End after the present step; from the server thread."""
        self._wanted = False

    def __call__(self, index: int) -> None:
        """Run in the training thread after a step has ended; `index` is the script's own count of it."""
        if self.ended:
            self._end("failed", "the script has started a profiler of PyTorch's own")
            return
        over = not self._wanted or self._asker.is_closed or time.monotonic() > self._until
        if self._thread and self._thread != get_ident():
            if self._thread in sys._current_frames():
                return  # only the thread that began it can end it
            self._thread = 0  # it has ended, and the ranges with it
            over = True
        try:
            if over:
                self._stop()
                self._end("off")
            elif not self._thread:
                _check_free()
                self._thread = get_ident()
                self._make_way_for_others()
                _enable()
                self._send(wire.OpRangesState(id=self.request.id, state="on", detail=f"after step {index}"))
        except Exception as error:  # whatever PyTorch raises, the training goes on
            self.drop()
            self._end("failed", _first_line(error))
            if raised_by_handler(error):
                raise

    def drop(self) -> None:
        """End without a word: in a forked child, at the end, after an error, or because a profiler begins."""
        self.ended = True
        try:
            self._stop()
        except Exception as error:
            if raised_by_handler(error):
                raise

    def _stop(self) -> None:
        """Mark no more, where this is the thread that does; a second call does nothing."""
        began = self._thread
        self._restore_profilers()
        if began == get_ident() and sys.modules["torch"].autograd._profiler_enabled():
            _disable()
        self._thread = 0

    def _make_way_for_others(self) -> None:
        """End the marking before a profiler that the script starts: two in a thread are an error of the script."""
        profiler: Any = sys.modules["torch"].autograd.profiler

        def first(begin: Callable[..., Any]) -> Callable[..., Any]:
            def begins(*args: Any, **kwargs: Any) -> Any:
                if get_ident() == self._thread:
                    self.drop()
                return begin(*args, **kwargs)

            return begins

        for name in _BEGINS:
            begin = getattr(profiler, name, None)
            if begin is not None:
                self._before[name] = begin, (ours := first(begin))
                setattr(profiler, name, ours)

    def _restore_profilers(self) -> None:
        profiler: Any = sys.modules["torch"].autograd.profiler
        while self._before:
            name, (begin, ours) = self._before.popitem()
            if getattr(profiler, name, None) is ours:  # what the script has put there meanwhile stays
                setattr(profiler, name, begin)

    def _end(self, state: str, detail: str = "") -> None:
        self.ended = True
        if self._recorder.op_ranges is self:
            self._recorder.op_ranges = None
        self._send(wire.OpRangesState(id=self.request.id, state=state, detail=detail))


def _refusal() -> str:
    """Return why operators cannot be marked now. In the server thread, where a try marks none of the
    training's."""
    if recordings.scripts_profiler():
        return "the script has a profiler of PyTorch's own, and two cannot run"
    try:
        _enable()
        _disable()
    except Exception as error:  # noqa: BLE001 - a PyTorch without CUDA, or of another version
        return f"its PyTorch cannot mark operators ({_first_line(error)})"
    return ""


def _enable() -> None:
    """Enable it in this thread, and in backward passes that it starts.

    Raises:
        RuntimeError: a profiler is on in this thread.
    """
    _check_free()
    torch: Any = sys.modules["torch"]
    kinds = torch._C._profiler
    experimental = kinds._ExperimentalConfig()
    configured = kinds.ProfilerConfig(kinds.ProfilerState.NVTX, True, False, False, False, False, experimental)
    # Without those of the script: one that is open across the end of a step could not be closed.
    scopes = {kinds.RecordScope.FUNCTION, kinds.RecordScope.BACKWARD_FUNCTION}
    torch._C._autograd._enable_profiler(configured, set(), scopes)


def _check_free() -> None:
    if sys.modules["torch"].autograd._profiler_enabled():
        raise RuntimeError("a profiler of PyTorch's is on")


def _disable() -> None:
    sys.modules["torch"]._C._autograd._disable_profiler()


def _hides_operators() -> bool:
    """Return True if torch.compile has compiled something, or a CUDA graph has been made."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("stats", {}).get("unique_graphs")) or recordings.has_cuda_graph()


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:200]


registry.after_failure(end_here)
registry.at_fork("op_ranges", end_here)
registry.at_end("op_ranges", end_here)
