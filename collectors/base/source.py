"""Interface of a source, and the data of each.

A source does all its slow work in threads of its own; `latest()` only hands over what is there. So a sick GPU, a
slow driver call or a stuck file system delays nothing but its own values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from llmtop.model.snapshot import Gpu, Host, Process, Rank, Snapshot

Reading_co = TypeVar("Reading_co", covariant=True)


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a GPU, as the driver lists it."""

    pid: int
    """Pid on this host."""
    gpu_uuid: str
    """UUID of the MIG instance, where the GPU has any."""
    mem_bytes: int | None = None
    """GPU memory that the process has."""
    sm_pct: float | None = None
    """Share of the time since the round before in which its kernels ran, as the driver reckons."""
    computes: bool = True
    """True if it has a context to compute in; a desktop only draws."""


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """Reading of the driver: GPUs in index order, MIG instances after their parent, and their processes."""

    gpus: tuple[Gpu, ...] = ()
    uses: tuple[GpuUse, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    notes: tuple[str, ...] = ()
    """Sentences for the person at the screen: no driver, no GPU, which GPUs are left out and why."""
    settled: bool = True
    """True if everything that needs two samples has had them, or has had its chance."""


class RanksReading(msgspec.Struct, frozen=True, kw_only=True):
    """Training processes that this monitor knows, ended ones included for a while."""

    ranks: tuple[Rank, ...] = ()
    notes: tuple[str, ...] = ()


class Source(Protocol[Reading_co]):
    """Something that is sampled in threads of its own: GPUs, this machine, processes, trainings."""

    def start(self) -> None:
        """Begin to sample. Never raises for what the system lacks: that becomes a note or an error text."""

    def set_interval(self, seconds: float) -> None:
        """Change the poll interval.

        Args:
            seconds: between samples from now on; a source may have a shortest interval of its own.
        """

    def latest(self) -> Reading_co:
        """Return the newest reading; returns at once, and starts no sampling."""

    def close(self) -> None:
        """Stop sampling; returns within a second even if a driver call hangs."""


class TimedSource(Source[Reading_co], Protocol[Reading_co]):
    """A source whose readings have a time."""

    def read_at(self) -> float | None:
        """Return when what `latest()` gives was read: seconds of the monotonic clock; None before the first
        time."""


GpuSource = Source[GpuReading]
HostSource = TimedSource[Host]
ProcessSource = TimedSource[tuple[Process, ...]]


class RankSource(Source[RanksReading], Protocol):
    """The steps collector: `latest()` moves on, so each step is handed over once."""

    def is_settled(self) -> bool:
        """True once each training found at the start has sent a message or has reached its time limit."""

    def pids(self) -> tuple[int, ...]:
        """This host's pids of the trainings that have not ended."""


class Feed(Protocol):
    """Where a screen or a stream gets its snapshots: the live hub, or a recording being replayed."""

    def start(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Begin to make snapshots, in a thread of the feed's own.

        Args:
            on_snapshot: called in that thread with each; must return quickly.
        """

    def close(self) -> None:
        """Stop; no call of `on_snapshot` follows."""

    @property
    def interval(self) -> float:
        """Seconds between two snapshots."""

    def set_interval(self, seconds: float) -> None:
        """Change the snapshot interval.

        Args:
            seconds: between snapshots, from the next one on. A replay keeps the recorded interval.
        """


@runtime_checkable
class GpuChoice(Protocol):
    """Optional interface of the live hub: which GPUs its snapshots hold. A screen asks with isinstance()."""

    @property
    def selection(self) -> str:
        """Return the selection in words, for the status line: "all", "attached", or the requested one ("0,2")."""

    def select(self, selection: str) -> None:
        """Show "all", "attached" (those that attached trainings use), or the listed indices and UUIDs.

        Raises:
            UnusableInput: none of these.
        """


@runtime_checkable
class ReplayControls(Protocol):
    """Optional interface of a feed over a recording. A screen asks with isinstance(); all calls return at once."""

    @property
    def position(self) -> float:
        """Seconds from the first snapshot of the recording to the one shown now."""

    @property
    def length(self) -> float:
        """Seconds from the first snapshot to the last; grows while the recording is still being written."""

    @property
    def started_at(self) -> float:
        """Unix time of the first snapshot, in seconds."""

    @property
    def paused(self) -> bool:
        """Return True if the person (not the end of the recording) stopped it."""

    @property
    def ended(self) -> bool:
        """Return True if the last snapshot has been shown."""

    @property
    def speed(self) -> float:
        """How many times faster than it was recorded the recording is played."""

    def toggle(self) -> None:
        """Pause, or go on; at the end, start again from the beginning."""

    def set_speed(self, speed: float) -> None:
        """Change the speed; it is held between `MIN_SPEED` and `MAX_SPEED` (collectors/replay.py)."""

    def seek(self, seconds: float) -> None:
        """Jump to a position; paused or not stays as it was.

        The feed's thread then calls what `on_jump` was given, and `on_snapshot` with the snapshot at the new
        position.

        Args:
            seconds: from the first snapshot of the recording; held within it.
        """

    def on_end(self, callback: Callable[[], None]) -> None:
        """Register `callback`, called in the feed's thread each time the last snapshot has been shown."""

    def on_jump(self, callback: Callable[[list[Snapshot]], None]) -> None:
        """Register `callback`, called after each jump, in the feed's thread, with the snapshots that lie before
        the new position (up to `HISTORY_SECONDS`, oldest first, alerts included), to build histories anew
        from."""
