"""Differences between two reports, as plain typed data. Field names are a contract (docs/contracts.md)."""

from __future__ import annotations

from typing import Literal

import msgspec

from llmtop.compare.run_model import RunComparison
from llmtop.report.environment import Difference

SCHEMA = 1

Basis = Literal["undisturbed", "captured", "bounded", ""]
"""Which steps are set against each other: "undisturbed" as they are without a profiler; "captured" with it, the
same profiler on both sides; "bounded" where two profilers slow the training down differently, and what is known is
between which bounds the step without them lies; "" where one side has no steps."""

State = Literal["new", "gone", "faster", "slower", "fewer", "more", "same"]
"""Change of work of one name: more or less time per step because each call takes longer ("slower", "faster"),
or because the number of calls changed ("more", "fewer"). Fewer calls are no speed-up of the work."""


class ComparedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of two reports: its value before and after."""

    name: str
    unit: str
    """"s" or "pct"."""
    before: float | None
    after: float | None
    change_pct: float | None = None
    """For times: by how many percent of the time before it has changed; None where there was next to none."""
    noise: float | None = None
    """Noise in the figure's unit: a smaller difference says nothing."""
    moved: bool = False
    speedup: float | None = None
    """For times: before over after."""
    told: str = ""
    """The change in words, where percent would say nothing: from nothing, to next to nothing, only on one side."""


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that was there before, is there after, or both."""

    id: str
    state: str
    """"new", "gone" or "stayed"."""
    before_pct: float | None = None
    after_pct: float | None = None


class ComparedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One process on one GPU, as its report names it."""

    device: int
    pid: int
    rank: int | None = None
    uuid: str | None = None
    judged: bool = False
    """True if its report's verdict is about it."""


class DeviceChange(msgspec.Struct, frozen=True, kw_only=True):
    """One device, before and after."""

    name: str
    paired_by: Literal["uuid", "rank", "index", "alone"]
    """"alone": it is the only one on both sides, whatever its number."""
    before: ComparedDevice
    after: ComparedDevice
    step: ComparedFigure | None = None
    figures: tuple[ComparedFigure, ...] = ()
    """Figures like those of the comparison, which belong to one of these devices."""
    phases: tuple[ComparedFigure, ...] = ()


class WorkChange(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of one name or kind, or an operator, before and after; figures a step are means of all devices that
    have whole steps on both sides."""

    name: str
    kind: str = ""
    """Kind of a kernel."""
    state: State
    count_before: float | None = None
    """How often a step; None without whole steps on both sides, as the three after it are."""
    count_after: float | None = None
    seconds_before: float | None = None
    """Device time a step."""
    seconds_after: float | None = None
    worth_seconds: float | None = None
    """Seconds that the change adds to the device time of a step; negative if it saves time."""
    noise_seconds: float | None = None
    """A smaller difference says nothing."""
    mean_us_before: float | None = None
    """Mean of one call over the whole file; None where there is none."""
    mean_us_after: float | None = None
    window_before: int = 0
    """How many in the whole file, which may hold any number of steps."""
    window_after: int = 0


class CollectiveChange(msgspec.Struct, frozen=True, kw_only=True):
    """One collective on one device, before and after; times are of a step, None without whole steps."""

    device: str
    name: str
    state: State
    count_before: float | None = None
    count_after: float | None = None
    seconds_before: float | None = None
    seconds_after: float | None = None
    noise_seconds: float | None = None
    exposed_seconds_before: float | None = None
    exposed_seconds_after: float | None = None
    bus_gb_per_s_before: float | None = None
    bus_gb_per_s_after: float | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between two reports."""

    schema: int = SCHEMA
    before: str
    after: str
    verdict_before: str
    verdict_after: str
    engine_before: str = ""
    engine_after: str = ""
    steps_before: int = 0
    """Whole steps."""
    steps_after: int = 0
    bottleneck_changed: bool
    """True if the verdicts differ by more than noise, a border, or what two profilers cost can explain."""
    summary: str
    step: ComparedFigure | None = None
    """The median step: the primary figure."""
    figures: tuple[ComparedFigure, ...] = ()
    """Busy, idle, and what the step is lost to, of one device before and after; of the judged one, where that is
    the same on both sides."""
    phases: tuple[ComparedFigure, ...] = ()
    """Means of the devices that are on both sides."""
    findings: tuple[FindingChange, ...] = ()
    notes: tuple[str, ...] = ()
    environment: tuple[Difference, ...] = ()
    basis: Basis = ""
    step_range_pct: tuple[float, float] | None = None
    """Bounds of the change of the step, in percent of the one before; where `basis` is "bounded"."""
    same: bool = False
    """True if nothing moved."""
    unlike: tuple[str, ...] = ()
    """Differences in GPU, precision or work; with any of them no difference in time is one of speed."""
    parts: tuple[ComparedFigure, ...] = ()
    """Parts of the mean step of that device; their sum is the step."""
    devices: tuple[DeviceChange, ...] = ()
    unpaired: tuple[str, ...] = ()
    """Sentences on devices on one side only, which are in none of the figures; they stand in `notes` too."""
    kernels: tuple[WorkChange, ...] = ()
    kinds: tuple[WorkChange, ...] = ()
    """Kernels by what they compute."""
    operators: tuple[WorkChange, ...] = ()
    collectives: tuple[CollectiveChange, ...] = ()
    work_ratio: float | None = None
    """How much more often a step after runs the kernels that compute, where all of them agree on it; else None."""
    runs: RunComparison | None = None
    """Fields that only a comparison of two runs has; else None."""
