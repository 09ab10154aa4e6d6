"""Busy share of a training's GPU by the most reliable source, and whether that is a bound.

Three sources measure different things, and each is wrong in its own way (docs/measurements.md):

* GPU-Util, over some seconds, is within some eight points of the share of time in which a kernel ran. It sees no
  copies, blurs gaps shorter than its window upward, and is of the whole GPU: with two processes on it, it is of
  neither.
* CUDA events at phase boundaries see when the training's stream was empty from one boundary to the next, and
  nothing of the gaps within a phase: they give a lower bound of the idle time.
* SM activity is how many SMs worked on average, so no GPU is busy for less of the time than that. It gives no
  lower bound of the idle time: a kernel may use one SM.

So GPU-Util is the estimate, events move it down to where the GPU is known to have been idle, SM activity up to
where it is known to have worked. Without GPU-Util only the bound by events is left. Where small kernels come one
by one, GPU-Util said up to twice the truth; it is a bound then, unless twice is within what it errs by anyway.
"""

from __future__ import annotations

from math import isfinite
from typing import Final, Literal, NamedTuple

from llmtop.format import DASH, percent, percent_text
from llmtop.model.snapshot import Rank

AGREE_POINTS: Final = 2.0
"""Two witnesses so near to each other say the same."""
UTIL_ERROR_POINTS: Final = 8.0
"""How far the mean of GPU-Util was from the truth at most, on six programs."""

WINDOW_SECONDS: Final = 15.0
"""Length of the figures of a training's steps, of its GPU and of its waits, unless five steps take longer."""

COPIES_OF_LINK: Final = 0.1
"""Below this part of what the PCIe link carries, copies of pinned memory take less than a tenth of the time."""

BLURRED_UTIL: Final = 20.0
"""Below it GPU-Util may be twice the true share: it read 16.2 at 8.6 %, and 17.2 at 11.8 %."""
SMALL_KERNELS: Final = 0.35
"""SM activity over GPU-Util: 0.06 and 0.23 there, 0.66 where it read 42 at 37 %."""
HOST_PACED_PCT: Final = 25.0
"""Percent of the time: those two were above 90. An LSTM, read as 44 at 33.6 %, had 43 in one run, 57 in
another."""

Source = Literal["events", "util", "sm"]
_SOURCE_NAMES: Final[dict[str, str]] = {"events": "CUDA events", "util": "GPU-Util", "sm": "SM activity"}


class BusyEstimate(NamedTuple):
    """How busy a GPU was with one training."""

    pct: float
    """Share of the time in which it ran anything."""
    source: Source
    """The witness that is believed."""
    bound: bool
    """True if it may have been less busy than that: it was idle for at least the rest."""


def estimate_busy(
    *,
    util_pct: float | None,
    sm_pct: float | None,
    events_pct: float | None,
    host_paced_pct: float | None = None,
) -> BusyEstimate | None:
    """Combine the sources; None where the busy share is unknown.

    Args:
        util_pct: mean of GPU-Util; None where it is absent, or not this training's alone.
        sm_pct: mean SM activity over the same time, on the same condition.
        events_pct: share of the time in which the training's stream may have had work, by CUDA events: the most
            that the GPU can have been busy with it.
        host_paced_pct: share of the time in which the GPU waited for the host again and again, by CUDA events.
    """
    if util_pct is None:
        return _without_util(sm_pct, events_pct)
    small = sm_pct is None or sm_pct < SMALL_KERNELS * util_pct
    blurred = small and util_pct >= BLURRED_UTIL and (host_paced_pct or 0.0) >= HOST_PACED_PCT
    found = BusyEstimate(min(util_pct, 100.0), "util", bound=blurred)
    if events_pct is not None and events_pct <= found.pct + AGREE_POINTS:
        found = BusyEstimate(events_pct, "events", bound=False)
    if sm_pct is not None and sm_pct > found.pct:
        found = BusyEstimate(min(sm_pct, 100.0), "sm", bound=False)
    return found


def _without_util(sm_pct: float | None, events_pct: float | None) -> BusyEstimate | None:
    if sm_pct is not None and sm_pct >= (100.0 if events_pct is None else events_pct) - UTIL_ERROR_POINTS:
        # Between what is known to have worked and what can have is no more room than GPU-Util errs by.
        return BusyEstimate(min(sm_pct, 100.0), "sm", bound=False)
    return None if events_pct is None else BusyEstimate(events_pct, "events", bound=True)


def source_name(source: str | None) -> str:
    """Return the displayed name of the source of a busy share. A source of a newer version keeps its own name."""
    return _SOURCE_NAMES.get(source or "", source or "")


def idle_pct(rank: Rank) -> float | None:
    """Return the idle share of the rank's GPU in percent; None where unknown.

    With `rank.gpu_busy_bound` it is a lower bound.
    """
    busy = rank.gpu_busy_pct
    return max(0.0, 100.0 - busy) if busy is not None and isfinite(busy) else None


def idle_text(rank: Rank) -> str:
    """Return the idle share of the rank's GPU as text.

    "14 %"; "≥ 12 %" where it is a bound; a dash where unknown.
    """
    return _bound_sign(rank) + percent_text(idle_pct(rank))


def idle_cell(rank: Rank) -> str:
    """Return the same for a table cell: "14%", "≥ 12%"; a dash for a bound of 0, which says nothing."""
    idle = idle_pct(rank)
    return DASH if rank.gpu_busy_bound and idle is not None and idle <= 0.5 else _bound_sign(rank) + percent(idle)


def _bound_sign(rank: Rank) -> str:
    return "≥ " if rank.gpu_busy_bound else ""


def has_phase_bounds(rank: Rank) -> bool:
    """Return True if what the GPU did in a phase, by CUDA events, is the most that it can have been.

    Between the events at its boundaries the GPU may pause; only where they explain all idle time it did not.
    """
    return rank.gpu_busy_source != "events" or rank.gpu_busy_bound
