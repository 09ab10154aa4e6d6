"""Meaning of a logged value, from the name that scripts and training libraries give it."""

from __future__ import annotations

from llmtop.naming.lazy_pattern import lazy_pattern

TYPE_CHECKING = False  # loading typing would take a training's Python some milliseconds
if TYPE_CHECKING:
    import re
    from typing import Literal

    MetricKind = Literal["loss", "grad_norm", "loss_scale", "lr"]

_NOT_TRAINING = lazy_pattern(r"(^|[^a-z])(eval|val|valid|validation|test|best|avg|ema|smooth|smoothed)([^a-z]|$)")
_KINDS: tuple[tuple[MetricKind, re.Pattern[str]], ...] = (
    ("loss_scale", lazy_pattern(r"(loss|grad|gradient)[ _-]?scaler?$|^scaler?$|^scaler?[/._-]scale$")),
    ("grad_norm", lazy_pattern(r"(grad|grads|gradient)[ _/-]?((global|total)[ _-]?)?(l?2[ _-]?)?norm$|^gnorm$")),
    ("lr", lazy_pattern(r"(^|[^a-z])(lr|learning[ _-]?rate)([^a-z]|$)")),
    ("loss", lazy_pattern(r"(^|[/. ])((train|training|lm|ce|mlm|total|batch)[ _-]?)*loss([ _/-]?step)?$")),
)


def metric_kind(name: str) -> MetricKind | None:
    """Return what a logged value is; None for one that does not show how the training learns.

    Losses of an evaluation and averages are None: they move by other rules than the loss of a step. Parts of a
    loss ("aux_loss", "kl_loss") are None as well, since they may grow while the training is healthy.
    """
    lowered = name.lower()
    if _NOT_TRAINING.search(lowered):
        return None
    return next((kind for kind, pattern in _KINDS if pattern.search(lowered)), None)
