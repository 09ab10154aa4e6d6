"""The message in which a process says who it is."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from llmtop.instrument.identity import launcher_env
from llmtop.protocol import wire
from llmtop.version import __version__

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State

_CAPTURES = "llmtop.instrument.control.self_capture"
_PAUSING = "llmtop.instrument.control.pause"
_OP_RANGES = "llmtop.instrument.control.op_ranges"
_STACKS = "llmtop.instrument.serve.stacks.own_stacks"


def captures() -> ModuleType:
    """The module that captures inside this process; imported when a monitor first wants to know of it.

    Raises:
        Exception: whatever its import raises.
    """
    return importlib.import_module(_CAPTURES)


def pausing() -> ModuleType:
    """The module that pauses this process; imported when a monitor first asks for it.

    Raises:
        Exception: whatever its import raises.
    """
    return importlib.import_module(_PAUSING)


def op_ranges() -> ModuleType:
    """The module that marks operators for nsys; imported when a monitor first wants to know of it.

    Raises:
        Exception: whatever its import raises.
    """
    return importlib.import_module(_OP_RANGES)


def stacks() -> ModuleType:
    """The module that looks at this process's stacks; imported when a monitor first asks for them.

    Raises:
        ImportError: it is not there.
    """
    return importlib.import_module(_STACKS)


def hello(recorder: State) -> wire.Hello:
    """All that this process says about itself now."""
    facts = recorder.facts
    return wire.Hello(
        version=__version__,
        pid=os.getpid(),
        host=launcher_env.host(),
        command=launcher_env.command(),
        rank=facts.rank,
        local_rank=facts.local_rank,
        world_size=facts.world_size,
        launch=None if facts.launch is None else wire.Launch(**facts.launch._asdict()),
        gpu_uuid=facts.gpu_uuid,
        kind=facts.kind,
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
        engines=_engines(),
        pauses=recorder.tracks is None,
        arrivals=recorder.arrivals is not None,
        stacks=True,
        op_ranges=_marks_operators(),
        note=_note(recorder.blind, recorder.left_out),
        store=None if facts.store is None else wire.JobStore(**facts.store._asdict()),
    )


def _torch_version() -> str | None:
    return str(getattr(sys.modules.get("torch"), "__version__", "")) or None


def _engines() -> list[str]:
    try:
        return list(captures().engines())
    except Exception:  # noqa: BLE001 - absent or broken: no engine is offered
        return []


def _marks_operators() -> bool:
    try:
        return bool(op_ranges().offered())
    except Exception:  # noqa: BLE001 - absent or broken: as for engines
        return False


def _note(blind: dict[str, str], left_out: dict[str, int]) -> str | None:
    # Copies: the training thread may add a reason meanwhile.
    said = [f"llmtop cannot see {what}: {why}" for what, why in blind.copy().items()]
    if left_out:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in left_out.copy().items())
        said.append(f"not in the numbers: {reasons}")
    return "; ".join(said) or None
