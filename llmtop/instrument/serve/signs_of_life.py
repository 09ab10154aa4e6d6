"""Signs of life of a training that finishes no step for a while: a long validation, a step by parts.

The training thread does nothing for it: each phase keeps the stamp of its last begin anyway. The server thread
reads these every `LIFE_S` while a monitor is subscribed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llmtop.protocol import wire

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State
    from llmtop.instrument.serve.connection import Monitor
    from llmtop.instrument.steps.phase_tree import PhaseNode

LIFE_S = 5.0
"""Shortest interval between messages. A training counts as stalled after a minute."""


def pending_message(monitor: Monitor, recorder: State) -> wire.Alive | None:
    """Return the message to send now: work was seen since the last message, if the last step is long over."""
    now = time.perf_counter_ns()
    if now / 1e9 - monitor.lively_at < LIFE_S:
        return None
    monitor.lively_at = now / 1e9
    stepped = recorder.ring.last_end()
    if now - stepped < LIFE_S * 1e9:
        return None
    worked = max(recorder.worked, _last_begin(recorder.root))
    if worked <= max(stepped, monitor.lively_ns):
        return None
    monitor.lively_ns = worked
    return wire.Alive(ago_ns=max(0, now - worked))


def _last_begin(node: PhaseNode) -> int:
    """Return when a phase below `node` last began, as perf_counter ns; 0 for never."""
    # Copied: the training thread may enter one for the first time meanwhile.
    return max((max(one.begun, _last_begin(one)) for one in list(node.children.values())), default=0)
