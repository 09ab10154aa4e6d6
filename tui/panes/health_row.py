"""The row on health and risk: what the training logs about learning, and what is lost if it ends now."""

from __future__ import annotations

from llmtop import format as fmt
from llmtop.model import jobs
from llmtop.model.snapshot import Rank
from llmtop.naming.metric_names import metric_kind
from tui.paint.rows import CellTheme, Row
from tui.state.view import View

_KINDS = {"loss": "", "grad_norm": "gradient norm ", "loss_scale": "loss scale "}
"""Text before the value by kind; a loss stands under its own name."""


def paint(rank: Rank, view: View, width: int, theme: CellTheme) -> Row | None:
    """Return the row; None where nothing of it is known."""
    texts = [[text] for text in _logged_texts(rank)]
    if saved := _saved_texts(rank, view):
        texts.append(saved)
    if not texts:
        return None
    row = Row(width)
    for place, choices in enumerate(texts):
        before = f" {theme.glyphs.dot} " if place else ""
        fitting = [text for text in choices if len(before) + len(text) <= row.free_cells]
        if place and not fitting:
            break
        row.add(before + (fitting or choices)[0], theme.palette.text)
    return row


def is_known(rank: Rank, view: View) -> bool:
    """Return whether there is such a row."""
    return bool(_logged_texts(rank) or _saved_texts(rank, view))


def _logged_texts(rank: Rank) -> list[str]:
    found: dict[str, str] = {}
    for name, value in rank.metrics.items():
        kind = metric_kind(name)
        if kind in _KINDS and kind not in found:
            label = _KINDS[kind] or f"{fmt.printable(name, 20)} "
            found[kind] = f"{label}{'NaN or Inf' if value is None else fmt.figure(value)}"
    return [found[kind] for kind in _KINDS if kind in found]


def _saved_texts(rank: Rank, view: View) -> list[str]:
    """Return the last checkpoint, in full and shorter; empty where none is known."""
    snapshot = view.snapshot
    if snapshot is None:
        return []
    last = jobs.latest_checkpoint(rank, snapshot.ranks)
    if last is None:
        return []
    age = fmt.duration(float(round(max(snapshot.time - last.at, 0.0))))
    steps = "" if (lost := jobs.steps_at_risk(rank, last)) is None else f": {lost:,} steps at risk"
    return [f"last checkpoint {age} ago{steps}", f"saved {age} ago{steps}"]
