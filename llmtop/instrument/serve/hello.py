"""The message by which a process identifies itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from llmtop.instrument.identity import launcher_env
from llmtop.protocol import wire
from llmtop.version import __version__

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State


class CaptureControl(Protocol):
    """Captures that this process takes of itself (`control.self_capture`)."""

    def engines(self) -> list[str]:
        """Return the engines that can be used now."""

    def handle(
        self,
        request: wire.CaptureRequest | wire.CaptureCancel,
        recorder: Any,
        send: Callable[[wire.CaptureState], None],
        asker: Any = None,
    ) -> None:
        """Begin or cancel a capture; called in the server thread, returns at once.

        Args:
            request: what to record and where to write it, or the id of a capture to cancel.
            recorder: whose steps are counted.
            send: reports each state to the monitors, from any thread of the training.
            asker: connection of the monitor; None: no one can disconnect.
        """


class PauseControl(Protocol):
    """Pauses of the training (`control.pause`)."""

    def handle(
        self,
        request: wire.Pause | wire.Resume,
        recorder: Any,
        send: Callable[[wire.PauseState], None],
        asker: Any,
    ) -> None:
        """Pause the training at a step boundary, or resume it; called in the server thread, returns at once.

        Args:
            request: which step to pause after and for how long at most, or the id of a pause to end.
            recorder: whose step boundary is the place.
            send: reports each state to the monitors, from any thread of the training.
            asker: connection of the monitor; the training resumes when it closes.
        """


class OperatorControl(Protocol):
    """NVTX ranges around PyTorch's operators (`control.op_ranges`)."""

    def is_available(self) -> bool:
        """Return True if this process can emit them."""

    def handle(
        self, request: wire.OpRanges, recorder: Any, send: Callable[[wire.OpRangesState], None], asker: Any
    ) -> None:
        """Check, begin or end the ranges; called in the server thread, returns at once.

        Args:
            request: whether to check, begin or end, and for how many seconds at most.
            recorder: at whose step boundaries the ranges begin and end.
            send: reports each state to the monitors, from any thread of the training.
            asker: connection of the monitor; the ranges end when it closes.
        """


class Controls:
    """Controls that a monitor has here. Each callback imports its module at the first call.

    A callback raises whatever that import raises.
    """

    __slots__ = ("captures", "operators", "pauses")

    def __init__(
        self,
        captures: Callable[[], CaptureControl],
        pauses: Callable[[], PauseControl],
        operators: Callable[[], OperatorControl],
    ) -> None:
        self.captures = captures
        self.pauses = pauses
        self.operators = operators


def hello(recorder: State, controls: Controls) -> wire.Hello:
    """Return the current description of this process."""
    facts = recorder.facts
    return wire.Hello(
        version=__version__,
        pid=os.getpid(),
        host=launcher_env.host(),
        command=launcher_env.command(),
        rank=facts.rank,
        local_rank=facts.local_rank,
        world_size=facts.world_size,
        launch=wire.Launch() if facts.launch is None else wire.Launch(**facts.launch._asdict()),
        roles=facts.roles,
        gpu_uuid=facts.gpu_uuid,
        kind=facts.kind,
        kind_since=facts.kind_since,
        total_steps=facts.steps_in_all(),
        warmup_steps=facts.warmup(),
        flops_per_token=facts.flops_per_token or facts.seen_flops_per_token,
        flops_estimated=facts.flops_per_token is None and facts.seen_flops_per_token is not None,
        flops_unknown=facts.flops_unknown if facts.flops_per_token is None else None,
        dtype=facts.dtype or facts.seen_dtype,
        accumulation_steps=facts.accumulation_steps,
        torch=_torch_version(),
        auto=facts.auto,
        inference=facts.inference,
        started_at=facts.started_at,
        engines=_engines(controls),
        pauses=recorder.tracks is None,
        arrivals=recorder.arrivals is not None,
        stacks=True,
        op_ranges=_marks_operators(controls),
        note=_note(recorder.blind, recorder.left_out),
        store=None if facts.store is None else wire.JobStore(**facts.store._asdict()),
    )


def _torch_version() -> str | None:
    return str(getattr(sys.modules.get("torch"), "__version__", "")) or None


def _engines(controls: Controls) -> list[str]:
    try:
        return list(controls.captures().engines())
    except Exception:  # noqa: BLE001 - absent or broken: no engine is offered
        return []


def _marks_operators(controls: Controls) -> bool:
    try:
        return bool(controls.operators().is_available())
    except Exception:  # noqa: BLE001 - absent or broken: as for engines
        return False


def _note(blind: dict[str, str], left_out: dict[str, int]) -> str | None:
    # Copies: the training thread may add a reason meanwhile.
    sentences = [f"llmtop cannot see {what}: {why}" for what, why in blind.copy().items()]
    if left_out:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in left_out.copy().items())
        sentences.append(f"not in the numbers: {reasons}")
    return "; ".join(sentences) or None
