"""A script below `llmtop run` that runs out of memory on a GPU that is not there: torch's error, a made snapshot.

Arguments: what it does with the error, "dies", "wraps" (raises another because of it), "catches", "exits", "other"
(catches it, and dies of something else) or "again" (catches it and so many others, and dies of the next);
"history" has the script record the allocator's history itself.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch

from tests.support.memory_allocator import MIB, STEP, Allocator

observers: list[Any] = []
history = {"on": False, "by": ""}
allocator = Allocator(capacity=100 * MIB)


def pretend_cuda() -> None:
    """Stand in for what only a torch with CUDA has."""

    def record(enabled: Any = None, **_: Any) -> None:
        history["on"] = enabled is not None

    def segments(*, include_traces: bool) -> Any:
        assert not include_traces
        return allocator.snapshot()["segments"]

    def snapshot() -> Any:
        data = allocator.snapshot()
        del data["llmtop"]
        return data if history["on"] else data | {"device_traces": [[]]}

    torch._C._cuda_attach_out_of_memory_observer = observers.append  # type: ignore[attr-defined]
    torch._C._cuda_isHistoryEnabled = lambda: history["on"]  # type: ignore[attr-defined]
    torch.cuda.memory._record_memory_history = record  # type: ignore[assignment]
    torch.cuda.memory._snapshot = snapshot  # type: ignore[assignment]
    torch.cuda.memory.memory_snapshot = segments  # type: ignore[assignment]


def initialise_cuda() -> None:
    """As torch does it: what was put off until now is called."""
    for call, _ in torch.cuda._queued_calls:
        if call.__module__.startswith("llmtop"):
            call()


def allocate(size: int) -> None:
    """Allocate as torch does, with its error."""
    try:
        allocator.alloc(size, STEP)
    except MemoryError:
        for observer in observers:
            observer(0, size, 100 * MIB, 12345)
        raise torch.cuda.OutOfMemoryError("CUDA out of memory") from None


def main() -> None:
    """Run out of memory, twice."""
    what = sys.argv[1]
    from llmtop.instrument.control import out_of_memory

    pretend_cuda()
    out_of_memory.watch()  # once more: this torch had no observers when it was imported
    assert not observers, "attached before CUDA was initialised"
    if "history" in sys.argv:
        history["on"] = True
    initialise_cuda()
    assert len(observers) == 1
    print("history", history["on"], flush=True)
    allocate(40 * MIB)
    try:
        allocate(90 * MIB)
    except torch.cuda.OutOfMemoryError as error:
        if what == "wraps":
            raise RuntimeError("the trainer failed") from error
        if what == "dies":
            raise
        if what == "exits":
            sys.exit(1)
    if what == "again":
        for _ in range(int(sys.argv[2])):
            with contextlib.suppress(torch.cuda.OutOfMemoryError):
                allocate(80 * MIB)
        allocate(70 * MIB)
    if what == "other":
        raise ValueError("something else")


if __name__ == "__main__":
    main()
