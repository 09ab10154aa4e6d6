"""Asking the driver which GPU is at which index, without waiting for one that does not answer."""

from __future__ import annotations

import threading
import time

from collectors.nvml.calls import Caller, error_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PATIENCE_SECONDS = 1.0
"""Time limit of an enumeration for all GPUs together. Without persistence mode a driver wakes each GPU up
first."""


class FoundGpus:
    """A GPU with a known UUID."""

    def __init__(self, handle: Any, uuid: str) -> None:
        self.handle, self.uuid = handle, uuid


class Lookup:
    """Asks for each GPU in a thread that lasts for the question, for use by one thread."""

    def __init__(self) -> None:
        self._open: dict[int, _IdentityQuery] = {}

    def ask(self, indices: Iterable[int]) -> dict[int, FoundGpus | str]:
        """Return the GPU at each index, or in words why it is unknown (yet)."""
        wanted = list(indices)
        for index in wanted:
            if index not in self._open:
                self._open[index] = _IdentityQuery(index)
                self._open[index].start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        return {index: self._answer(index, deadline) for index in wanted}

    @property
    def is_waiting(self) -> bool:
        """Return True if a thread is still inside a call."""
        return any(question.is_alive() for question in self._open.values())

    def _answer(self, index: int, deadline: float) -> FoundGpus | str:
        question = self._open[index]
        question.join(max(0.0, min(deadline, question.asked_at + PATIENCE_SECONDS) - time.monotonic()))
        if question.is_alive():
            return f"the driver has not answered for {time.monotonic() - question.asked_at:.0f} s who this GPU is"
        del self._open[index]
        return question.answer


class _IdentityQuery(threading.Thread):
    """One GPU asked who it is, in a thread: the driver may never answer."""

    def __init__(self, index: int) -> None:
        super().__init__(name=f"llmtop-gpu{index}-who", daemon=True)
        self._index = index
        self.asked_at = time.monotonic()
        self.answer: FoundGpus | str = "the driver does not say which GPU this is"

    def run(self) -> None:
        """Ask the driver for the handle and the UUID."""
        call = Caller()
        handle = call("nvmlDeviceGetHandleByIndex", self._index)
        uuid = None if handle is None else call("nvmlDeviceGetUUID", handle)
        if uuid is not None:
            self.answer = FoundGpus(handle, uuid)
        else:
            self.answer = error_text(call.refusals) or self.answer
