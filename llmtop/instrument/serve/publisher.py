"""Sends each monitor what it does not have yet: identity, steps, metrics, GPU times, memory, signs of life."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from llmtop.instrument.gpu.times import gpu_time
from llmtop.instrument.identity.clock_name import clock_name
from llmtop.instrument.identity.roles import read_roles
from llmtop.instrument.serve import signs_of_life
from llmtop.instrument.serve.hello import Controls, hello
from llmtop.instrument.serve.overhead import OverheadEstimate
from llmtop.instrument.serve.stack_sampling import StackSampler
from llmtop.instrument.serve.step_messages import Batch, Shared, StepReader, encoded, encoded_steps, message_of
from llmtop.protocol import wire
from llmtop.protocol.training_facts import SavedCheckpoint

if TYPE_CHECKING:
    from llmtop.instrument.arrival.samples import Sample
    from llmtop.instrument.record.state import State
    from llmtop.instrument.serve.connection import Monitor

Write = Callable[["Monitor", bytes], None]


ROLES_SECONDS = 60.0
FIRST_ROLES_SECONDS = 2.0
"""Until there are any."""
RARELY_S = 0.25
"""Interval between looks at what the clock says and is seldom due. A training waits for the lock meanwhile."""


class Publisher:
    """Finds out what is new for each monitor, and sends it. Used by the server thread alone."""

    def __init__(self, recorder: State, controls: Controls, write: Write) -> None:
        """Prepare; nothing is read or sent yet.

        Args:
            recorder: whose data is sent.
            controls: what a monitor can control here.
            write: sends bytes to a monitor, or drops it.
        """
        self._recorder = recorder
        self._controls = controls
        self._reader = StepReader(recorder)
        self._shared = Shared()
        self._overhead = OverheadEstimate(recorder)
        self._roles_due = 0.0
        self._rarely_due = 0.0
        self._is_rare_due = True
        self._write = write
        self.stack_sampler = StackSampler(recorder, self._reader.pauses)

    def waits_for(self, monitor: Monitor) -> bool:
        """Return True if there is something for this monitor that is worth to wake for.

        Figures of the GPU come after steps and are no reason of their own.
        """
        return self.has_steps(monitor) or self._has_facts(monitor) or self._has_stall_changed(monitor)

    def _has_stall_changed(self, monitor: Monitor) -> bool:
        return monitor.ready and monitor.stalled_at != self.stack_sampler.waits_for

    def has_steps(self, monitor: Monitor) -> bool:
        """Return True if there is what `send_steps` sends."""
        recorder = self._recorder
        return monitor.ready and (
            monitor.cursor < recorder.ring.count
            or monitor.metrics != recorder.metrics
            or recorder.logged.has_new(monitor.logged_cursor)
        )

    def _has_facts(self, monitor: Monitor) -> bool:
        return monitor.ready and monitor.facts_version != self._recorder.facts.version

    def greet(self, monitor: Monitor) -> None:
        """Send the identity of the training."""
        monitor.facts_version = self._recorder.facts.version
        self._write(
            monitor,
            self.encoded(hello(self._recorder, self._controls)) or self.encoded(wire.Hello(pid=os.getpid())),
        )

    def begin_round(self, is_last: bool) -> None:
        """Begin to send; `is_last`: nothing is sent after this round."""
        now = time.monotonic()
        self._is_rare_due = is_last or now >= self._rarely_due
        if self._is_rare_due:
            self._rarely_due = now + RARELY_S
            self._read_roles(now)

    def send_rare(self, monitor: Monitor, *, at_once: bool) -> None:
        """Send a sign of life, the collective counters and the overhead, where they are due.

        Args:
            monitor: who gets them.
            at_once: True for a new monitor, which has none of them.
        """
        if self._is_rare_due or at_once:
            self.send_sign_of_life(monitor)
            self.send_collectives(monitor)
            self.send_overhead(monitor)

    def greet_again(self, monitor: Monitor) -> None:
        """Send the training's identity if it has changed since the last time."""
        if self._has_facts(monitor):
            self.greet(monitor)

    def _read_roles(self, now: float) -> None:
        """Read now and then which part of the model this rank holds: groups are made at any time."""
        facts = self._recorder.facts
        if now < self._roles_due or (facts.world_size or 1) < 2:
            return
        self._roles_due = now + (ROLES_SECONDS if facts.roles else FIRST_ROLES_SECONDS)
        try:
            roles = read_roles()
        except Exception as error:  # noqa: BLE001 - private tables of torch, which another version may not have
            self._roles_due = float("inf")
            self._recorder.cannot_see("the parallel groups", type(error).__name__)
            return
        if roles != facts.roles:
            facts.roles = roles
            facts.changed()

    def send_steps(self, monitor: Monitor) -> None:
        """Send the next few steps, the metrics if they changed, and logged values."""
        metrics = self._recorder.metrics
        fresh = monitor.metrics != metrics
        if fresh:
            monitor.metrics = metrics.copy()
        told = monitor.metrics if fresh else {}
        cursor, lost, until = monitor.cursor, monitor.lost, max(monitor.history_until - monitor.cursor, 0)
        logged_from = monitor.logged_cursor
        monitor.logged_cursor, logged = self._shared.get(
            ("logged", logged_from), lambda: self._recorder.logged.read(logged_from)
        )
        key = ("steps", cursor, lost, until, logged_from, *told.items())
        batch = self._shared.get(key, lambda: self._batch(cursor, lost, cursor + until, told, logged))
        monitor.lost += batch.first - cursor + (0 if batch.data else batch.length)
        monitor.cursor = batch.first + batch.length
        self._write(monitor, batch.data)

    def _batch(
        self,
        cursor: int,
        lost: int,
        history_until: int,
        metrics: dict[str, float],
        logged: list[tuple[int, str, float]],
    ) -> Batch:
        """Return the steps from number `cursor` on for a monitor that has lost so many before."""
        first, steps = self._reader.read(cursor)
        history = first < history_until
        if history:
            steps = steps[: history_until - first]
        message = message_of(
            steps,
            lost=lost + first - cursor,
            metrics=metrics,
            logged=logged,
            history=history,
            first_ordinal=first,
            unix_offset_ns=self._reader.unix_offset_ns,
        )
        return Batch(first, len(steps), encoded_steps(message, self._recorder.count_left_out))

    def send_gpu(self, monitor: Monitor) -> None:
        """Send what the training thread read of the GPU. It comes after the steps that it is about."""
        recorder = self._recorder
        if not monitor.ready:
            return
        memory = recorder.memory
        if monitor.memory_version != recorder.memory_version and memory is not None:
            monitor.memory_version = version = recorder.memory_version
            told = self._shared.get(("memory", version), lambda: self.encoded(wire.Memory(**memory._asdict())))
            self._write(monitor, told)
        clock = recorder.clock
        if clock is not None and monitor.gpu_cursor < clock.timed.count and monitor.ready:
            cursor, ring = monitor.gpu_cursor, clock.timed
            monitor.gpu_cursor, data = self._shared.get(
                ("gpu", cursor), lambda: self._gpu_times(ring.read(cursor))
            )
            self._write(monitor, data)

    def _gpu_times(self, read: tuple[int, list[Any]]) -> tuple[int, bytes]:
        """Return how far was read, and the message with what was."""
        following, timed = read
        names = self._recorder.paths.names
        return following, self.encoded(wire.GpuTimes(times=[gpu_time(step, names) for step in timed]))

    def send_arrivals(self, monitor: Monitor) -> None:
        """Send when this rank came to the collectives of the steps that were sampled meanwhile."""
        sampler = self._recorder.arrivals
        if sampler is None or not monitor.ready:
            return
        if monitor.arrivals_of is not sampler:
            monitor.arrivals_of, monitor.arrivals_cursor = sampler, 0
        samples = sampler.samples
        if monitor.arrivals_cursor < samples.count:
            key = ("arrivals", monitor.arrivals_cursor)
            monitor.arrivals_cursor, data = self._shared.get(
                key, lambda: self._arrivals(sampler.replica.group, samples.read(key[1]))
            )
            self._write(monitor, data)

    def _arrivals(self, group: str, read: tuple[int, list[Sample]]) -> tuple[int, bytes]:
        """Return how far was read, and the message with what was."""
        following, samples = read
        told = [
            wire.Arrival(
                index=sample.step,
                stamps=[
                    wire.ArrivalStamp(name, host_ns, sample.gpu_ns.get(name))
                    for name, host_ns in sample.host_ns.items()
                ],
                on_host_clock=sample.on_host_clock,
                waited_host_ns=sample.waited_host_ns,
                waited_gpu_ns=sample.waited_gpu_ns,
            )
            for sample in samples
        ]
        return following, self.encoded(wire.Arrivals(arrivals=told, group=group, clock=clock_name()))

    def send_checkpoints(self, monitor: Monitor) -> None:
        """Send the last checkpoints after each new one."""
        saved = self._recorder.saved
        if not monitor.ready or monitor.saved_version == saved.version:
            return
        monitor.saved_version = version = saved.version
        self._write(monitor, self._shared.get(("saved", version), self._checkpoints))

    def _checkpoints(self) -> bytes:
        offset = self._reader.unix_offset_ns
        return self.encoded(
            wire.Checkpoints(
                saved=[
                    SavedCheckpoint(
                        one.step, one.ended_ns + offset, one.taken_ns, one.blocked_ns, one.path, one.function
                    )
                    for one in self._recorder.saved.read()
                ]
            )
        )

    def send_sign_of_life(self, monitor: Monitor) -> None:
        """Send a sign of life if the training works and no step has ended for a while."""
        if monitor.ready and (alive := signs_of_life.pending_message(monitor, self._recorder)) is not None:
            self._write(monitor, wire.encode(alive))

    def send_collectives(self, monitor: Monitor) -> None:
        """Send the collective counters if no step ends."""
        if monitor.ready and (counts := monitor.collectives.pending_message(self._recorder)) is not None:
            self._write(monitor, self.encoded(counts))

    def send_overhead(self, monitor: Monitor) -> None:
        """Send the overhead per step after each new estimate."""
        if not monitor.ready:
            return
        overhead = self._overhead
        overhead.update()
        if monitor.overhead_version != overhead.version:
            monitor.overhead_version = overhead.version
            self._write(monitor, self.encoded(wire.Overhead(step_ns=overhead.step_ns)))

    def sample_stack(self, monitors: Iterable[Monitor]) -> None:
        """Sample the training thread if it is due and a monitor is subscribed."""
        if any(monitor.subscribed for monitor in monitors):
            self.stack_sampler.sample()
        else:
            self.stack_sampler.forget()

    def send_stack_samples(self, monitor: Monitor) -> None:
        """Send the untimed work of the training, and that it waits for a person or continues."""
        sampler = self.stack_sampler
        if monitor.ready and monitor.stalled_at != sampler.waits_for:
            monitor.stalled_at = sampler.waits_for
            self._write(monitor, self.encoded(wire.StalledAt(where=sampler.waits_for)))
        outside = sampler.outside
        if monitor.ready and outside is not None and monitor.outside_number != sampler.number:
            monitor.outside_number = sampler.number
            self._write(monitor, self._shared.get(("outside", sampler.number), lambda: self.encoded(outside)))

    def end_round(self) -> None:
        """Drop the messages encoded for all monitors of this round of sending."""
        self._shared.forget()

    def encoded(self, message: wire.FromTraining) -> bytes:
        """Return a message as bytes; none, counted as left out, where it holds what no message can."""
        return encoded(message, self._recorder.count_left_out)
