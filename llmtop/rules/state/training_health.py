"""State of one process's logged values, from which its learning is judged."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llmtop.model.snapshot import Rank
from llmtop.naming.metric_names import metric_kind
from llmtop.rules.state.flat_loss import FlatLoss
from llmtop.rules.state.metric_curve import CurveLimits, Excursion, MetricCurve, RiseLimits

if TYPE_CHECKING:
    from llmtop.naming.metric_names import MetricKind

LOSS_LIMITS: Final = CurveLimits(
    pair=RiseLimits(sigmas=5.0, factor=1.05, times=2.0, probability=1e-5),
    single=RiseLimits(sigmas=7.0, factor=1.1, times=2.5, probability=1e-7),
    is_linear=True,
)
"""One false report in 100,000 steps is allowed. One value alone has a hundredth of that, since the extrapolation
from some hundred values is inexact; of two values each may have all of it. The largest of all limits counts."""
NORM_LIMITS: Final = CurveLimits(
    pair=RiseLimits(sigmas=5.0, factor=2.0, times=2.0),
    single=RiseLimits(sigmas=7.0, factor=3.0, times=2.5),
    is_linear=False,
)
FIRST_STEPS: Final = 100
"""Steps after the start, after the end of a warm-up and after a restart of the learning rate that are not
judged."""
LR_RISE: Final = 1.0005
"""A learning rate that is so many times what it was before rises; less is rounding."""
OVERFLOWS: Final = 3
"""Number of the last ten gradient norms. More that are not finite exceed the loss scale's own search for its
limit (GradScaler tries twice the scale every 2,000 steps and skips the step that overflows)."""
SCALE_FALL: Final = 16.0
"""Four halvings (torch's backoff_factor 0.5)."""
SCALE_STEPS: Final = 200
"""A tenth of growth_interval (2,000), in which a scale that fits its gradients is halved once."""
LEAST_SCALE: Final = 1.0


@dataclass
class HealthEvent:
    """Something that happened to a logged value."""

    metric: str
    step: int
    value: float | None
    """None: not finite."""
    seen_at: float
    """Snapshot time."""
    usual: tuple[float, float] | None = None
    excursion: Excursion | None = None
    is_open: bool = False
    """True if it still is so, as far as there is no excursion that shows it."""

    @property
    def lasts(self) -> bool:
        """Return True if the value has not come back."""
        return self.is_open if self.excursion is None else self.excursion.is_open


class _LearningRate:
    """Watch for a rise of the learning rate: a rise of the loss may follow it."""

    __slots__ = ("is_known", "last", "rose_at")

    def __init__(self) -> None:
        self.is_known = False
        self.last: float | None = None
        self.rose_at: int | None = None
        """The last step at which it rose."""

    def add(self, step: int, value: float) -> bool:
        """Take its value; returns whether it rises."""
        before, self.last, self.is_known = self.last, value, True
        rises = before is not None and value > before * LR_RISE
        if rises:
            self.rose_at = step
        return rises


class _LossScale:
    """The scale of the loss in mixed precision."""

    __slots__ = ("_changed_at", "_has_settled", "_recent", "is_low", "last")

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque()
        self._changed_at = 0
        self._has_settled = False
        self.last: float | None = None
        self.is_low = False

    def add(self, step: int, value: float) -> float | None:
        """Take its value; returns the highest of the last steps if it has collapsed by this one."""
        before, self.last = self.last, value
        recent = self._recent
        if before is None or value != before:
            self._changed_at = step
        # It searches its first limit, from 2**24 for instance, until it stays or grows.
        self._has_settled |= step - self._changed_at >= FIRST_STEPS or (before is not None and value > before)
        if self._has_settled:
            recent.append((step, value))
        while recent and recent[0][0] < step - SCALE_STEPS:
            recent.popleft()
        highest = max((one for _, one in recent), default=value)
        low = value * SCALE_FALL <= highest or (
            value < LEAST_SCALE and ((before is not None and value < before) or self.is_low)
        )
        began, self.is_low = low and not self.is_low, low
        return highest if began else None


class _StepSize:
    """Tokens per step, by which another training in the same process is recognized."""

    __slots__ = ("_other", "_usual")

    def __init__(self) -> None:
        self._usual: float | None = None
        self._other = 0
        """Steps in a row of another size."""

    def add(self, tokens: float) -> bool:
        """Take the tokens of a step; returns whether the steps are of another size from now on."""
        if self._usual is None or max(tokens, self._usual) < OTHER_TRAINING * min(tokens, self._usual):
            self._usual, self._other = tokens, 0
            return False
        self._other += 1
        if self._other < OTHER_STEPS:
            return False
        self._usual, self._other = tokens, 0
        return True


class TrainingHealth:
    """Curves of one process by name, and the last event of each kind."""

    def __init__(self) -> None:
        self.events: dict[str, HealthEvent] = {}
        """Events by alert id."""
        self.new_losses: list[tuple[str, int, float]] = []
        """Losses of this snapshot, NaN where they are not finite."""
        self.shown: dict[MetricKind, tuple[str, float | None]] = {}
        """The last value of each kind, with its name."""
        self._curves: dict[str, MetricCurve] = {}
        self._flat: dict[str, FlatLoss] = {}
        self._scales: dict[str, _LossScale] = {}
        self._rate = _LearningRate()
        self._last_step: dict[str, int] = {}
        self._norms: deque[bool] = deque(maxlen=10)
        self._kinds: dict[str, MetricKind | None] = {}
        self._has_values = False
        self._size = _StepSize()

    def add(self, now: float, rank: Rank) -> None:
        """Take the values of a snapshot. A stream without `new_values` has the last value of each name alone."""
        self.new_losses = []
        for done in rank.new_steps:
            if done.tokens and self._size.add(done.tokens):
                self._begin_other(done.index - OTHER_STEPS)
        for step, name, kind, value in sorted(self._points(rank), key=lambda point: (point[0], point[2] != "lr")):
            if value is not None and not math.isfinite(value):
                value = None  # noqa: PLW2901
            self.shown[kind] = name, value
            last = self._last_step.get(name)
            if last is not None and step < last:
                self._begin_anew()
            self._last_step[name] = step
            if value is None:
                self._not_finite(now, step, name, kind)
            else:
                self._finite(now, step, name, kind, value)

    def _points(self, rank: Rank) -> Iterator[tuple[int, str, MetricKind, float | None]]:
        if rank.new_values:
            self._has_values = True
            for series in rank.new_values:
                kind = self._kind(series.name)
                if kind is not None:
                    for step, value in zip(series.steps, series.values, strict=False):
                        yield step, series.name, kind, value
        elif not self._has_values and rank.step is not None:
            for name, value in rank.metrics.items():
                kind = self._kind(name)
                if kind is not None and self._last_step.get(name) != rank.step:
                    yield rank.step, name, kind, value

    def _kind(self, name: str) -> MetricKind | None:
        if name not in self._kinds:
            self._kinds[name] = metric_kind(name)
        return self._kinds[name]

    def _begin_anew(self) -> None:
        """The steps count anew: a training that goes back to its checkpoint, or another one."""
        self._curves.clear()
        self._flat.clear()
        self._scales.clear()
        self._last_step.clear()
        self._rate = _LearningRate()
        self._norms.clear()
        for event in self.events.values():
            event.is_open = False

    def _begin_other(self, step: int) -> None:
        """Another training begins, as in a sweep or a notebook: what its first steps looked like was no event."""
        self._begin_anew()
        for alert_id in ("loss_spike", "grad_norm_jump"):
            event = self.events.get(alert_id)
            if event is not None and event.step >= step:
                del self.events[alert_id]

    def _not_finite(self, now: float, step: int, name: str, kind: MetricKind) -> None:
        if kind == "lr":
            return
        if kind == "loss":
            self.new_losses.append((name, step, math.nan))
        if kind == "grad_norm":
            self._norms.append(False)
            if self._scales and self._norms.count(False) < OVERFLOWS:
                return
        known = self.events.get("non_finite")
        if known is not None and known.is_open and (known.metric == name or kind != "loss"):
            known.seen_at = now
            return
        curve = self._curves.get(name)
        usual = None if curve is None else curve.usual()
        self.events["non_finite"] = HealthEvent(name, step, None, now, usual=usual, is_open=True)

    def _finite(self, now: float, step: int, name: str, kind: MetricKind, value: float) -> None:
        known = self.events.get("non_finite")
        if known is not None and known.metric == name:
            known.is_open = False
        if kind == "lr":
            if self._rate.add(step, value):
                self._restart_curves(step)
            return
        if kind == "loss_scale":
            self._add_scale(now, step, name, value)
            return
        if kind == "grad_norm":
            self._norms.append(True)
        else:
            self.new_losses.append((name, step, value))
        curve = self._curves.get(name)
        if curve is None:
            curve = self._curves[name] = MetricCurve(LOSS_LIMITS if kind == "loss" else NORM_LIMITS)
            curve.restart((self._rate.rose_at or step) + FIRST_STEPS)
        if kind == "loss":
            self._add_loss(now, step, name, value)
        if curve.add(step, value, is_lr_known=self._rate.is_known) and curve.excursion is not None:
            found = curve.excursion
            if kind == "grad_norm" and self._has_learned_all():
                return
            usual = found.usual_low, found.usual_high
            alert_id = "loss_spike" if kind == "loss" else "grad_norm_jump"
            self.events[alert_id] = HealthEvent(name, found.step, found.value, now, usual, found)

    def _has_learned_all(self) -> bool:
        """Return True if all losses are near 0, as where one batch is learned by heart.

        The gradient is then what rounding and the optimizer's noise leave: its norm moves by large factors far
        below its earlier level. If a step does harm there, the loss rises and is a spike.
        """
        losses = [curve for name, curve in self._curves.items() if self._kind(name) == "loss"]
        return bool(losses) and all(curve.is_near_zero() for curve in losses)

    def _restart_curves(self, step: int) -> None:
        """The learning rate rises: what follows from it is no event, nor is what began just before it was
        known."""
        for curve in self._curves.values():
            curve.restart(step + FIRST_STEPS)
        for alert_id in ("loss_spike", "grad_norm_jump"):
            event = self.events.get(alert_id)
            if event is not None and event.step >= step - FIRST_STEPS:
                del self.events[alert_id]

    def _add_scale(self, now: float, step: int, name: str, value: float) -> None:
        scale = self._scales.get(name)
        if scale is None:
            scale = self._scales[name] = _LossScale()
        highest = scale.add(step, value)
        known = self.events.get("loss_scale_collapse")
        if highest is not None:
            self.events["loss_scale_collapse"] = HealthEvent(
                name, step, value, now, usual=(highest / 2, highest), is_open=True
            )
        elif known is not None and known.metric == name:
            known.is_open = scale.is_low
            known.value = min(value, known.value or value) if scale.is_low else known.value

    def _add_loss(self, now: float, step: int, name: str, value: float) -> None:
        flat = self._flat.get(name)
        if flat is None:
            flat = self._flat[name] = FlatLoss()
        excursion = self._curves[name].excursion
        left_range = (excursion.step, excursion.spread) if excursion is not None and excursion.is_open else None
        if flat.add(step, value, left_range) and flat.since is not None:
            self.events["loss_flat"] = HealthEvent(name, flat.since, value, now, is_open=True)
        known = self.events.get("loss_flat")
        if known is not None and known.metric == name:
            known.value, known.is_open = value, flat.since is not None


OTHER_TRAINING: Final = 4
"""Steps with four times as many tokens, or a quarter, are those of another training: curricula of batches and
sequences double at most."""
OTHER_STEPS: Final = 3
"""Number in a row: one batch at the end of an epoch may be small."""
