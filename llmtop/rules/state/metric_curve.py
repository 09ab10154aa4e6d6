"""One logged value over the steps of a training: its usual range, and when it leaves that.

The range is robust. In log space (a loss and a norm are positive and move by factors), the medians of the two
halves of the last `WINDOW` values give the trend, and the median absolute deviation from it the spread. What
was an outlier enters neither.

The noise of a loss over few samples is wide and skewed: standard deviations say nothing about how often it is far
above its median. Its upper half is extrapolated as a Weibull tail, whose logarithmic quantiles are a straight line
over log(log(1 / probability)) (Gardes and Girard, Communications in Statistics 34, 2005): a share of the
values above the median, and a smaller one, give how far a value is that comes once in so many. Normal,
exponential and gamma noise have such tails. A heavier one than the exponential is extrapolated in log space.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Final, NamedTuple

WINDOW: Final = 128
LEAST: Final = 32
"""Values before one is judged."""
REMEMBERED: Final = 512
"""Values whose largest deviation is remembered: noise with heavy tails shows its tail there."""
EVERY: Final = 4
"""The range is computed anew after so many values."""
RECENT: Final = 48
"""The last values are not among the remembered ones, once there are enough: a slow rise must not hide itself."""
ENOUGH: Final = 96
"""Values before one outlier alone is judged, and before a pair is judged by its own limits instead of those of
one: a share of harder batches shows its tail in so many."""
CONSISTENT: Final = 1.4826
"""Makes the median absolute deviation of normal noise its standard deviation."""
LEAST_SPREAD: Final = 0.002
"""Spread in log space of a smoothed value that hardly moves."""
ONSET: Final = 8
"""Values within which a spike rises, where the learning rate is unknown: a loss that rises more slowly may follow
its learning rate."""
ONSET_SHARE: Final = 0.6
LEAST_RISE: Final = 0.005
"""Share of the first values: a loss near 0 moves by large factors, which mean nothing."""
ONSET_FACTOR: Final = 1.5
"""Factor from which it is a spike however slowly it rises."""
RETURN: Final = 5
"""Values after a deviation whose median shows whether it came back."""
UPPER_SHARES: Final = (0.5, 0.1)
"""Shares of the values above the median by which the tail is extrapolated."""
BACK_SIGMAS: Final = 3.0
LONGEST: Final = 500
"""Values after which a level that does not come back is the usual one."""


@dataclass(frozen=True)
class RiseLimits:
    """How far a value must rise above its trend to be an outlier."""

    sigmas: float
    factor: float
    times: float
    """Multiple of the farthest remembered value."""
    probability: float | None = None
    """Probability with which noise exceeds a value that is no outlier; None: not asked."""


@dataclass
class Excursion:
    """A value that has left its usual range."""

    step: int
    """Step of the first value outside the range."""
    value: float
    """The furthest value."""
    usual_low: float
    usual_high: float
    spread: float
    """Usual one, in log space where the values are positive."""
    last_step: int
    points: int = 1
    """Values since the first one."""
    is_open: bool = True
    """True if the value has not come back."""


class CurveLimits(NamedTuple):
    """Limits of one kind of values."""

    pair: RiseLimits
    """Limits for each of two values among three."""
    single: RiseLimits
    """Limits for one value alone."""
    is_linear: bool
    """True if deviations are compared as shares of the value, as a loss's noise is symmetric in; else as
    factors, as a norm's noise is."""


class _Range(NamedTuple):
    """The usual range as of the last time that it was computed."""

    middle: float
    """Middle of the trend, at the value number `at`."""
    slope: float
    """Per value."""
    at: float
    spread: float
    upper: tuple[float, float]
    """Deviations from the median that `UPPER_SHARES` of the values above it exceed."""


class _Hit(NamedTuple):
    """An outlier, of which it is not known whether an excursion begins with it."""

    step: int
    value: float
    deviation: float


class MetricCurve:
    """Values of one name in one process. Values come in the order of their steps."""

    __slots__ = (
        "_before",
        "_deviations",
        "_first",
        "_hits",
        "_in_logs",
        "_judge_from",
        "_levels",
        "_limits",
        "_number",
        "_range",
        "_recent",
        "_returns",
        "_window",
        "excursion",
    )

    def __init__(self, limits: CurveLimits) -> None:
        self._limits = limits
        self.excursion: Excursion | None = None
        """The last one."""
        self._judge_from = 0
        self._first: float | None = None
        """Median of the first values, scaled as the values are now."""
        self.restart(0)

    def restart(self, judge_from: int) -> None:
        """Drop the usual range, and judge no value of a step below `judge_from`."""
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._deviations: deque[float] = deque(maxlen=REMEMBERED)
        self._recent: deque[float] = deque()
        self._before: deque[float] = deque(maxlen=ONSET)
        self._levels: deque[float] = deque(maxlen=WINDOW // EVERY)
        """Medians of `ONSET` usual values each."""
        self._hits: deque[_Hit | None] = deque(maxlen=3)
        self._returns: deque[float] = deque(maxlen=5)
        self._range: _Range | None = None
        self._in_logs = True
        self._number = 0
        self._judge_from = judge_from
        if self.excursion is not None:
            self.excursion.is_open = False

    def usual(self) -> tuple[float, float] | None:
        """Return the lowest and the highest usual value now; None before there are enough values."""
        if self._range is None:
            return None
        middle, off = self._expected_value(), BACK_SIGMAS * self._range.spread
        return self._unscale(middle - off), self._unscale(middle + off)

    def is_near_zero(self) -> bool:
        """Return True if the usual value is less than `LEAST_RISE` of the first values."""
        if self._range is None or self._first is None:
            return False
        expected = self._expected_value()
        if self._in_logs:
            return expected - self._first < math.log(LEAST_RISE)
        return abs(expected) < LEAST_RISE * abs(self._first)

    def add(self, step: int, value: float, *, is_lr_known: bool) -> bool:
        """Take the finite value of a step.

        Args:
            step: not below that of the value before.
            value: finite.
            is_lr_known: whether a rise of the learning rate would be known.

        Returns:
            Whether an excursion begins.
        """
        if self._in_logs and value <= 0.0:
            judge_from = self._judge_from
            values = [math.exp(one) for one in self._window]
            self.restart(judge_from)
            self._in_logs = False
            self._first = None if self._first is None else math.exp(self._first)
            for one in values:
                self._take_usual(one)
        scaled = math.log(value) if self._in_logs else value
        if self.excursion is not None and self.excursion.is_open:
            self._continue(step, value, scaled)
            return False
        known = self._range
        if known is None or step < self._judge_from:
            self._take_usual(scaled)
            return False
        deviation = scaled - self._expected_value()
        if self._is_outlier(deviation, scaled, is_lr_known):
            self._add_hit(_Hit(step, value, deviation))
            if self._begins(deviation):
                return True
            self._number += 1
            return False
        self._add_hit(None)
        self._take_usual(scaled)
        return False

    def _add_hit(self, hit: _Hit | None) -> None:
        """Store whether a value is an outlier. One alone is noise, unless a rise follows."""
        hits, recent = self._hits, self._recent
        if len(hits) == 3 and hits[0] is not None and hits[1] is None and hits[2] is None:
            recent.insert(max(len(recent) - 2, 0), hits[0].deviation)
        hits.append(hit)

    def _expected_value(self) -> float:
        known = self._range
        assert known is not None, "asked for only once it is known"
        return known.middle + known.slope * (self._number - known.at)

    def _unscale(self, scaled: float) -> float:
        return math.exp(min(scaled, 700.0)) if self._in_logs else scaled

    def _rise(self, factor: float) -> float:
        """Return the deviation that a factor is."""
        known = self._range
        assert known is not None, "asked for only once it is known"
        if self._in_logs:
            return math.log(factor)
        return (factor - 1.0) * max(abs(known.middle), 5.0 * known.spread)

    def _is_outlier(self, deviation: float, scaled: float, is_lr_known: bool) -> bool:
        if not self._exceeds(deviation, self._limits.pair):
            return False
        return self._has_risen(deviation, scaled, is_lr_known)

    def _has_risen(self, deviation: float, scaled: float, is_lr_known: bool) -> bool:
        """Return whether a value is above those before it, not only above a trend whose fall has ended."""
        if not self._levels:
            return True
        latest = median(self._before) if self._before else self._levels[-1]
        if scaled - latest >= ONSET_SHARE * deviation:
            return True
        rise = scaled - min(self._levels)
        if is_lr_known:
            return rise >= ONSET_SHARE * deviation
        return min(rise, deviation) >= self._rise(ONSET_FACTOR)

    def _exceeds(self, deviation: float, limits: RiseLimits) -> bool:
        known = self._range
        assert known is not None, "asked for only once it is known"
        return (
            self._share_of_first(deviation) >= LEAST_RISE
            and self._share(deviation) >= limits.sigmas * known.spread
            and deviation >= self._rise(limits.factor)
            and self._share(deviation) >= limits.times * self._share(max(self._earlier(), default=0.0))
            and (limits.probability is None or self._is_beyond_tail(deviation, limits.probability))
        )

    def _is_beyond_tail(self, deviation: float, probability: float) -> bool:
        """Return whether noise with the tail of the last values exceeds a deviation less often than that."""
        known = self._range
        assert known is not None, "asked for only once it is known"
        if known.upper[0] <= 0.0:
            return True  # more than half of the values are equal
        # The shape of noise is known from more values than its present width.
        shape = _upper(self._deviations) if len(self._deviations) >= ENOUGH else known.upper
        scale: Callable[[float], float] = self._share
        weight = _tail_weight(*map(scale, shape))
        if weight > 1.0 and self._in_logs:
            scale, weight = _unchanged, _tail_weight(*shape)
        wanted = math.log(2.0 * probability)
        return scale(deviation) >= max(
            scale(known_deviation) * math.pow(wanted / math.log(share), weight)
            for share, known_deviation in zip(UPPER_SHARES, known.upper, strict=True)
        )

    def _earlier(self) -> Sequence[float]:
        """Return the deviations that an outlier exceeds."""
        recent = list(self._recent)[:-ONSET]
        if len(self._deviations) >= ENOUGH:
            recent = [one for place, one in enumerate(recent) if self._came_back(place)]
        return [*self._deviations, *recent]

    def _came_back(self, place: int) -> bool:
        """Return whether the values after a recent one were usual again: then it was noise, and no rise."""
        known = self._range
        return known is not None and median(islice(self._recent, place + 1, place + 1 + RETURN)) <= known.spread

    def _share(self, deviation: float) -> float:
        """Return a deviation in the scale in which noise is symmetric."""
        return math.expm1(min(deviation, 700.0)) if self._in_logs and self._limits.is_linear else deviation

    def _share_of_first(self, deviation: float) -> float:
        """Return how large a rise is beside the values at the beginning."""
        if not self._in_logs or self._first is None:
            return 1.0
        expected = self._expected_value()
        return math.exp(min(expected + deviation - self._first, 700.0)) - math.exp(
            min(expected - self._first, 700.0)
        )

    def _begins(self, deviation: float) -> bool:
        hits = [hit for hit in self._hits if hit is not None]
        is_enough = len(self._earlier()) >= ENOUGH
        far = self._exceeds(deviation, self._limits.single)
        if not (len(hits) >= 2 and (is_enough or far)) and not (is_enough and far):
            return False
        low, high = self.usual() or (math.nan, math.nan)
        self.excursion = Excursion(
            step=hits[0].step,
            value=max(hit.value for hit in hits),
            usual_low=low,
            usual_high=high,
            spread=math.nan if self._range is None else self._range.spread,
            last_step=hits[-1].step,
            points=len(hits),
        )
        self._hits.clear()
        self._returns.clear()
        return True

    def _continue(self, step: int, value: float, scaled: float) -> None:
        """Take a value while an excursion is open: it enters the usual range once the value has come back."""
        excursion, known = self.excursion, self._range
        if excursion is None or known is None:
            return
        excursion.points += 1
        excursion.value = max(excursion.value, value)
        self._returns.append(scaled)
        back = median(self._returns) - self._expected_value() <= BACK_SIGMAS * known.spread
        if not back:
            excursion.last_step = step
        if len(self._returns) == 5 and back:
            excursion.is_open = False
            self._remember(excursion.value)
            self._before.clear()
        elif excursion.points >= LONGEST:
            self.restart(step + 1)

    def _remember(self, value: float) -> None:
        """Store a value that came back: the next one alone must be as high, or it is this training's noise."""
        scaled = math.log(value) if self._in_logs else value
        times, deviation = self._limits.single.times, max(scaled - self._expected_value(), 0.0)
        is_share = self._in_logs and self._limits.is_linear
        self._deviations.append(math.log1p(math.expm1(deviation) / times) if is_share else deviation / times)

    def _take_usual(self, scaled: float) -> None:
        if self._range is not None:
            self._recent.append(scaled - self._expected_value())
            while len(self._recent) > RECENT:
                self._deviations.append(self._recent.popleft())
        self._window.append(scaled)
        self._before.append(scaled)
        self._number += 1
        if len(self._before) == ONSET and self._number % EVERY == 0:
            self._levels.append(median(self._before))
        if self._first is None and len(self._window) >= LEAST:
            self._first = median(self._window)
        if len(self._window) >= LEAST and (self._range is None or self._number % EVERY == 0):
            self._range = self._compute()

    def _compute(self) -> _Range:
        values = list(self._window)
        half = len(values) // 2
        first, second = median(values[:half]), median(values[half:])
        slope = (second - first) / (len(values) / 2)
        start = self._number - len(values)
        at = start + half + (len(values) - half - 1) / 2
        deviations = [one - second - slope * (start + place - at) for place, one in enumerate(values)]
        spread = CONSISTENT * median(map(abs, deviations))
        least = LEAST_SPREAD if self._in_logs else LEAST_SPREAD * abs(second)
        if median(deviations[-ONSET:]) > spread:  # a rise must not hide itself
            deviations = deviations[: max(len(values) - RECENT, LEAST)]
        return _Range(second, slope, at, max(spread, least, 1e-12), _upper(deviations))


def _upper(deviations: Iterable[float]) -> tuple[float, float]:
    """Return the deviations from the median that `UPPER_SHARES` of the values above it exceed."""
    ordered = sorted(deviations)
    middle = median(ordered)
    half, far = (ordered[-1 - int(share / 2 * len(ordered))] - middle for share in UPPER_SHARES)
    return half, far


def _unchanged(deviation: float) -> float:
    return deviation


def _tail_weight(half: float, far: float) -> float:
    """Return the coefficient of a Weibull tail by the deviations that `UPPER_SHARES` exceed.

    It is 0.75 for normal noise, 1 for exponential noise, and more for heavier tails.
    """
    first, second = (-math.log(share) for share in UPPER_SHARES)
    return math.log(max(far / half, 1.0)) / math.log(second / first) if half > 0.0 else 1.0
