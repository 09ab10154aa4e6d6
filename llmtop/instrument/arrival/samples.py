"""The stamps of the last sampled steps."""

from __future__ import annotations

from typing import NamedTuple

KEPT = 128


class Sample(NamedTuple):
    """The stamps of one step by their name."""

    step: int
    """Its index."""
    host_ns: dict[str, int]
    """Stamps by this host's monotonic clock."""
    gpu_ns: dict[str, int]
    """Stamps by CUDA events; empty without a GPU."""
    on_host_clock: bool
    """True if these are on the host's clock too; else from a zero of their own."""
    waited_host_ns: int | None = None
    """How long the host waited for other ranks in the step; None where that was not seen."""
    waited_gpu_ns: int | None = None
    """How long the computing stream did, by CUDA events; known of fewer steps."""


class Samples:
    """The last samples; written by the training thread, read by the server thread, as `ring.Ring`."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[Sample | None] = [None] * KEPT

    def add(self, sample: Sample) -> None:
        """Keep one more; the oldest go when there are `KEPT`."""
        self._kept[self.count % KEPT] = sample
        self.count += 1

    def read(self, first: int) -> tuple[int, list[Sample]]:
        """Return all samples from number `first` on that are kept, and the number after the last of them."""
        stop = self.count
        kept = [self._kept[number % KEPT] for number in range(max(first, stop - KEPT + 1, 0), stop)]
        return stop, [sample for sample in kept if sample is not None]
