"""How alerts are worded and weighed on screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style

from llmtop import format as fmt
from llmtop.model import bottlenecks, role_groups
from llmtop.model.severity import severity_rank
from llmtop.model.snapshot import Alert, Rank, Snapshot
from tui.paint import gpu_names
from tui.paint.rows import CellTheme, elapsed
from tui.paint.text_width import cell_len

if TYPE_CHECKING:
    from llmtop.document.model import Finding


def alert_word(alert: Alert) -> str:
    """Return the one word for an alert, in capitals, the same at every size."""
    known = bottlenecks.find_bottleneck(alert.id)
    return known.badge if known else fmt.printable(alert.id).replace("_", " ").upper()


def badge_text(alert: Alert, others: int, room: int, theme: CellTheme) -> str:
    """Return severity and word of an alert for a badge: "■ CRITICAL LOW POWER +1", or less of it.

    Args:
        alert: what the badge is of.
        others: how many alerts there are besides.
        room: cells; the word of the alert alone may take more.
        theme: for the sign of the severity.
    """
    word, sign, more = alert_word(alert), mark(alert, theme), f" +{others}" if others > 0 else ""
    full, short = alert.severity.upper(), _SHORT_SEVERITIES[alert_rank(alert)]
    forms = (
        f" {sign} {full} {word}{more} ",
        f"{sign} {full} {word}{more}",
        f"{sign} {short} {word}{more}",
        f"{short} {word}{more}",
        f"{short} {word}",
    )
    return next((text for text in forms if cell_len(text) <= room), word)


_SHORT_SEVERITIES = ("INFO", "WARN", "CRIT")
"""Short name of each severity by its rank."""


def sentence(alert: Alert) -> str:
    """Return the alert as a whole sentence with a blank after it; empty for an alert of a newer version."""
    known = bottlenecks.find_bottleneck(alert.id)
    return f"{known.heading}. " if known else ""


def title(alert: Alert) -> str:
    """Return the title of an alert; empty for an alert of a newer version."""
    known = bottlenecks.find_bottleneck(alert.id)
    return f": {known.title}" if known else ""


def alert_rank(alert: Alert) -> int:
    """2 critical, 1 warning, 0 info; only from 1 on it changes a card's shape."""
    return severity_rank(alert.severity)


def ordered(alerts: tuple[Alert, ...]) -> list[Alert]:
    """Return the alerts, the worst first, then what a step waits for before that steps are slower, then the
    oldest."""
    return sorted(alerts, key=lambda alert: (-alert_rank(alert), alert.id == "slower", alert.since))


def age(alert: Alert, now: float) -> str:
    """Return how long an alert has held, in whole seconds so that its width is steady."""
    return age_of(now - alert.since)


def age_of(seconds: float) -> str:
    """Return the time since an event in whole seconds: "8 s", "3m 12s".

    Args:
        seconds: negative ones, from a clock that was set back, count as 0; NaN is a dash.
    """
    return elapsed(seconds)


def duration_text(alert: Alert, until: float) -> str:
    """Return how long an alert held that has gone."""
    return elapsed(until - alert.since)


def subjects(alert: Alert, snapshot: Snapshot) -> tuple[str, str, str, str]:
    """Return the subject of an alert in ever fewer words: first without its roles, then without its GPU; the
    last is ""."""
    full = subject(alert, snapshot, with_roles=False)
    gpu, _, rest = full.partition(" rank ")
    short = f"rank {rest}" if rest and gpu else full.partition(" pid ")[0]
    return subject(alert, snapshot), full, short, ""


def alerts_by_gpu(snapshot: Snapshot) -> dict[str, Alert]:
    """Return the worst alert of each GPU: its own, or of a training process that runs on it."""
    gpu_of = {rank.pid: rank.gpu_uuid for rank in snapshot.ranks}
    worst: dict[str, Alert] = {}
    for alert in reversed(ordered(snapshot.alerts)):
        uuid = alert.gpu or (gpu_of.get(alert.pid) if alert.pid is not None else None)
        if uuid is not None:
            worst[uuid] = alert
    return worst


def alert_of_rank(snapshot: Snapshot, rank: Rank) -> Alert | None:
    """Return the worst alert that names this training process."""
    return next((alert for alert in ordered(snapshot.alerts) if alert.pid == rank.pid), None)


def subject(alert: Alert, snapshot: Snapshot, *, with_roles: bool = True) -> str:
    """Return the subject of an alert: "GPU 3", "rank 1 (pp 0, tp 1)", or "this machine".

    Args:
        alert: its rank has its job as well if there are several.
        snapshot: of the same instant.
        with_roles: whether a rank has its roles.
    """
    parts = [f"GPU {gpu_names.label(gpu, snapshot.gpus)}" for gpu in snapshot.gpus if gpu.uuid == alert.gpu]
    parts += [
        (f"pid {rank.pid}" if rank.rank is None else f"rank {rank.rank}{_job_suffix(rank, snapshot)}")
        + (f" ({roles})" if with_roles and (roles := role_groups.roles_text(rank.roles)) else "")
        for rank in snapshot.ranks
        if rank.pid == alert.pid
    ]
    if not parts and alert.pid is not None:
        parts.append(f"pid {alert.pid}")
    return " ".join(parts) or ("the job" if alert.id == "hung_collective" else "this machine")


def _job_suffix(rank: Rank, snapshot: Snapshot) -> str:
    """Return which of several jobs a rank is of: each of them has a rank 0."""
    return f" of {fmt.printable(rank.job)}" if rank.job and len(snapshot.jobs) > 1 else ""


def badge(alert: Alert, theme: CellTheme) -> Style:
    """Return the style of an alert as a filled badge."""
    palette = theme.palette
    return (palette.info, palette.warning_badge, palette.critical_badge)[alert_rank(alert)]


def ink(item: Alert | Finding, theme: CellTheme) -> Style:
    """Return the style of an alert or a finding as letters or a frame."""
    palette = theme.palette
    return (palette.info, palette.warning, palette.critical)[severity_rank(item.severity)]


def mark(item: Alert | Finding, theme: CellTheme) -> str:
    """Return the sign of a severity, one cell wide."""
    glyphs = theme.glyphs
    return (glyphs.info, glyphs.warning, glyphs.critical)[severity_rank(item.severity)]
