"""Periodic work of the training thread between steps: the GPU clock, the allocator, its identity.

These need the thread that trains: its current device and stream, and no question to CUDA while it captures a
graph.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from llmtop.instrument.arrival.sampler import Sampler
from llmtop.instrument.gpu import events as gpu_events
from llmtop.instrument.gpu.clock import GpuClock
from llmtop.instrument.gpu.kept_memory import KeptMemory
from llmtop.instrument.gpu.logged_tensors import GpuMetrics
from llmtop.instrument.gpu.stream_waits import StreamWaits
from llmtop.instrument.identity import process_group, roles
from llmtop.instrument.pytorch import allocator as torch_allocator
from llmtop.instrument.pytorch.compile import is_compiling, keep_untraced

if TYPE_CHECKING:
    from llmtop.instrument.identity.run_info import Facts
    from llmtop.instrument.record.state import State

PERIOD_NS = 250_000_000
MOST_STEPS = 1024
"""Steps may become longer all of a sudden."""
POLL_EVENTS_AFTER = 4
COSTS_AFTER = 3
"""The first steps are no usual ones."""
SEARCHES = 3
"""Interval between searches for modules trained together with other ranks. Where no hook knows the modules, one
scan of all objects of the process takes some 0.1 s."""


class PeriodicTasks:
    """Called by the recorder after some steps; returns after how many it is called again."""

    def __init__(self, recorder: State, listen_to_store: Callable[[Facts], None]) -> None:
        """Prepare.

        Args:
            recorder: of this process.
            listen_to_store: called once in one process of each node, when the job's store is known.
        """
        self._recorder = recorder
        self._listen_to_store = listen_to_store
        self._cuda: Any = None
        self._last_count = 0
        self._last_ns: int | None = None
        self._step_ns = float(PERIOD_NS)
        self._due_ns = 0
        self._memory_at_ns = 0
        self._kept: KeptMemory | None = None
        self._since_timed = 0
        self._is_timing = False
        self._knows_group = False
        self._searches = 0
        self._searched: tuple[int, ...] = ()
        """id() of the modules of the last search."""
        self._is_sampling = False
        self._separates_waits = False

    def __call__(self, index: int, now: int) -> int:
        """Do what is due after step `index`, which ended at `now` (perf_counter ns).

        Returns:
            After how many steps it wants to be called again.
        """
        began, spent = perf_counter_ns(), thread_time_ns()
        wait = self._do(index, now)
        recorder, costs = self._recorder, self._recorder.costs
        if costs is not None:
            if recorder.tracks is None and recorder.ring.count >= COSTS_AFTER:
                costs.sample(recorder, began)
            costs.periodic_ns += thread_time_ns() - spent
        return wait

    def _do(self, index: int, now: int) -> int:
        recorder = self._recorder
        self._measure_pace(recorder.ring.count, now)
        clock = recorder.clock
        if clock is not None and self._is_timing:
            self._is_timing = False
            recorder.time_next_step(False)
            clock.end(index, recorder.previous)
            self._since_timed = 0
        is_due = now >= self._due_ns
        if is_due:
            self._due_ns = now + PERIOD_NS
            self._run_due_tasks(now)
        wait = min(MOST_STEPS, max(1, int(PERIOD_NS / self._step_ns)))
        if recorder.arrivals is not None:
            wait = min(wait, self._sample(recorder.arrivals, index))
        if self._kept is not None and self._follow_memory(self._kept, now):
            wait = 1
            if self._kept.is_sampling:  # its lists of blocks would be in the others' times
                self._separate_waits(False)
                return wait
        self._separate_waits(is_due and recorder.ring.count >= COSTS_AFTER)
        if self._separates_waits:
            wait = 1
        return wait if clock is None else min(wait, self._time_steps(clock))

    def _follow_memory(self, kept: KeptMemory, now: int) -> bool:
        """Begin, go on with or end a sample of what a step keeps allocated; returns whether it is under way."""
        is_followed = kept.after_step(now, may_begin=not self._is_sampling)
        self._recorder.watch_memory(kept if kept.is_sampling else None)
        return is_followed

    def _separate_waits(self, is_due: bool) -> None:
        """Begin to sample the next step's waits for a CPU, or end the sample."""
        waits = self._recorder.cpu_waits
        wanted = is_due and waits is not None and waits.is_wanted and self._recorder.tracks is None
        if wanted or self._separates_waits:
            self._separates_waits = wanted
            self._recorder.separate_waits(wanted)

    def _sample(self, arrivals: Sampler, index: int) -> int:
        """End or begin a sample of when this rank reaches the collectives; returns when to check again."""
        if self._is_sampling:
            self._is_sampling = False
            self._recorder.sample_next_step(False)
            arrivals.end_sample(index)
        arrivals.read()
        if arrivals.is_lost:
            self._recorder.arrivals = None  # another model may have taken its place
        elif arrivals.begin_if_due(index, self._step_ns):
            self._is_sampling = True
            self._recorder.sample_next_step(True)
            return 1
        rest = arrivals.rest(index)
        return min(rest, POLL_EVENTS_AFTER) if arrivals.is_waiting else rest

    def _measure_pace(self, count: int, now: int) -> None:
        steps = count - self._last_count
        if self._last_ns is not None and steps > 0:
            self._step_ns = max(1.0, (now - self._last_ns) / steps)
        self._last_count, self._last_ns = count, now
        self._since_timed += steps

    def _time_steps(self, clock: GpuClock) -> int:
        """Read events, and have the next step timed if it is its turn; returns when to check again."""
        clock.read()
        rest = clock.steps_between(self._step_ns) - self._since_timed
        if rest <= 1 and clock.is_full:
            return POLL_EVENTS_AFTER
        if rest <= 1:
            clock.begin()
            self._is_timing = True
            self._recorder.time_next_step(True)
            return 1
        return min(rest - 1, POLL_EVENTS_AFTER) if clock.is_waiting else rest - 1

    def _run_due_tasks(self, now: int) -> None:
        recorder = self._recorder
        keep_untraced()
        recorder.paths.arrange(recorder.root)
        if not self._knows_group:
            self._knows_group = process_group.learn(recorder.facts)
            if recorder.facts.store is not None and not recorder.facts.local_rank:
                # Of a job of several nodes, in one process of each.
                self._listen_to_store(recorder.facts)
        for callback in recorder.hooks.periodic:
            callback()
        if self._cuda is None:
            self._cuda = gpu_events.initialised_cuda()
            if self._cuda is not None:
                self._start_gpu_clock(self._cuda)
        if self._knows_group and recorder.arrivals is None and recorder.ring.count >= COSTS_AFTER:
            self._find_replica()
        if self._cuda is None:
            return
        if self._cuda.is_current_stream_capturing():
            return
        if recorder.gpu_metrics is not None:
            recorder.gpu_metrics.collect(recorder.metrics, recorder.logged.add)
        if now >= self._memory_at_ns:
            self._memory_at_ns = now + torch_allocator.EVERY_NS
            recorder.memory = reading = torch_allocator.read(self._cuda)
            recorder.memory_version += 1
            if self._kept is not None and reading is not None:
                self._kept.add_reading(reading.allocated_bytes)
                recorder.memory = reading._replace(kept_bytes=self._kept.kept_bytes())

    def _find_replica(self) -> None:
        """Find what is trained together with other ranks, and sample from now on when this one reaches them."""
        recorder = self._recorder
        if recorder.tracks is not None or (recorder.facts.world_size or 1) < 2:
            return
        roots = [] if recorder.hooks.roots is None else recorder.hooks.roots()
        if not roots and self._searches >= SEARCHES:
            return
        # Both load torch, which such a training has loaded long since.
        from llmtop.instrument.arrival import replicas
        from llmtop.instrument.pytorch import search

        if not roots:
            self._searches += 1
            roots = search.find_modules().roots
        numbers = tuple(map(id, roots))
        if numbers == self._searched:
            return
        self._searched = numbers
        replica = replicas.find(roots)
        roles.note(replicas.mesh_roles(roots))
        if replica is not None:
            events = None if self._cuda is None else gpu_events.CudaEvents(self._cuda)
            waits = None
            if events is not None and replica.gathers:
                waits = StreamWaits(self._cuda, gpu_events.CudaEvents(self._cuda), is_compiling)
            recorder.arrivals = Sampler(replica, events, waits)
            recorder.facts.changed()

    def _start_gpu_clock(self, cuda: Any) -> None:
        recorder = self._recorder
        recorder.facts.gpu_uuid, recorder.facts.gpu_model = gpu_events.uuid(cuda), gpu_events.model(cuda)
        recorder.facts.changed()
        recorder.gpu_metrics = GpuMetrics(cuda)
        if recorder.tracks is None:  # steps that overlap share the stream: their GPU times cannot be separated
            recorder.clock = GpuClock(gpu_events.CudaEvents(cuda))
            self._kept = KeptMemory(cuda)
