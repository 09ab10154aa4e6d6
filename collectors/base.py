"""What a source is, and what each one gives.

A source does all its slow work in threads of its own; `latest()` only hands over what is there. So a sick GPU, a
slow driver call or a stuck file system delays nothing but its own values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from llmtop.snapshot import Gpu, Host, Process, Rank, Snapshot

Reading_co = TypeVar("Reading_co", covariant=True)


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU, as the driver lists it."""

    pid: int
    gpu_uuid: str
    mem_bytes: int | None = None
    sm_pct: float | None = None


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says: GPUs in index order, MIG instances after their parent, and who uses them."""

    gpus: tuple[Gpu, ...] = ()
    uses: tuple[GpuUse, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    notes: tuple[str, ...] = ()
    """Sentences for the person at the screen: no driver, no GPU, which GPUs are left out and why."""


class RanksReading(msgspec.Struct, frozen=True, kw_only=True):
    """Every training process that this monitor knows of, gone ones included for a while."""

    ranks: tuple[Rank, ...] = ()
    notes: tuple[str, ...] = ()


class Source(Protocol[Reading_co]):
    """A live source."""

    def start(self) -> None:
        """Begin to sample. Never raises for what the system lacks: that becomes a note or an error text."""

    def latest(self) -> Reading_co:
        """What is known now; returns at once."""

    def close(self) -> None:
        """Stop sampling; returns within a second even if a driver call hangs."""


GpuSource = Source[GpuReading]
HostSource = Source[Host]
ProcessSource = Source[tuple[Process, ...]]


class RankSource(Source[RanksReading], Protocol):
    """The steps collector: `latest()` moves on, so each step is handed over once."""


class Feed(Protocol):
    """Where a screen or a stream gets its snapshots: the live hub, or a recording being replayed."""

    def start(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Begin; `on_snapshot` is called in the feed's thread and must return quickly."""

    def close(self) -> None:
        """Stop; no call of `on_snapshot` follows."""

    @property
    def interval(self) -> float:
        """Seconds between snapshots."""

    def set_interval(self, seconds: float) -> None:
        """Change the rate from the next snapshot on."""
