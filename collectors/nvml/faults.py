"""Faults that a GPU reports besides its values: Xid errors and memory faults, in words."""

from __future__ import annotations

import time

import pynvml

from collectors.nvml.calls import ABSENT, Caller
from llmtop.hardware.gpu_errors import severity_of, xid_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

XID_RETENTION_SECONDS = 600.0
"""An Xid is an event, not a state: it is shown for ten minutes."""
MAX_XIDS = 4
"""Most different Xids kept; of more, the severe ones stay."""


class XidEvents:
    """Listens for one GPU's Xid errors, for use by one thread.

    A set of events a GPU, asked without waiting: so a GPU that hangs keeps no other's events back.
    """

    def __init__(self, call: Caller) -> None:
        self._call = call
        self._set: Any = None
        self._refused = False
        self._xids: dict[int, tuple[float, float]] = {}
        """Time of the last event by Xid number, oldest first: in unix seconds for display, and in monotonic
        seconds."""

    def poll(self, handle: Any) -> None:
        """Take what has happened since the last time; registers at the first."""
        if self._refused or (self._set is None and not self._register(handle)):
            return
        for _ in range(16):  # a storm of events must not keep the round from ending
            event = self._call("nvmlEventSetWait_v2", self._set, 0)
            if event is None:
                break
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                self._take(event.eventData)
        # "Nothing happened" is how a wait of no time normally ends.
        if self._call.refusals.get("nvmlEventSetWait_v2") == pynvml.NVML_ERROR_TIMEOUT:
            del self._call.refusals["nvmlEventSetWait_v2"]

    def texts(self) -> list[str]:
        """Return the faults within `XID_RETENTION_SECONDS`, oldest first, with the local time."""
        since = time.monotonic() - XID_RETENTION_SECONDS
        return [
            f"{xid_text(number)} at {time.strftime('%H:%M:%S', time.localtime(at))}"
            for number, (at, heard) in self._xids.copy().items()
            if heard >= since
        ]

    def free(self) -> None:
        """Stop listening; `poll` registers again. Received events stay."""
        if self._set is not None:
            self._call("nvmlEventSetFree", self._set)
        self._set, self._refused = None, False

    def _take(self, number: int) -> None:
        """Keep an Xid. Many of one number (each of a killed program's channels has its own) drive out no other."""
        kept = {one: times for one, times in self._xids.items() if one != number}
        if len(kept) >= MAX_XIDS:
            del kept[min(kept, key=lambda one: severity_of(xid_text(one)) == "critical")]  # the oldest of those
        self._xids = {**kept, number: (time.time(), time.monotonic())}

    def _register(self, handle: Any) -> bool:
        known = self._call("nvmlDeviceGetSupportedEventTypes", handle)
        self._refused = self._lacks_events("nvmlDeviceGetSupportedEventTypes")
        if known is None or not known & pynvml.nvmlEventTypeXidCriticalError:
            return False
        fresh = self._call("nvmlEventSetCreate")
        if fresh is None:
            return False
        self._call("nvmlDeviceRegisterEvents", handle, pynvml.nvmlEventTypeXidCriticalError, fresh)
        if "nvmlDeviceRegisterEvents" in self._call.refusals:
            self._call("nvmlEventSetFree", fresh)
            self._refused = self._lacks_events("nvmlDeviceRegisterEvents")
            return False
        self._set = fresh
        return True

    def _lacks_events(self, call: str) -> bool:
        """Return True if the answer means that this GPU has no events (a vGPU), so that asking again is in
        vain."""
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
