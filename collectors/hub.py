"""The hub: what every source knows at one instant, put together into a Snapshot and judged by the rules."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from collectors.base import pipeline
from collectors.base.feed_thread import FeedThread
from collectors.base.interruptible_sleep import InterruptibleSleep
from collectors.base.malloc import reduce_cycle_collections, release_free_memory, share_one_heap
from collectors.base.periodic_thread import WARM_PACE_SECONDS, last_tick
from collectors.base.pipeline import EndingStage, Stage
from collectors.base.source import GpuReading, GpuSource, HostSource, ProcessSource, RankSource, RanksReading
from collectors.gpu.selection import GpuSelection, with_whole_uuids
from llmtop import config
from llmtop.model import jobs
from llmtop.model.snapshot import Host, Process, Snapshot, Step

if TYPE_CHECKING:
    from collectors.run_notes.stage import KeepRuns

ONCE_SECONDS = 4.0
"""How long `Hub.first_snapshot` waits for values that need two samples (rates, shares of time)."""

FIRST_SECONDS = 1.0
"""How long the first snapshot waits for the driver's first answer."""
DRIVER_SECONDS = 10.0
"""How long `Hub.first_snapshot` waits for it: by then the driver's source has GPUs, or a note that the driver has
not answered (SILENT_HEARTBEATS). Without either, the machine would seem to have no GPUs."""

SAMPLING_DELAY_SECONDS = 0.2
"""Rounds trail the instants at which the sources read by so much, or by a quarter of a shorter interval, so that
what they put together is of that instant and not of one interval before."""
TIDY_SECONDS = 60.0
"""How often the heap is tidied; it takes some ms."""
RANKS_SECONDS = 1.0
"""How often a screen reads from the trainings at most, however often GPUs are sampled: each message costs a
training a wake of the thread that sends it, and a screen that is drawn more often must not cost it more."""
_JITTER_SECONDS = 0.05
PATIENCE_SECONDS = 0.8
"""And wait for so long after that instant for a source that has not read yet. Nothing shown is a second old."""


class Sources(NamedTuple):
    """Sources that a hub combines, and the rules that judge the snapshot."""

    gpu: GpuSource
    host: HostSource
    processes: ProcessSource
    ranks: RankSource
    rules: Stage
    before_rules: tuple[Stage, ...] = ()
    """Stage that adds to a complete snapshot."""
    paced_rules: Stage | None = None
    """The same rules, for a stream of snapshots that may follow each other soon; None: `rules`."""
    paces_trainings: bool = False
    """True if a stream of snapshots reads from trainings once in `RANKS_SECONDS` at most."""
    keep_runs: KeepRuns | None = None
    """Writes into the runs of trainings what rules and sources found."""


def live_sources(
    interval: float,
    directory: Path | None = None,
    *,
    all_users: bool = False,
    engines: bool = True,
    on_every_node: bool = False,
    sample_loaders: bool = True,
    unattended: bool = False,
    paces_trainings: bool = False,
    keep_runs: bool = False,
) -> Sources:
    """Return the sources of this machine: its GPUs, the host, the processes and the attached trainings.

    Args:
        interval: seconds between snapshots.
        directory: of the trainings' sockets, `llmtop.protocol.socket_dir.runtime_dir()` by default.
        all_users: root listens to the trainings of every user, each in his own folder. NCCL is not asked then:
            where to ask stands in a process's environment, which is another user's word.
        engines: whether to find out what can capture each training.
        sample_loaders: whether trainings that wait for data are sampled, unless the configuration forbids it.
        unattended: there is no screen, so that trainings may send several steps at once.
        paces_trainings: as of `Sources`: for a screen, which then shows the last values until they are read again.
        keep_runs: whether GPU signals, alerts and captures are written beside the runs of trainings.
        on_every_node: whether the other nodes of the job run such a hub too, so that they query NCCL in turn.
    """
    # psutil and the rules take some 40 ms to import: a screen paints its first frame before.
    from collectors.base.gpu_lookup import GpuLookup
    from collectors.dcgm.activity import DcgmActivity
    from collectors.driver.all_gpus import AllGpus
    from collectors.gpu_busy import GpuBusy
    from collectors.machine.host import HostSource
    from collectors.machine.processes import ProcessSource
    from collectors.run_notes.stage import KeepRuns
    from collectors.trainings.all_users import AllUsersSource
    from collectors.trainings.source import EVERY_MS, UNATTENDED_EVERY_MS, StepsSource, held_ms
    from llmtop.rules.engine import Rules

    of_user = () if all_users else _of_user(sample_loaders=sample_loaders, on_every_node=on_every_node)
    gpu, rules = AllGpus(interval), Rules()
    lookup = GpuLookup(gpu.latest)
    every_ms = UNATTENDED_EVERY_MS if unattended else EVERY_MS if paces_trainings else held_ms(interval)
    ranks: RankSource = (
        AllUsersSource(lookup) if all_users else StepsSource(directory, lookup, engines=engines, every_ms=every_ms)
    )
    return Sources(
        gpu=gpu,
        host=HostSource(interval),
        processes=ProcessSource(lambda: gpu.latest().uses, ranks.pids, interval),
        ranks=ranks,
        rules=rules.apply,
        paced_rules=rules.apply_paced,
        before_rules=(
            GpuBusy(),
            DcgmActivity(),
            *of_user,
        ),
        paces_trainings=paces_trainings,
        keep_runs=KeepRuns() if keep_runs else None,
    )


def _of_user(*, sample_loaders: bool, on_every_node: bool) -> tuple[Stage, ...]:
    """Return the stages that look at processes of this user."""
    from collectors.nccl_ras.stage import NcclRas
    from collectors.trainings.loading import LoaderCosts
    from collectors.trainings.run_references import RunReferences

    settings = config.current()
    stages: list[Stage] = [NcclRas(on_every_node=on_every_node)]
    if sample_loaders and settings.look_at_loaders:
        stages.append(LoaderCosts())
    if settings.alerts.slower.earlier_runs:
        stages.append(RunReferences())
    return tuple(stages)


def live_hub(
    *,
    interval: float = 1.0,
    selection: GpuSelection | None = None,
    stages: Sequence[Stage] = (),
    whole: bool = False,
    make_sources: Callable[[float], Sources] = live_sources,
) -> Hub:
    """Return a hub over the sources of this machine; nothing is sampled before `Hub.start`.

    Args:
        interval: seconds between snapshots.
        selection: which GPUs to show; None: those of CUDA_VISIBLE_DEVICES, or all.
        stages: run on each snapshot after the rules, in this order.
        whole: wait with the first snapshot until rates are known; always so where there are stages.
        make_sources: called once with the interval, in the thread that starts the sources.
    """
    share_one_heap()
    return Hub(make_sources, interval=interval, selection=selection, stages=stages, whole=whole)


class Hub:
    """A Feed over live sources.

    A round only collects what the sources have at hand, so rounds never overlap and a sick device delays none by
    more than `PATIENCE_SECONDS`. Rounds keep the schedule of the sources' polls, which they follow; those that a
    slow consumer made impossible are left out, not made up for.
    """

    def __init__(
        self,
        make_sources: Callable[[float], Sources],
        *,
        interval: float = 1.0,
        selection: GpuSelection | None = None,
        stages: Sequence[Stage] = (),
        whole: bool = False,
    ) -> None:
        """Store how to make the sources; the thread that starts them makes them.

        Args:
            make_sources: called once, with the interval.
            interval: seconds between snapshots.
            selection: which GPUs to show; by default those of CUDA_VISIBLE_DEVICES, or all.
            stages: stages after the rules, in order.
            whole: wait with the first snapshot until rates are known, as always with further stages.
        """
        self._whole = whole or bool(stages)
        self._sampled: dict[str, set[float | None]] = {}
        self._make_sources = make_sources
        self._stages = tuple(stages)
        self._selection = selection or GpuSelection.default()
        self._interval = interval
        self._lock = threading.Lock()
        self._wake = InterruptibleSleep()
        self._closed = False
        self._sources: Sources | None = None
        self._kept: dict[tuple[str, int], tuple[Step, ...]] = {}
        """Steps that came until rates were known, by host and pid, those from before this monitor among them."""
        self._ranks: RanksReading | None = None
        """Last reading of the trainings without what is handed over once."""
        self._ranks_read_at = 0.0
        """Monotonic seconds."""
        self._thread = FeedThread("llmtop-hub")

    @property
    def interval(self) -> float:
        """Seconds between two snapshots."""
        return self._interval

    def set_interval(self, seconds: float) -> None:
        """Change the snapshot interval, and the poll interval of the sources that are running.

        Args:
            seconds: between snapshots, from the next one on.
        """
        with self._lock:
            self._interval = seconds
            self._wake.set()
            if self._sources is not None:
                for source in self._sources[:4]:
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
        self._thread.start(self._run, on_snapshot)

    def close(self) -> None:
        """Stop and close the sources; no snapshot follows."""
        with self._lock:
            self._closed = True
            self._wake.set()
        self._thread.wait_for_end()
        before_rules = () if self._sources is None else self._sources.before_rules
        for stage in (*before_rules, *self._stages):
            if isinstance(stage, EndingStage):
                stage.end()
        if self._sources is not None:
            if self._sources.keep_runs is not None:
                self._sources.keep_runs.close()
            for source in self._sources[:4]:
                source.close()

    def first_snapshot(self, seconds: float = ONCE_SECONDS) -> Snapshot:
        """Start the sources and return the first snapshot in which rates are known.

        Args:
            seconds: the longest wait. Rates and shares of time need two samples of each source; a source without
                them by then has None in the snapshot.
        """
        begun = time.monotonic()
        self._wait_for_rates(begun + seconds)
        self._wait_for_driver(begun + max(seconds, DRIVER_SECONDS))
        return self.poll(with_earlier=True)

    def poll(self, *, with_earlier: bool = False, is_paced: bool = False) -> Snapshot:
        """Make one snapshot from what the sources have now; starts them if nothing has.

        Args:
            with_earlier: whether the rules judge the steps first that trainings made before this monitor started.
            is_paced: whether every second snapshot may have the alerts of the one before, where they follow soon.
        """
        sources = self._start_sources()
        reading, host = sources.gpu.latest(), sources.host.latest()
        ranks = (
            self._paced_ranks(sources.ranks) if is_paced and sources.paces_trainings else sources.ranks.latest()
        )
        processes = sources.processes.latest()
        snapshot = self._compose(reading, host, processes, ranks)
        kept = () if sources.keep_runs is None else (sources.keep_runs,)
        rules = (is_paced and sources.paced_rules) or sources.rules
        if with_earlier:
            rules = partial(self._judge_from_first_step, rules)
        return pipeline.run((*sources.before_rules, rules, *kept, *self._stages), snapshot)

    def _paced_ranks(self, source: RankSource) -> RanksReading:
        """Read from the trainings if the next snapshot came more than `RANKS_SECONDS` after the last reading."""
        now = time.monotonic()
        age = now - self._ranks_read_at
        if self._ranks is not None and age + self._interval <= RANKS_SECONDS + _JITTER_SECONDS:
            return self._ranks
        reading = source.latest()
        self._ranks_read_at, self._ranks = now, None
        if self._interval < RANKS_SECONDS:
            once = {"new_steps": (), "gpu_updates": (), "new_waits": (), "new_values": ()}
            self._ranks = replace(reading, ranks=tuple(replace(rank, **once) for rank in reading.ranks))
        return reading

    def _judge_from_first_step(self, rules: Stage, snapshot: Snapshot) -> Snapshot:
        """Return what the rules make of a snapshot once they have judged the steps from before this monitor."""
        from collectors.earlier_steps import earlier_snapshots

        ranks = [
            replace(rank, new_steps=self._kept.get((rank.host, rank.pid), ()) + rank.new_steps)
            for rank in snapshot.ranks
        ]
        self._kept.clear()
        whole = replace(snapshot, ranks=tuple(ranks))
        for earlier in earlier_snapshots(whole):
            self._start_sources().rules(earlier)
        return replace(rules(whole), ranks=snapshot.ranks)

    def _poll_before_rates(self) -> Snapshot:
        """Make a snapshot, and keep its steps for `_judge_from_first_step`."""
        snapshot = self.poll()
        for rank in snapshot.ranks:
            if rank.new_steps:
                key = rank.host, rank.pid
                self._kept[key] = self._kept.get(key, ()) + rank.new_steps
        return snapshot

    def _compose(
        self, reading: GpuReading, host: Host, processes: tuple[Process, ...], ranks: RanksReading
    ) -> Snapshot:
        ranks = replace(ranks, ranks=with_whole_uuids(ranks.ranks, reading.gpus))
        chosen, left_out = self._selection.choose(reading.gpus, ranks.ranks)
        hidden = {gpu.uuid for gpu in reading.gpus} - {gpu.uuid for gpu in chosen}
        notes = (*host.notes, *reading.notes, *left_out, *ranks.notes)
        return Snapshot(
            time=time.time(),
            monotonic=time.monotonic(),
            host=replace(
                host,
                notes=tuple(dict.fromkeys(map(pipeline.encodable, notes))),
                driver_version=reading.driver_version or host.driver_version,
                cuda_version=reading.cuda_version or host.cuda_version,
            ),
            gpus=chosen,
            processes=tuple(process for process in processes if process.gpu_uuid not in hidden)
            if hidden
            else processes,
            ranks=ranks.ranks,
            jobs=jobs.job_totals(ranks.ranks),
        )

    def _run(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        if self._closed:
            return
        try:
            self._start_sources()
        except Exception as error:  # noqa: BLE001  a screen without a word would be all that is seen of it
            note = f"a fault in llmtop itself: nothing can be watched ({error!r})"
            on_snapshot(Snapshot(time=time.time(), host=Host(name=platform.node(), notes=(note,))))
            return
        self._wait_for_driver(time.monotonic() + FIRST_SECONDS)
        self._warm_up(on_snapshot)
        reduce_cycle_collections()
        due = tidied = time.monotonic()
        is_first = True
        while not self._closed:
            on_snapshot(self.poll(with_earlier=is_first, is_paced=True))
            is_first = False
            if due - tidied >= TIDY_SECONDS:
                tidied = due
                release_free_memory()
            due = self._wait_for_next(due)
            self._wait_for_sources(due)

    def _warm_up(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Wait until rates are known; a screen is shown meanwhile what there is."""
        deadline = time.monotonic() + ONCE_SECONDS
        while not self._whole and not self._closed and time.monotonic() < deadline:
            if self._wait_for_rates(time.monotonic()):
                return
            on_snapshot(self._poll_before_rates())
            pause = min(WARM_PACE_SECONDS, self._interval, deadline - time.monotonic())
            self._wait_for_rates(time.monotonic() + pause)
        self._wait_for_rates(deadline)

    def _wait_for_rates(self, deadline: float) -> bool:
        """Wait until all that needs two samples is known; returns whether it is."""
        sources = self._start_sources()
        while not self._closed:
            if _has_rates(sources, self._sampled):
                return True
            if time.monotonic() >= deadline:
                break
            self._pause(min(0.05, max(0.0, deadline - time.monotonic())))
        return False

    def _wait_for_sources(self, due: float) -> None:
        """At a long interval, wait for those that have not read at this round's instant yet."""
        tick = due - sampling_delay(self._interval)
        while not self._closed and self._interval > 1.0 and time.monotonic() < tick + PATIENCE_SECONDS:
            if self._have_read(tick):
                return
            self._pause(0.02)

    def _have_read(self, tick: float) -> bool:
        sources = self._start_sources()
        unix = time.time() - (time.monotonic() - tick)
        if any(gpu.error is None and (gpu.sampled_at or 0.0) < unix for gpu in sources.gpu.latest().gpus):
            return False
        read = (sources.host.read_at(), sources.processes.read_at())
        return all(at is not None and at >= tick for at in read)

    def _wait_for_driver(self, deadline: float) -> None:
        """Wait until there are GPUs, or a note why there are none."""
        while not self._closed and time.monotonic() < deadline:
            reading = self._start_sources().gpu.latest()
            if reading.gpus or reading.notes:
                break
            self._pause(0.02)

    def _start_sources(self) -> Sources:
        with self._lock:
            if self._sources is None:
                self._sources = self._make_sources(self._interval)
                for source in self._sources[:4]:
                    source.start()
            return self._sources

    def _wait_for_next(self, due: float) -> float:
        """Sleep until the next round is due and return when that was, or as soon as the hub is closed."""
        while not self._closed:
            now = time.monotonic()
            following = next_round(due, now, self._interval)
            if now >= following:
                return following
            self._pause(following - now)
        return due

    def _pause(self, seconds: float) -> None:
        """Sleep, or less when the hub is closed or gets another interval."""
        if not self._closed and self._wake.wait(seconds) and not self._closed:
            self._wake.clear()


def sampling_delay(interval: float) -> float:
    """Seconds from the instant at which the sources sample to the snapshot of what they found."""
    return min(SAMPLING_DELAY_SECONDS, interval / 4)


def next_round(due: float, now: float, interval: float) -> float:
    """Return when the round after the one due at `due` is: after the next instant of the sources, so that nothing
    drifts.

    Of the rounds that a slow consumer made impossible only the latest is held, at once.
    """
    latest = last_tick(now, interval, sampling_delay(interval))
    if latest > due + interval / 2:
        return latest
    following = latest + interval
    return following if following > due + interval / 2 else following + interval


def _has_rates(sources: Sources, sampled: dict[str, set[float | None]]) -> bool:
    """Return True if every source has what needs two samples; `sampled` remembers the GPUs' samples between
    calls."""
    reading = sources.gpu.latest()
    for gpu in reading.gpus:
        sampled.setdefault(gpu.uuid, set()).add(gpu.sampled_at)
    if not (reading.gpus or reading.notes) or not reading.settled:
        return False
    if not all(gpu.error is not None or len(sampled[gpu.uuid] - {None}) > 1 for gpu in reading.gpus):
        return False
    if sources.host.latest().cpu_pct is None or not sources.ranks.is_settled():
        return False
    processes = sources.processes.latest()
    if not {*sources.ranks.pids(), *(use.pid for use in reading.uses)} <= {process.pid for process in processes}:
        return False
    # One of which nothing can be seen from here (another pid namespace) never has a CPU share.
    return all(process.cpu_pct is not None or process.started_at is None for process in processes)
