"""The GPUs of this machine, through NVML.

One thread looks which GPUs there are and starts NVML again when it must be; every GPU is sampled in threads of its
own (nvml_device.py). NVML is never shut down while a thread is inside one of its calls: that crashes the process.
"""

from __future__ import annotations

import threading
import time

import pynvml

from collectors.base import GpuReading
from collectors.beat import Beat
from collectors.nvml_calls import Caller, error_text, is_lost, words
from collectors.nvml_device import DeviceSampler, permission_note
from llmtop.snapshot import Gpu

LOOK_SECONDS = 2.0
"""Between looks at which GPUs there are; also how soon a missing driver is tried again."""
RESTART_SECONDS = 5.0
"""NVML is started again no more often than this while no GPU answers."""
RESTART_SECONDS_BESIDE_HEALTHY = 60.0
"""And than this while some GPU answers, because all of them miss a round then."""
CLOSE_SECONDS = 0.8

_NO_LIBRARY = (
    "no NVIDIA driver here: libnvidia-ml.so.1 was not found, so no GPU can be shown "
    "(in a container, start it with --gpus all)"
)


class NvmlSource:
    """A GpuSource over NVML: every GPU that the driver lists, MIG instances after their GPU.

    A GPU that is lost stays in the reading with its error, and is read again once it answers.
    """

    def __init__(self, interval: float = 1.0) -> None:
        """Prepare to sample every `interval` seconds; touches no driver yet."""
        self._interval = interval
        self._call = Caller()
        self._watch = Beat("nvml", self._look, LOOK_SECONDS)
        self._samplers: dict[str, DeviceSampler] = {}
        self._unknown: tuple[Gpu, ...] = ()
        self._initialised = False
        self._looked = False
        self._problem: str | None = None
        self._versions: tuple[str | None, str | None] = (None, None)
        self._restarted_at = time.monotonic()
        self._closing = False

    def start(self) -> None:
        """Begin to look for a driver and its GPUs; what is missing becomes a note."""
        self._watch.start()

    def set_interval(self, seconds: float) -> None:
        """Change the pace of the cheap values; dear ones keep theirs."""
        self._interval = seconds
        for sampler in self._samplers.copy().values():
            sampler.set_interval(seconds)

    def latest(self) -> GpuReading:
        """What is known now; empty, without a note, until the driver has been asked for the first time."""
        samplers = sorted(self._samplers.copy().values(), key=lambda one: one.index)
        rows = [gpu for sampler in samplers for gpu in sampler.gpus()]
        rows += self._unknown
        rows.sort(key=lambda gpu: gpu.index)
        driver, cuda = self._versions
        return GpuReading(
            gpus=tuple(rows),
            uses=tuple(use for sampler in samplers for use in sampler.uses()),
            driver_version=driver,
            cuda_version=cuda,
            notes=self._notes(samplers, bool(rows)),
        )

    def close(self) -> None:
        """Stop; NVML is shut down unless a thread is still inside a call."""
        deadline = time.monotonic() + CLOSE_SECONDS
        self._closing = True
        self._watch.stop()
        samplers = list(self._samplers.copy().values())
        for sampler in samplers:
            sampler.stop()
        ended = self._watch.join(CLOSE_SECONDS / 2) and all(sampler.join(deadline) for sampler in samplers)
        if not (ended and self._initialised):
            return
        self._initialised = False
        # In a thread, because shutting down waits for the driver too.
        farewell = threading.Thread(target=Caller(), args=("nvmlShutdown",), name="llmtop-nvml-end", daemon=True)
        farewell.start()
        farewell.join(max(0.0, deadline - time.monotonic()))

    def _notes(self, samplers: list[DeviceSampler], any_gpu: bool) -> tuple[str, ...]:
        notes = [self._problem]
        waiting = self._call.waiting()
        if waiting is not None and waiting[1] > LOOK_SECONDS:
            notes.append(f"the driver has not answered {waiting[0]} for {waiting[1]:.0f} s")
        if self._looked and not any_gpu and self._problem is None:
            notes.append("the NVIDIA driver is here, but it lists no GPU")
        notes.append(permission_note(samplers))
        notes += [self._watch.fault, *(fault for sampler in samplers for fault in sampler.own_faults())]
        return tuple(dict.fromkeys(note for note in notes if note))

    # ---- the watching thread ----

    def _look(self) -> None:
        if not self._initialised:
            self._initialised = self._init()
        if self._initialised:
            self._find()
            if self._restart_due():
                self._restart()

    def _init(self) -> bool:
        call = self._call
        call.begin()
        call("nvmlInit")
        code = call.refusals.get("nvmlInit")
        self._problem = None if code is None else _init_words(code)
        if code is not None:
            return False
        cuda = call("nvmlSystemGetCudaDriverVersion")
        version = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        self._versions = (call("nvmlSystemGetDriverVersion"), version)
        return True

    def _find(self) -> None:
        """Ask which GPUs there are; those already known by UUID go on under their handle and index of now."""
        call = self._call
        call.begin()
        count = call("nvmlDeviceGetCount")
        self._problem = None if count is not None else words(call.refusals["nvmlDeviceGetCount"])
        unknown = []
        for index in range(count or 0):
            call.begin()
            handle = call("nvmlDeviceGetHandleByIndex", index)
            uuid = None if handle is None else call("nvmlDeviceGetUUID", handle)
            if uuid is not None:
                self._place(uuid, handle, index)
            elif all(sampler.index != index for sampler in self._samplers.values()):
                text = error_text(call.refusals) or "the driver does not say which GPU this is"
                unknown.append(Gpu(index=index, uuid=f"unknown-{index}", name="GPU", error=text))
        self._unknown = tuple(unknown)
        self._looked = True

    def _place(self, uuid: str, handle: object, index: int) -> None:
        sampler = self._samplers.get(uuid)
        if sampler is None:
            sampler = DeviceSampler(handle, index, uuid, self._interval)
            self._samplers = {**self._samplers, uuid: sampler}
        else:
            sampler.move(handle, index)
        if not self._closing:
            sampler.start()

    def _restart_due(self) -> bool:
        """Whether a GPU is lost and NVML, started again, might find it: it lists GPUs only when it starts."""
        samplers = self._samplers.values()
        lost = [sampler for sampler in samplers if sampler.lost]
        all_lost = is_lost(self._call.refusals) or len(lost) == len(samplers)
        if not (lost or self._unknown or is_lost(self._call.refusals)):
            return False
        if any(sampler.hanging(seconds=1.0) for sampler in samplers):
            return False
        pause = RESTART_SECONDS if all_lost else RESTART_SECONDS_BESIDE_HEALTHY
        return time.monotonic() - self._restarted_at >= pause

    def _restart(self) -> None:
        self._restarted_at = time.monotonic()
        samplers = list(self._samplers.values())
        for sampler in samplers:
            sampler.stop()
        deadline = time.monotonic() + 1.0
        if all(sampler.join(deadline) for sampler in samplers):
            self._call("nvmlShutdown")
            self._initialised = self._init()
            if self._initialised:
                self._find()  # starts the samplers that have a GPU again
                return
        if not self._closing:
            for sampler in samplers:
                sampler.start()  # a GPU that is no longer listed keeps its row, and says why in it


def _init_words(code: int) -> str:
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return _NO_LIBRARY
    return f"no GPU can be shown: {words(code)}"
