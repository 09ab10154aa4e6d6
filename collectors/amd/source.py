"""AMD GPUs of this machine through amdsmi, in the driver process; the counterpart of nvml/source.py.

amdsmi is never shut down while a thread is inside one of its calls.
"""

from __future__ import annotations

import time

from collectors.amd.calls import NO_PERMISSION, AmdCaller, status_text
from collectors.amd.device import AmdSampler
from collectors.base.periodic_thread import PeriodicThread
from collectors.gpu.bounds import implausible_notes
from collectors.gpu.poll_times import (
    DISCOVERY_SECONDS,
    FIRST_DISCOVERY_SECONDS,
    RESTART_SECONDS,
    RESTART_SECONDS_BESIDE_HEALTHY,
    unanswered_note,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from collectors.gpu.bounds import Values

_NO_LIBRARY = "libamd_smi.so was not found: install ROCm's amd-smi-lib, or set ROCM_PATH to where ROCm lies"
_MISFIT = "the package amdsmi does not fit the libamd_smi.so here ({}): install the version of this ROCm"


class AmdSource:
    """All of amdsmi: every GPU that it lists, in its order."""

    def __init__(self, interval: float = 1.0, on_fresh: Callable[[], None] = lambda: None) -> None:
        """Prepare to sample every `interval` seconds; touches no driver yet.

        `on_fresh` is called, from any thread, after a GPU's cheap values were read and after each search for GPUs.
        """
        self._interval, self._on_fresh = interval, on_fresh
        self._watch = PeriodicThread("amd", self._discover, DISCOVERY_SECONDS)
        self._call: AmdCaller | None = None
        self._samplers: list[AmdSampler] = []
        self._initialised = False
        self._problem: str | None = None
        self._version: str | None = None
        self._looked = False
        self._started_at = self._restarted_at = time.monotonic()

    def start(self) -> None:
        """Begin to search for the driver and its GPUs; what is missing becomes a note."""
        self._started_at = time.monotonic()
        self._watch.start()

    def set_interval(self, seconds: float) -> None:
        """Change the poll interval of all GPUs.

        Args:
            seconds: between rounds of cheap values; slow polls keep at least `SLOW_SECONDS`.
        """
        self._interval = seconds
        for sampler in self._samplers:
            sampler.set_interval(seconds)

    def reading_values(self) -> Values:
        """Return the present values as plain data: fields of `GpuReading`, its GPUs and its uses."""
        samplers = self._samplers
        notes = self._notes(samplers)
        if not self._looked and time.monotonic() - self._started_at < FIRST_DISCOVERY_SECONDS:
            return {"notes": notes, "settled": bool(notes)}
        return {
            "gpus": _with_distinct_uuids([sampler.row() for sampler in samplers]),
            "uses": [use for sampler in samplers for use in sampler.uses()],
            "driver_version": self._version,
            "notes": notes,
            "settled": all(sampler.is_settled for sampler in samplers),
        }

    def _notes(self, samplers: list[AmdSampler]) -> tuple[str, ...]:
        notes = [self._problem, None if self._call is None else unanswered_note(self._call.waiting())]
        if self._looked and not samplers and self._problem is None:
            notes.append("amdsmi is here, but it lists no GPU")
        for names, says in (
            (
                set().union(*(one.functions_refused_with(NO_PERMISSION) for one in samplers)),
                status_text(NO_PERMISSION),
            ),
            (
                set().union(*(one.functions_refused_without_reason() for one in samplers)),
                "the driver gives no reason",
            ),
        ):
            if names:
                notes.append(f"{', '.join(sorted(names))} refused, what it gives is absent: {says}")
        notes += implausible_notes((f"GPU {sampler.index}", sampler.implausible_values) for sampler in samplers)
        notes += [self._watch.fault, *(fault for sampler in samplers for fault in sampler.internal_errors())]
        return tuple(dict.fromkeys(note for note in notes if note))

    # ---- the watching thread ----

    def _discover(self) -> None:
        if self._call is None:
            self._call = self._load()
        if self._call is not None:
            if not self._initialised:
                self._create_samplers(self._call)
            elif self._restart_due():
                self._restart(self._call)
        self._on_fresh()

    def _load(self) -> AmdCaller | None:
        """Return the binding, which loads the library and resolves every function at import."""
        try:
            import amdsmi
        except (KeyError, OSError):  # it prints that there is no library, and goes on
            self._problem = _NO_LIBRARY
        except Exception as error:  # noqa: BLE001  a function that the older or newer library lacks, for one
            self._problem = _MISFIT.format(str(error).rpartition(": ")[2] or type(error).__name__)
        else:
            return AmdCaller(amdsmi)
        return None

    def _create_samplers(self, call: AmdCaller) -> None:
        call.begin()
        call("amdsmi_init")
        code = call.refusals.get("amdsmi_init")
        if code is None:
            handles = call("amdsmi_get_processor_handles")
            code = call.refusals.get("amdsmi_get_processor_handles")
        self._problem = None if code is None else f"no GPU of AMD's can be shown: {status_text(code)}"
        if code is not None:
            return
        self._initialised = True
        first = call("amdsmi_get_gpu_driver_info", handles[0]) if handles else None
        version = (first or {}).get("driver_version")
        self._version = None if version in (None, "N/A") else version
        self._samplers = [self._sampler(call.smi, handle, index) for index, handle in enumerate(handles)]
        for sampler in self._samplers:
            sampler.start()
        self._looked = True

    def _sampler(self, smi: Any, handle: Any, index: int) -> AmdSampler:
        return AmdSampler(smi, handle, index, self._interval, self._on_fresh)

    def _restart_due(self) -> bool:
        lost = [sampler for sampler in self._samplers if sampler.is_lost]
        none_listed = not self._samplers
        if not (lost or none_listed) or any(sampler.is_hanging(1.0) for sampler in self._samplers):
            return False
        all_lost = len(lost) == len(self._samplers)
        pause = RESTART_SECONDS if all_lost else RESTART_SECONDS_BESIDE_HEALTHY
        return time.monotonic() - self._restarted_at >= pause

    def _restart(self, call: AmdCaller) -> None:
        self._restarted_at = time.monotonic()
        for sampler in self._samplers:
            sampler.stop()
        deadline = time.monotonic() + 1.0
        if all(sampler.join(deadline) for sampler in self._samplers):
            call("amdsmi_shut_down")
            self._initialised = False
            self._create_samplers(call)
        else:
            for sampler in self._samplers:
                sampler.start()


def _with_distinct_uuids(rows: list[Values]) -> list[Values]:
    """Return the rows with UUIDs that differ: under virtual machines and partitions several GPUs may say the
    same."""
    seen: set[str] = set()
    for row in rows:
        if row["uuid"] in seen:
            row["uuid"] = f"{row['uuid']}-{row['index']}"
        seen.add(row["uuid"])
    return rows
