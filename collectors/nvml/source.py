"""The GPUs of this machine, through NVML.

One thread enumerates the GPUs and restarts NVML when needed; others sample them (rounds.py, device.py). NVML is
never shut down while a thread is inside one of its calls: that crashes the process. The threads end with the
process, which has no other work (driver_serve.py).
"""

from __future__ import annotations

import time

import pynvml

from collectors.base.periodic_thread import PeriodicThread
from collectors.gpu.bounds import implausible_notes
from collectors.gpu.poll_times import (
    DISCOVERY_SECONDS,
    FIRST_DISCOVERY_SECONDS,
    RESTART_SECONDS,
    RESTART_SECONDS_BESIDE_HEALTHY,
    unanswered_note,
)
from collectors.nvml.calls import Caller, is_lost, status_text
from collectors.nvml.device import DeviceSampler
from collectors.nvml.enumerate import FoundGpus, Lookup
from collectors.nvml.rounds import GpuRounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectors.gpu.bounds import Values

RESTART_WAIT_SECONDS = 1.0
"""How long a restart waits for the threads to leave their calls, before it is given up."""

_NO_LIBRARY = (
    "no NVIDIA driver found (libnvidia-ml.so.1), so no GPU is shown (in a container, start it with --gpus all)"
)


class NvmlSource:
    """All of NVML: every GPU that the driver lists, MIG instances after their GPU.

    A GPU that is lost stays in the reading with its error, and is read again once it answers.
    """

    def __init__(self, interval: float = 1.0, on_fresh: Callable[[], None] = lambda: None) -> None:
        """Prepare to sample every `interval` seconds; touches no driver yet.

        `on_fresh` is called, from any thread, after each round of cheap values and after each enumeration that
        found a change.
        """
        self._interval = interval
        self._on_fresh = on_fresh
        self._call = Caller()
        self._watch = PeriodicThread("nvml", self._discover_and_notify, DISCOVERY_SECONDS)
        self._rounds = GpuRounds(interval, on_fresh)
        self._samplers: dict[str, DeviceSampler] = {}
        self._unknown: list[Values] = []
        self._initialised = False
        self._lookup = Lookup()
        self._looked = False
        self._problem: str | None = None
        self._versions: tuple[str | None, str | None] = (None, None)
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
        self._rounds.set_interval(seconds)
        for sampler in self._samplers.copy().values():
            sampler.set_interval(seconds)

    def hand_over(self) -> float:
        """Give rounds that are stuck to another thread; to be called again after the seconds that it returns."""
        return self._rounds.hand_over()

    def reading_values(self) -> Values:
        """Return the present values as plain data: fields of `GpuReading`, its GPUs and its uses.

        Empty, without a note, until the driver has been asked for the first time.
        """
        if not self._looked and time.monotonic() - self._started_at < FIRST_DISCOVERY_SECONDS:
            notes = self._notes([], True)
            return {"notes": notes, "settled": bool(notes)}
        samplers = sorted(self._samplers.copy().values(), key=lambda one: one.index)
        rows = [row for sampler in samplers for row in sampler.rows()]
        rows += self._unknown
        rows.sort(key=lambda row: row["index"])
        driver, cuda = self._versions
        return {
            "gpus": rows,
            "uses": [use for sampler in samplers for use in sampler.uses()],
            "driver_version": driver,
            "cuda_version": cuda,
            "notes": self._notes(samplers, bool(rows)),
            "settled": all(sampler.is_settled for sampler in samplers),
        }

    def _notes(self, samplers: list[DeviceSampler], any_gpu: bool) -> tuple[str, ...]:
        notes = [self._problem, unanswered_note(self._call.waiting())]
        if self._looked and not any_gpu and self._problem is None:
            notes.append("the NVIDIA driver is here, but it lists no GPU")
        notes += [_permission_note(samplers), _vague_note(samplers)]
        notes += implausible_notes((f"GPU {sampler.index}", sampler.implausible_values) for sampler in samplers)
        notes += [sampler.system_memory_note for sampler in samplers]
        notes += [self._watch.fault, *(fault for sampler in samplers for fault in sampler.internal_errors())]
        return tuple(dict.fromkeys(note for note in notes if note))

    # ---- the watching thread ----

    def _discover_and_notify(self) -> None:
        before = self._list_found()
        self._discover()
        if self._list_found() != before:
            self._on_fresh()

    def _list_found(self) -> tuple[object, ...]:
        """Return what an enumeration may change."""
        gpus = [(one.uuid, one.index, one.listed) for one in self._samplers.values()]
        return self._looked, self._problem, self._versions, self._unknown, gpus

    def _discover(self) -> None:
        anew = not self._initialised
        if anew:
            self._initialised = self._init()
        if self._initialised:
            self._find(anew)
            if self._restart_due():
                self._restart()

    def _init(self) -> bool:
        call = self._call
        call.begin()
        call("nvmlInit")
        code = call.refusals.get("nvmlInit")
        self._problem = None if code is None else _init_error_text(code)
        if code is not None:
            return False
        cuda = call("nvmlSystemGetCudaDriverVersion")
        version = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        self._versions = (call("nvmlSystemGetDriverVersion"), version)
        return True

    def _find(self, anew: bool) -> None:
        """Ask which GPUs there are; those already known by UUID go on under their handle and index of now.

        NVML numbers its GPUs when it starts: until it is started `anew`, one that is well stays where it is.
        """
        call = self._call
        call.begin()
        count = call("nvmlDeviceGetCount")
        self._problem = None if count is not None else status_text(call.refusals["nvmlDeviceGetCount"])
        if count is None:
            return
        well = (
            {}
            if anew
            else {one.index: one.uuid for one in self._samplers.values() if one.listed and one.is_responding}
        )
        answers = self._lookup.ask(index for index in range(count) if index not in well)
        found = set(well.values())
        for index, answer in answers.items():
            if isinstance(answer, FoundGpus):
                self._place(answer, index)
                found.add(answer.uuid)
        # A known GPU that was lost is the one without values at its index.
        silent = {index: answer for index, answer in answers.items() if isinstance(answer, str)}
        missing = [sampler for sampler in self._samplers.values() if sampler.uuid not in found]
        for sampler in missing:
            sampler.listed = sampler.index in silent
        strangers = silent.keys() - {sampler.index for sampler in missing}
        self._unknown = [
            {"index": index, "uuid": f"unknown-{index}", "name": "GPU", "error": silent[index]}
            for index in sorted(strangers)
        ]
        self._rounds.set_count(len(self._samplers))
        self._looked = True

    def _place(self, found: FoundGpus, index: int) -> None:
        sampler = self._samplers.get(found.uuid)
        if sampler is None:
            sampler = DeviceSampler(found.handle, index, found.uuid, self._rounds, self._on_fresh)
            self._samplers = {**self._samplers, found.uuid: sampler}
        else:
            sampler.move(found.handle, index)
        sampler.start()

    def _restart_due(self) -> bool:
        """Return True if a GPU is lost and NVML, started again, might find it: it lists GPUs only when it
        starts."""
        samplers = self._samplers.values()
        lost = [sampler for sampler in samplers if sampler.is_lost]
        driver_lost = is_lost(self._call.refusals)
        if not (lost or self._unknown or driver_lost) or self._has_call_in_progress(seconds=1.0):
            return False
        all_lost = driver_lost or len(lost) == len(samplers)
        pause = RESTART_SECONDS if all_lost else RESTART_SECONDS_BESIDE_HEALTHY
        return time.monotonic() - self._restarted_at >= pause

    def _restart(self) -> None:
        self._restarted_at = time.monotonic()
        samplers = list(self._samplers.values())
        for sampler in samplers:
            sampler.stop()
        deadline = time.monotonic() + RESTART_WAIT_SECONDS
        if all(sampler.join(deadline) for sampler in samplers):
            self._call("nvmlShutdown")
            self._initialised = False
            self._discover()  # starts the samplers again that have a GPU
        else:
            for sampler in samplers:
                sampler.start()

    def _has_call_in_progress(self, seconds: float) -> bool:
        return self._lookup.is_waiting or any(sampler.is_hanging(seconds) for sampler in self._samplers.values())


def _init_error_text(code: int) -> str:
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return _NO_LIBRARY
    return f"no GPU can be shown: {status_text(code)}"


def _vague_note(samplers: Iterable[DeviceSampler]) -> str | None:
    """Return one sentence on the calls that the driver refuses without a reason, if any."""
    functions = sorted({name for one in samplers for name in one.functions_refused_without_reason()})
    if not functions:
        return None
    return f"the driver reports an internal error for {', '.join(functions)}: what it gives is absent"


def _permission_note(samplers: Iterable[DeviceSampler]) -> str | None:
    """Return one sentence on what the driver keeps from this user, if anything."""
    functions = sorted(
        set().union(*(one.functions_refused_with(pynvml.NVML_ERROR_NO_PERMISSION) for one in samplers))
    )
    if not functions:
        return None
    return f"no permission for {', '.join(functions)}: what it gives is absent (run llmtop as root to see it)"
