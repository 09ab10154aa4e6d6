"""Calls into NVML that never raise, and what its answers mean in words.

This and what else runs in the process that asks the driver (driver_child.py) imports little: msgspec, dataclasses
and typing would make it a third larger, and it is there for as long as the monitor.
"""

from __future__ import annotations

import ctypes
import time

import pynvml

from collectors.base.call_round import CallRound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

raw = ctypes.Structure.__getattribute__
"""Read a number of one of the binding's structures: its own `__getattribute__`, which decodes texts, takes ten
times as long, and a round of eight GPUs reads 600 numbers."""

LOST = frozenset({
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
})  # fmt: skip
"""Answers that mean the whole GPU, or the whole driver: asking for more values is in vain."""

ABSENT = frozenset({
    pynvml.NVML_ERROR_INVALID_ARGUMENT,  # a sensor or counter that this model does not know
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE,  # a list grew between asking for its length and its content
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_IN_USE,
    pynvml.NVML_ERROR_NO_DATA,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
    pynvml.NVML_ERROR_NOT_READY,
})  # fmt: skip
"""Answers that only mean that a value is not there. They differ per model, MIG instance and vGPU."""

_STATUS_TEXTS: dict[int, str] = {
    pynvml.NVML_ERROR_UNINITIALIZED: "NVML was shut down",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: "the driver does not know what it was asked about",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not supported",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission (the device files /dev/nvidia* must be readable and writable)",
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "a power cable of the GPU is not attached properly",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded (try: sudo modprobe nvidia)",
    pynvml.NVML_ERROR_TIMEOUT: "the driver gave up waiting for the GPU",
    pynvml.NVML_ERROR_IRQ_ISSUE: "the kernel has a problem with the GPU's interrupts",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "this driver is too old: it lacks a function",
    pynvml.NVML_ERROR_CORRUPTED_INFOROM: "the GPU's InfoROM is corrupted",
    pynvml.NVML_ERROR_GPU_IS_LOST: "GPU is lost: it fell off the bus or does not answer (see dmesg for its Xid)",
    pynvml.NVML_ERROR_RESET_REQUIRED: "GPU must be reset before it can be used (nvidia-smi --gpu-reset)",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: "the operating system refused the driver's call",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver was updated under the running kernel module: reboot, or reload the module"
    ),
    pynvml.NVML_ERROR_IN_USE: "in use by another program",
    pynvml.NVML_ERROR_MEMORY: "the driver is out of memory",
    pynvml.NVML_ERROR_GPU_NOT_FOUND: "the driver finds no GPU there",
    pynvml.NVML_ERROR_INVALID_STATE: "the GPU is in a state that does not allow it",
    pynvml.NVML_ERROR_UNKNOWN: "the driver reports an internal error",
}


def status_text(code: int) -> str:
    """Return the meaning of an nvmlReturn; a number that this version does not know is given as such."""
    return _STATUS_TEXTS.get(code, f"NVML answered with error {code}")


def is_unspecific(code: int) -> bool:
    """Return True if a refusal names neither a reason nor a lost device: NVML's unknown error, and numbers
    unknown here."""
    return code == pynvml.NVML_ERROR_UNKNOWN or (code not in _STATUS_TEXTS and code not in ABSENT)


def error_text(refusals: Mapping[str, int], *, answered: bool = False) -> str | None:
    """Return the most severe refusal of a round in words; None when at most some values are absent.

    Where other calls were `answered`, a vague refusal costs its own value and no more.
    """
    if not refusals:
        return None
    for code in sorted(LOST.intersection(refusals.values()), reverse=True):
        return status_text(code)
    for call, code in refusals.items():
        if code in ABSENT or code == pynvml.NVML_ERROR_NO_PERMISSION or (answered and is_unspecific(code)):
            continue
        return f"{status_text(code)} ({call})"
    return None


def is_lost(refusals: Mapping[str, int]) -> bool:
    """Return True if one of a round's answers concerns the whole GPU or driver."""
    return not LOST.isdisjoint(refusals.values())


class Caller(CallRound):
    """Makes calls for one thread."""

    def __call__(self, name: str, *args: Any) -> Any:
        """Call a function of pynvml; None when it is refused, and `refusals` then has the reason."""
        self._inside = (name, time.monotonic())
        try:
            answer = getattr(pynvml, name)(*args)
            self.answered = True
            return answer
        except pynvml.NVMLError as error:
            self.refusals[name] = error.value
        except AttributeError:  # an older nvidia-ml-py
            self.refusals[name] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        except UnicodeDecodeError:  # a name or UUID of rubbish, as from a GPU whose InfoROM is damaged
            self.refusals[name] = pynvml.NVML_ERROR_CORRUPTED_INFOROM
        finally:
            self._inside = None
        return None

    def first(self, names: tuple[str, ...], *args: Any) -> Any:
        """Call the first of several names of one function that this driver has."""
        for name in names:
            answer = self(name, *args)
            if answer is not None or self.refusals.get(name) != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                return answer
        return None

    @property
    def is_lost(self) -> bool:
        """Return True if a call of this round was answered with the loss of the GPU (`is_lost`)."""
        return is_lost(self.refusals)
