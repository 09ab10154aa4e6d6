"""Energy and cost of a run, from what monitors saw of its GPUs and from the prices of the configuration."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from llmtop.config import Runs
from llmtop.model.signal_text import JOULES_PER_KWH
from llmtop.runs.records import GpuMinute
from llmtop.runs.series import POINT_SECONDS
from llmtop.runs.store import Run

_POWER = "power_watts"


class RunEnergy(msgspec.Struct, kw_only=True, frozen=True):
    """Energy of the GPUs of a run, as far as a monitor saw them."""

    joules: float
    gpu_hours: float
    """For how long it was seen, over all GPUs; less than the run's GPU hours where no monitor watched."""


class RunCost(msgspec.Struct, kw_only=True, frozen=True):
    """Cost of a run by the prices of the configuration; None where a price or its figure is unknown."""

    currency: str
    gpu_hours: float | None
    """The run's GPU hours times the price of one."""
    energy: float | None
    """Price of the energy in `RunEnergy.joules`: over the time that a monitor observed."""


def gpu_minutes(run: Run, seen: Iterable[GpuMinute]) -> list[GpuMinute]:
    """Return the minutes of the GPUs of a run, while it ran; each minute of a GPU once.

    Args:
        run: its ranks name their GPUs; where none does, all GPUs count that were seen.
        seen: of `node_notes.read_notes`; a folder may hold two runs.
    """
    ended = max(process.ended for process in run.processes)
    starts = [process.start for process in run.processes if process.start is not None]
    uuids, pids = {start.gpu_uuid for start in starts} - {None}, {start.pid for start in starts}
    found: dict[tuple[str, int], GpuMinute] = {}
    for minute in seen:
        is_own = not uuids or minute.uuid in uuids or bool(pids & set(minute.pids))
        if is_own and run.started <= minute.at <= ended + minute.seconds:
            found.setdefault((minute.uuid, round(minute.at / POINT_SECONDS)), minute)
    return list(found.values())


def energy_of(minutes: Iterable[GpuMinute]) -> RunEnergy | None:
    """Return the energy in minutes of GPUs; None where no power and no energy was recorded.

    A minute has the difference of the driver's energy counter, else the mean power times its length.
    """
    joules = seconds = 0.0
    for minute in minutes:
        used = minute.energy_joules
        if used is None and _POWER in minute.signals:
            used = minute.signals[_POWER][0] * minute.seconds
        if used is not None:
            joules, seconds = joules + used, seconds + minute.seconds
    return RunEnergy(joules=joules, gpu_hours=seconds / 3600) if seconds > 0 else None


def cost_of(energy: RunEnergy | None, gpu_hours: float | None, prices: Runs) -> RunCost | None:
    """Return what a run cost; None where no price is set.

    Args:
        energy: of the run; None where not known.
        gpu_hours: of the run; None where it used no GPU.
        prices: of the configuration.
    """
    if prices.gpu_hour_price is None and prices.kwh_price is None:
        return None
    hours = None
    if gpu_hours is not None and prices.gpu_hour_price is not None:
        hours = gpu_hours * prices.gpu_hour_price
    used = None
    if energy is not None and prices.kwh_price is not None:
        used = energy.joules / JOULES_PER_KWH * prices.kwh_price
    return RunCost(currency=prices.currency, gpu_hours=hours, energy=used)


def energy_text(energy: RunEnergy | None, cost: RunCost | None, gpu_hours: float | None) -> str:
    """Return energy and cost of a run in one or two sentences."""
    if energy is None:
        text = "Energy is not known: no monitor recorded the power of a GPU."
    else:
        of = "" if gpu_hours is None else f" of {gpu_hours:.2f}"
        text = (
            f"Energy of the GPUs: {energy.joules / JOULES_PER_KWH:.3g} kWh, seen for "
            f"{energy.gpu_hours:.2f}{of} GPU hours."
        )
    costs = []
    if cost is not None and cost.gpu_hours is not None:
        costs.append(f"{cost.gpu_hours:.2f} {cost.currency} for GPU hours")
    if cost is not None and cost.energy is not None:
        costs.append(f"{cost.energy:.2f} {cost.currency} for that energy")
    return f"{text} Cost: {', '.join(costs)}." if costs else text
