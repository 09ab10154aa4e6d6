"""The hub: what every source knows at one instant, put together into a Snapshot and judged by the rules."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from collectors import base, stage
from collectors.base import GpuReading, GpuSource, RankSource, RanksReading
from collectors.gpu_selection import GpuSelection
from collectors.host import HostSource
from collectors.nvml import NvmlSource
from collectors.processes import ProcessSource
from collectors.stage import Stage
from collectors.steps import StepsSource
from llmtop.diagnosis.live import Rules
from llmtop.snapshot import Host, Process, Snapshot

ONCE_SECONDS = 4.0
"""How long `Hub.once` waits for values that need two samples (rates, shares of time)."""


def live_hub(
    *,
    interval: float = 1.0,
    selection: GpuSelection | None = None,
    directory: Path | None = None,
    taps: Sequence[Stage] = (),
) -> Hub:
    """The hub over this machine: its GPUs, itself, the processes and the attached trainings.

    Args:
        interval: seconds between snapshots.
        selection: which GPUs to show; by default those of CUDA_VISIBLE_DEVICES, or all.
        directory: of the trainings' sockets, `llmtop.wire.runtime_dir()` by default.
        taps: stages after the rules.
    """
    gpu = NvmlSource(interval)
    names = _GpuNames(gpu)
    ranks = StepsSource(directory, names)
    return Hub(
        gpu=gpu,
        host=HostSource(interval),
        processes=ProcessSource(lambda: gpu.latest().uses, ranks.pids, interval),
        ranks=ranks,
        rules=Rules().apply,
        interval=interval,
        selection=selection or GpuSelection.default(),
        taps=taps,
    )


class _GpuNames:
    """Names of GPUs by UUID, asked for once each."""

    def __init__(self, source: GpuSource) -> None:
        self._source = source
        self._names: dict[str, str] = {}

    def __call__(self, uuid: str) -> str | None:
        if uuid not in self._names:
            self._names |= {gpu.uuid: gpu.name for gpu in self._source.latest().gpus}
        return self._names.get(uuid)


class Hub:
    """A Feed over live sources.

    A round only collects what the sources have at hand, so rounds never overlap and a sick device delays none.
    Rounds keep an absolute schedule; those that a slow consumer made impossible are left out, not made up for.
    """

    def __init__(
        self,
        *,
        gpu: GpuSource,
        host: base.HostSource,
        processes: base.ProcessSource,
        ranks: RankSource,
        rules: Stage,
        interval: float = 1.0,
        selection: GpuSelection | None = None,
        taps: Sequence[Stage] = (),
    ) -> None:
        """Take the sources over; `start()` or `snapshots()` starts them, `close()` closes them.

        Args:
            rules: adds the alerts.
            interval: seconds between snapshots.
            selection: which GPUs to show; all, if not given.
            taps: stages after the rules, in order.
        """
        self._gpu, self._host, self._processes, self._ranks = gpu, host, processes, ranks
        self._stages: tuple[Stage, ...] = (rules, *taps)
        self._selection = selection or GpuSelection()
        self._interval = interval
        self._wake = threading.Condition()
        self._closed = False
        self._started = False
        self._thread: threading.Thread | None = None

    @property
    def interval(self) -> float:
        """Seconds between snapshots."""
        return self._interval

    def set_interval(self, seconds: float) -> None:
        """Change the rate from the next snapshot on."""
        with self._wake:
            self._interval = seconds
            self._wake.notify_all()
        for source in self._sources():
            source.set_interval(seconds)

    @property
    def selection(self) -> str:
        """Which GPUs are shown, in words."""
        return str(self._selection)

    def select(self, selection: str) -> None:
        """Show other GPUs from the next snapshot on: "all", "attached", or indices and UUIDs ("0,2").

        Raises:
            UnusableInput: none of these.
        """
        self._selection = GpuSelection.parse(selection)

    def start(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Call `on_snapshot` in a thread of the hub's own at every interval."""

        def run() -> None:
            for snapshot in self.snapshots():
                on_snapshot(snapshot)

        self._thread = threading.Thread(target=run, name="llmtop-hub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop and close the sources; no snapshot follows."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)
        if self._started:
            for source in self._sources():
                source.close()

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield a snapshot at every interval until `close()`, in the caller's thread."""
        self._start_sources()
        due = time.monotonic()
        while not self._closed:
            yield self.poll()
            due = self._wait_for_next(due)

    def once(self, seconds: float = ONCE_SECONDS) -> Snapshot:
        """Start the sources and return the first snapshot in which rates are known.

        Rates and shares of time need two samples of each source; after `seconds`, what there is has to do.
        """
        self._start_sources()
        deadline = time.monotonic() + seconds
        sampled: dict[str, set[float | None]] = {}
        while not self._closed:
            reading, host = self._gpu.latest(), self._host.latest()
            for gpu in reading.gpus:
                sampled.setdefault(gpu.uuid, set()).add(gpu.sampled_at)
            gpus_ready = bool(reading.gpus or reading.notes) and all(
                gpu.error is not None or len(sampled[gpu.uuid] - {None}) > 1 for gpu in reading.gpus
            )
            ready = gpus_ready and host.cpu_pct is not None and self._ranks.settled()
            if ready or time.monotonic() >= deadline:
                break
            self._pause(0.05)
        return self.poll()

    def poll(self) -> Snapshot:
        """Make one snapshot from what the sources have now."""
        reading, host = self._gpu.latest(), self._host.latest()
        ranks, processes = self._ranks.latest(), self._processes.latest()
        snapshot = self._compose(reading, host, processes, ranks)
        return stage.run(self._stages, snapshot)

    def _compose(
        self, reading: GpuReading, host: Host, processes: tuple[Process, ...], ranks: RanksReading
    ) -> Snapshot:
        chosen, left_out = self._selection.choose(reading.gpus, ranks.ranks)
        hidden = {gpu.uuid for gpu in reading.gpus} - {gpu.uuid for gpu in chosen}
        notes = (*host.notes, *reading.notes, *left_out, *ranks.notes)
        return Snapshot(
            time=time.time(),
            host=replace(
                host,
                notes=tuple(dict.fromkeys(notes)),
                driver_version=reading.driver_version or host.driver_version,
                cuda_version=reading.cuda_version or host.cuda_version,
            ),
            gpus=chosen,
            processes=tuple(process for process in processes if process.gpu_uuid not in hidden)
            if hidden
            else processes,
            ranks=ranks.ranks,
        )

    def _sources(self) -> tuple[GpuSource, base.HostSource, base.ProcessSource, RankSource]:
        return self._gpu, self._host, self._processes, self._ranks

    def _start_sources(self) -> None:
        if not self._started:
            self._started = True
            for source in self._sources():
                source.start()

    def _wait_for_next(self, due: float) -> float:
        """Sleep until the next round is due and return when that was, or as soon as the hub is closed."""
        with self._wake:
            while not self._closed:
                now = time.monotonic()
                missed = max(0, int((now - due) / self._interval))
                next_due = due + self._interval * max(1, missed)
                if now >= next_due:
                    return next_due
                self._wake.wait(next_due - now)
        return due

    def _pause(self, seconds: float) -> None:
        with self._wake:
            if not self._closed:
                self._wake.wait(seconds)
