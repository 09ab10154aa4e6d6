"""Which device of one report is which of another, and what each of them lost of its steps before and after.

A figure of one GPU against another's says nothing, so each is set against itself: by UUID where both reports know
it, else by rank, else by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

from llmtop.compare.model import Basis, ComparedDevice, ComparedFigure
from llmtop.compare.step_times import FEW_PCT, LEAST_PCT, StepTime, correction_of, device_seconds, time_change
from llmtop.model.bottlenecks import find_bottleneck
from llmtop.report.model import Correction, Device, Report

POINTS = 1.0
"""Points that a share must move by."""
_HOST_PACED = ("launch_bound", "input_bound", "sync_bound", "idle", "unknown", "kernel_gaps", "one_off")
"""Losses that grow under a profiler that slows the host."""

_By = Literal["uuid", "rank", "index", "alone"]


@dataclass(frozen=True)
class DevicePair:
    """One device, before and after."""

    before: Device
    after: Device
    places: tuple[int, int]
    """Where it stands in the devices of both reports."""
    by: _By

    @property
    def name(self) -> str:
        """Name of the pair: its GPU, and its rank where both sides know it."""
        one, two = self.before, self.after
        name = f"GPU {one.device}" if one.device == two.device else f"GPU {one.device} / {two.device}"
        if one.rank is None or two.rank is None:
            return name
        return f"{name}, rank {one.rank}" if one.rank == two.rank else f"{name}, rank {one.rank} / {two.rank}"

    @property
    def has_steps(self) -> bool:
        """Return True if both sides have whole steps of it."""
        return self.before.steps > 0 and self.after.steps > 0


@dataclass(frozen=True)
class PairedDevices:
    """The devices of two reports."""

    pairs: tuple[DevicePair, ...]
    unpaired: tuple[str, ...]
    """Sentences on those that are on one side only."""
    main: DevicePair | None
    """The one whose figures lead: the judged one, where both verdicts are about the same."""


_KEYS: tuple[tuple[_By, Callable[[Device], Hashable]], ...] = (
    ("uuid", lambda device: device.uuid or None),
    ("rank", lambda device: device.rank),
    ("index", lambda device: device.device),
)


def pair_devices(before: Report, after: Report) -> PairedDevices:
    """Pair each device of one report with the same device of the other."""
    left = list(enumerate(before.devices)), list(enumerate(after.devices))
    pairs: list[DevicePair] = []
    for by, key in _KEYS:
        for value in dict.fromkeys(key(device) for _, device in left[0]):
            if value is None:
                continue
            # Processes that share a GPU are distinguished by their rank, else by the order in which they began.
            both = [sorted((own for own in side if key(own[1]) == value), key=_order) for side in left]
            for one, other in zip(*both, strict=False):
                pairs.append(_pair(one, other, by))
                left[0].remove(one)
                left[1].remove(other)
    if len(before.devices) == len(after.devices) == 1 and not pairs:
        pairs.append(_pair(left[0].pop(), left[1].pop(), "alone"))
    pairs.sort(key=lambda pair: pair.places)
    unpaired = [
        f"{_pair_label(device)} is in the {word} only: it is in no figure here"
        for word, side in zip(("first", "second"), left, strict=True)
        for _, device in side
    ]
    return PairedDevices(tuple(pairs), tuple(unpaired), _main(pairs))


def _order(own: tuple[int, Device]) -> tuple[int, int]:
    device = own[1]
    return (-1 if device.rank is None else device.rank, device.pid)


def _pair(one: tuple[int, Device], other: tuple[int, Device], by: _By) -> DevicePair:
    return DevicePair(one[1], other[1], (one[0], other[0]), by)


def _pair_label(device: Device) -> str:
    return f"GPU {device.device}" + ("" if device.rank is None else f" (rank {device.rank})")


def _main(pairs: list[DevicePair]) -> DevicePair | None:
    """Return the same from both sides: judged on both, else on one, else any."""
    ranked = sorted(
        pairs,
        key=lambda pair: (
            -(pair.before.judged + pair.after.judged),
            sorted((pair.before.device, pair.after.device)),
            sorted(place for place in pair.places),
        ),
    )
    return ranked[0] if ranked else None


def compared_device(device: Device) -> ComparedDevice:
    """Return how a device is named in a comparison."""
    return ComparedDevice(
        device=device.device, pid=device.pid, rank=device.rank, uuid=device.uuid, judged=device.judged
    )


@dataclass(frozen=True)
class DeviceShares:
    """Shares of its steps that a device lost, in percent."""

    idle_pct: float | None
    lost_pct: dict[str, float]
    step_seconds: float | None
    """The mean step that these are shares of, without one-off work."""

    @staticmethod
    def of(device: Device, correction: Correction | None) -> DeviceShares:
        """Return the shares of a device.

        Args:
            device: of a report.
            correction: by the undisturbed run, which is of the judged device; None: as captured.
        """
        if correction is not None and device.judged and correction.busy_pct is not None:
            return DeviceShares(100 - correction.busy_pct, correction.lost_pct, correction.undisturbed_seconds)
        mean = device.window_seconds / device.steps if device.steps else None
        mean = None if mean is None else mean * (1 - (device.one_off_pct or 0.0) / 100)
        return DeviceShares(device.idle_pct, device.lost_pct, mean)


def shares_of(pair: DevicePair, before: Report, after: Report, basis: Basis) -> tuple[DeviceShares, DeviceShares]:
    """Return what both sides of a pair lost of their steps; corrected only where both can be.

    Args:
        pair: the device on both sides.
        before: report of the first capture.
        after: report of the second capture.
        basis: which steps of both reports are compared.
    """
    one, two = correction_of(before), correction_of(after)
    both = (
        basis == "undisturbed" and pair.before.judged and pair.after.judged and one is not None and two is not None
    )
    return DeviceShares.of(pair.before, one if both else None), DeviceShares.of(pair.after, two if both else None)


@dataclass(frozen=True)
class MovedKinds:
    """Parts of a difference beyond the noise that belong to the training: two profilers add differences of
    their own."""

    busy: bool
    """True if the share of the whole capture moved; it is never corrected."""
    shares: bool
    """True if the losses of the steps moved."""


def figures_of(
    pair: DevicePair,
    shares: tuple[DeviceShares, DeviceShares],
    relative: float,
    steps: tuple[StepTime | None, StepTime | None],
    judged: MovedKinds,
) -> tuple[ComparedFigure, ...]:
    """Busy, idle, and what the step is lost to, in percent.

    Args:
        pair: one device.
        shares: what it lost on both sides.
        relative: how uncertain the steps are, as a share of them.
        steps: of that device.
        judged: which of the figures can be set against each other.
    """
    apart = _is_idle_change_certain(shares, steps)
    told, busy_told, idle_told = judged.shares, judged.busy or apart, judged.shares or apart
    a, b = pair.before, pair.after
    rows = [
        share_change("GPU busy, whole capture", a.busy_pct, b.busy_pct, relative, busy_told),
        share_change("GPU idle", shares[0].idle_pct, shares[1].idle_pct, relative, idle_told),
        share_change("exposed NCCL", a.nccl_exposed_pct, b.nccl_exposed_pct, relative),
        share_change("kernels under 10 µs", a.kernels_under_10us_pct, b.kernels_under_10us_pct, relative),
    ]
    one, two = shares[0].lost_pct, shares[1].lost_pct
    rows += [
        share_change(
            f"lost: {kind}", one.get(kind, 0.0), two.get(kind, 0.0), relative, told or kind not in _HOST_PACED
        )
        for kind in dict.fromkeys([*one, *two])
    ]
    return tuple(row for row in rows if row.before is not None or row.after is not None)


def _is_idle_change_certain(
    shares: tuple[DeviceShares, DeviceShares], steps: tuple[StepTime | None, StepTime | None]
) -> bool:
    """Return True if the idle shares differ whatever two profilers added to them."""
    bounds = []
    for share, step in zip(shares, steps, strict=True):
        if share.idle_pct is None or step is None or step.device_seconds is None:
            return False
        least = 100 * (1 - step.device_seconds / step.bounds[0])
        bounds.append((min(least, share.idle_pct), share.idle_pct))
    (a_low, a_high), (b_low, b_high) = bounds
    return a_low > b_high + POINTS or b_low > a_high + POINTS


def share_change(
    name: str, before: float | None, after: float | None, relative: float, judged: bool = True
) -> ComparedFigure:
    """Return a share before and after.

    Args:
        name: name of the figure.
        before: percent; None where not known.
        after: percent; None where not known.
        relative: uncertainty of the steps, as a share of them.
        judged: whether a difference beyond the noise is due to the training.
    """
    if before is None or after is None:
        return ComparedFigure(name=name, unit="pct", before=before, after=after)
    noise = max(POINTS, relative * max(abs(before), abs(after)))
    return ComparedFigure(
        name=name,
        unit="pct",
        before=before,
        after=after,
        noise=noise,
        moved=judged and abs(after - before) > noise,
    )


def parts_of(
    pair: DevicePair, shares: tuple[DeviceShares, DeviceShares], relative: float, complete: bool, basis: Basis
) -> tuple[ComparedFigure, ...]:
    """Return the parts of the mean step of a device in seconds: the GPU's own work, and each loss.

    Args:
        pair: one device.
        shares: what it lost on both sides.
        relative: how uncertain the steps are, as a share of them.
        complete: whether all its work is in both captures.
        basis: which of the steps are set against each other.
    """
    one, two = shares
    if one.step_seconds is None or two.step_seconds is None or None in (pair.before.kernels, pair.after.kernels):
        return ()
    longest = max(one.step_seconds, two.step_seconds)
    kinds = dict.fromkeys([*one.lost_pct, *two.lost_pct])
    lost = [(kind, one.lost_pct.get(kind, 0.0), two.lost_pct.get(kind, 0.0)) for kind in kinds]
    own = ("gpu_bound", 100 - sum(one.lost_pct.values()), 100 - sum(two.lost_pct.values()))
    rows = []
    for kind, a, b in (own, *lost):
        known = find_bottleneck(kind)
        before, after = a / 100 * one.step_seconds, b / 100 * two.step_seconds
        noise = max(max(relative, FEW_PCT / 100) * max(before, after), LEAST_PCT / 100 * longest)
        judged = complete and (basis != "bounded" or kind not in _HOST_PACED)
        rows.append(time_change(known.title if known else kind, before, after, noise, judged))
    return tuple(rows)


def device_time(pair: DevicePair, relative: float, complete: bool) -> ComparedFigure | None:
    """Device time in a step: what no profiler changes; None without whole steps.

    Args:
        pair: one device.
        relative: how uncertain the steps are, as a share of them.
        complete: whether all its work is in both captures.
    """
    one, two = device_seconds(pair.before), device_seconds(pair.after)
    if one is None or two is None:
        return None
    noise = max(relative, FEW_PCT / 100) * max(one, two)
    return time_change("GPU time in a step", one, two, noise, complete)
