"""How alerts are worded and weighed on screen."""

from __future__ import annotations

from rich.style import Style

from llmtop import format as fmt
from llmtop.snapshot import Alert, Rank, Snapshot
from tui import gpu_names
from tui.paint.rows import Look, elapsed

WORDS = {
    "low_power_full_util": "BUSY BUT IDLE",
    "stalled": "STALLED",
    "launch_bound": "LAUNCH-BOUND",
    "input_bound": "INPUT-BOUND",
    "sync_bound": "SYNC-BOUND",
    "h2d_bound": "H2D-BOUND",
    "memory_bound": "MEMORY-BOUND",
    "communication_bound": "COMM-BOUND",
    "straggler": "STRAGGLER",
    "throttled": "THROTTLED",
    "power_capped": "POWER-CAPPED",
    "memory_pressure": "MEMORY FULL",
    "memory_growth": "MEMORY GROWS",
    "gpu_error": "GPU ERROR",
}
_WEIGHT = {"critical": 2, "warning": 1, "info": 0}


def word(alert: Alert) -> str:
    """The one word for it, in capitals, the same at every size."""
    return WORDS.get(alert.id) or fmt.printable(alert.id).replace("_", " ").upper()


def weight(alert: Alert) -> int:
    """2 critical, 1 warning, 0 info; only from 1 on it changes a card's shape."""
    return _WEIGHT.get(alert.severity, 0)


def ordered(alerts: tuple[Alert, ...]) -> list[Alert]:
    """The worst first, then the oldest."""
    return sorted(alerts, key=lambda alert: (-weight(alert), alert.since))


def age(alert: Alert, now: float) -> str:
    """How long it has held, in whole seconds so that its width is steady."""
    return elapsed(now - alert.since)


def by_gpu(snapshot: Snapshot) -> dict[str, Alert]:
    """The worst alert of each GPU: its own, or of a training process that runs on it."""
    gpu_of = {rank.pid: rank.gpu_uuid for rank in snapshot.ranks}
    worst: dict[str, Alert] = {}
    for alert in reversed(ordered(snapshot.alerts)):
        uuid = alert.gpu or (gpu_of.get(alert.pid) if alert.pid is not None else None)
        if uuid is not None:
            worst[uuid] = alert
    return worst


def of_rank(snapshot: Snapshot, rank: Rank) -> Alert | None:
    """The worst alert that names this training process."""
    return next((alert for alert in ordered(snapshot.alerts) if alert.pid == rank.pid), None)


def subject(alert: Alert, snapshot: Snapshot) -> str:
    """Whom it is about: "GPU 3", "rank 1", or "this machine"."""
    parts = [f"GPU {gpu_names.label(gpu, snapshot.gpus)}" for gpu in snapshot.gpus if gpu.uuid == alert.gpu]
    parts += [
        f"pid {rank.pid}" if rank.rank is None else f"rank {rank.rank}"
        for rank in snapshot.ranks
        if rank.pid == alert.pid
    ]
    if not parts and alert.pid is not None:
        parts.append(f"pid {alert.pid}")
    return " ".join(parts) or "this machine"


def badge(alert: Alert, look: Look) -> Style:
    """Its style as a filled badge."""
    palette = look.palette
    return (palette.info, palette.warning_badge, palette.critical_badge)[weight(alert)]


def ink(alert: Alert, look: Look) -> Style:
    """Its style as letters or a frame."""
    palette = look.palette
    return (palette.info, palette.warning, palette.critical)[weight(alert)]


def mark(alert: Alert, look: Look) -> str:
    """Its sign, one cell."""
    glyphs = look.glyphs
    return (glyphs.info, glyphs.warning, glyphs.critical)[weight(alert)]
