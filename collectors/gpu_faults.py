"""What a GPU reports about itself besides its values: Xid errors and memory faults, in words."""

from __future__ import annotations

import time
from collections import deque

import pynvml

from collectors.nvml_calls import ABSENT, Caller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

XID_KEPT_SECONDS = 600.0
"""An Xid is an event, not a state: it is shown for ten minutes."""

# Short meanings after NVIDIA's "Xid Errors" catalogue; (program) marks those that are usually a program's fault.
_XIDS = {
    13: "graphics engine exception (program)",
    31: "memory page fault: a kernel used a bad address (program)",
    32: "corrupted push buffer",
    38: "driver firmware error",
    43: "a kernel was stopped after a fault (program)",
    45: "a program's work was cleaned up after it was killed or failed (program)",
    48: "uncorrectable (double-bit) memory error",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt: reset the GPU",
    63: "a memory row was marked for remapping",
    64: "a memory row could not be marked for remapping",
    68: "video processor exception",
    69: "graphics engine class error (program)",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of correctable memory errors",
    94: "contained memory error: one program was ended",
    95: "uncontained memory error: reset the GPU",
    109: "context switch timed out",
    119: "the GPU's system processor did not answer",
    120: "the GPU's system processor failed",
    121: "C2C link error",
    137: "NVLink fault in a program's access (program)",
    140: "unrecovered memory error",
    143: "the GPU could not be initialised",
    145: "NVLink link error",
    149: "NVLink interface error",
    154: "the GPU asks for a recovery action (nvidia-smi -q, GPU Recovery Action)",
}


def xid_text(number: int) -> str:
    """An Xid with its short meaning."""
    return f"Xid {number}: {_XIDS.get(number, 'see the Xid catalogue of NVIDIA')}"


class _Xid:
    def __init__(self, number: int, at: float) -> None:
        self.number, self.at = number, at


class Events:
    """Listens for one GPU's Xid errors, for use by one thread.

    A set of events a GPU, asked without waiting: so a GPU that hangs keeps no other's events back.
    """

    def __init__(self, call: Caller) -> None:
        self._call = call
        self._set: Any = None
        self._refused = False
        self._xids: deque[_Xid] = deque(maxlen=3)

    def poll(self, handle: Any) -> None:
        """Take what has happened since the last time; registers at the first."""
        if self._refused or (self._set is None and not self._register(handle)):
            return
        for _ in range(16):  # a storm of events must not keep the round from ending
            event = self._call("nvmlEventSetWait_v2", self._set, 0)
            if event is None:
                break
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                self._xids.append(_Xid(event.eventData, time.time()))
        # "Nothing happened" is how a wait of no time normally ends.
        if self._call.refusals.get("nvmlEventSetWait_v2") == pynvml.NVML_ERROR_TIMEOUT:
            del self._call.refusals["nvmlEventSetWait_v2"]

    def texts(self) -> list[str]:
        """What happened within `XID_KEPT_SECONDS`, oldest first, with the local time."""
        since = time.time() - XID_KEPT_SECONDS
        return [
            f"{xid_text(xid.number)} at {time.strftime('%H:%M:%S', time.localtime(xid.at))}"
            for xid in list(self._xids)
            if xid.at >= since
        ]

    def free(self) -> None:
        """Stop listening; `poll` registers again. What was heard stays."""
        if self._set is not None:
            self._call("nvmlEventSetFree", self._set)
        self._set, self._refused = None, False

    def _register(self, handle: Any) -> bool:
        known = self._call("nvmlDeviceGetSupportedEventTypes", handle)
        self._refused = self._has_none("nvmlDeviceGetSupportedEventTypes")
        if known is None or not known & pynvml.nvmlEventTypeXidCriticalError:
            return False
        fresh = self._call("nvmlEventSetCreate")
        if fresh is None:
            return False
        self._call("nvmlDeviceRegisterEvents", handle, pynvml.nvmlEventTypeXidCriticalError, fresh)
        if "nvmlDeviceRegisterEvents" in self._call.refusals:
            self._call("nvmlEventSetFree", fresh)
            self._refused = self._has_none("nvmlDeviceRegisterEvents")
            return False
        self._set = fresh
        return True

    def _has_none(self, call: str) -> bool:
        """Whether the answer means that this GPU has no events (a vGPU), so that asking again is in vain."""
        return self._call.refusals.get(call) in ABSENT


def memory_faults(call: Caller, handle: Any) -> list[str]:
    """Uncorrectable errors since the driver was loaded, and repairs that wait for a reset, in words."""
    texts = []
    count = call(
        "nvmlDeviceGetTotalEccErrors",
        handle,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    if count:
        texts.append(f"{count} uncorrectable memory error{'s' * (count > 1)} since the driver was loaded")
    remapped = call("nvmlDeviceGetRemappedRows", handle)  # Ampere and newer
    if remapped is not None:
        _, _, pending, failure = remapped
        if failure:
            texts.append("a memory row could not be remapped: the GPU may need replacing")
        elif pending:
            texts.append("a memory row waits to be remapped: reset the GPU when its work is done")
    elif call("nvmlDeviceGetRetiredPagesPendingStatus", handle):
        texts.append("memory pages wait to be retired: reset the GPU when its work is done")
    return texts
