"""One attached training as this monitor sees it: its connection, its process, its figures."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from typing import Any

import psutil

from collectors.base.gpu_lookup import GpuLookup
from collectors.trainings.arrivals import MAX_STEPS, StepStamps, wait_seconds
from collectors.trainings.bounds import Bounds, bounded_hello
from collectors.trainings.checkpoints import Checkpoints
from collectors.trainings.gpu_waits import GpuWaits
from collectors.trainings.outside_causes import OutsideCauses
from collectors.trainings.rank_stats import RankStats
from llmtop.errors import NotPossibleHere
from llmtop.hardware.gpu_specs import estimated_mfu, mfu
from llmtop.instrument.identity import launcher_env
from llmtop.model.snapshot import CollectiveCount, Rank, RankState, StampedWait
from llmtop.model.stall_thresholds import STALLED_SECONDS, STALLED_STEPS
from llmtop.protocol import client, wire
from llmtop.protocol.socket_dir import memory_snapshot
from llmtop.system import procfs
from llmtop.system.wall_clock import TOLERANCE_NS, WallClock

ENGINES_SECONDS = 20.0
"""How often it is asked what can capture a process."""
_HEARD_WITHIN_SECONDS = 2.0
"""A step is received within this time. A stamp further from its arrival is by a wall clock that was set since."""
_HOST = platform.node()
HISTORY_SECONDS = 0.5
"""Seconds after the connection by which a history has come; a process without steps sends none."""


class Training:
    """State of one training process. Its owner sees to it that only one thread is in here at a time."""

    def __init__(self, pid: int, engines: bool = True) -> None:
        """Store the present state of the process.

        Args:
            pid: this host's.
            engines: whether to find out what can capture it.
        """
        self.pid = pid
        self.uid: int | None = None
        self.connection: client.Connection | None = None
        self.stats = RankStats()
        self.overhead_seconds: float | None = None
        """Overhead per step, as the training estimates it."""
        self.stamped = StepStamps()
        self._bounds = Bounds()
        self._causes = OutsideCauses()
        self._gpu_waits = GpuWaits()
        self._stalled_at = ""
        """Where it stands still because it waits for a person, in its words; "" while it does not."""
        self._process = _process(pid)
        self._status: str | None = None
        self._connected_at: float | None = None
        self._gone_at: float | None = None
        self._quiet_since: float | None = None
        """When the last step ended, in monotonic seconds."""
        self._worked_at: float | None = None
        """When work that ends no step was last seen, in monotonic seconds."""
        self._collectives: list[wire.CollectiveCount] = []
        self._checkpoints = Checkpoints()
        self._waits: list[StampedWait] = []
        """Not yet handed over."""
        self._wall_clock = WallClock()
        self._capturable: tuple[str, ...] = ()
        self._engines = engines
        self._asked_engines = not engines
        self._ask_engines_at = 0.0
        self._seen = 0

    @property
    def is_silent(self) -> bool:
        """Return True if it has never sent a message: a process stopped before this monitor started."""
        return self._connected_at is None

    @property
    def has_history(self) -> bool:
        """Return True if its history has come, as far as there is one, and what can capture it is known."""
        if self.connection is None or self._connected_at is None:
            return True
        if self.stats.last is not None:
            return self._asked_engines
        return time.monotonic() - self._connected_at > HISTORY_SECONDS

    def attach(self, connection: client.Connection) -> None:
        """Take in what comes over this connection from now on."""
        if self._connected_at is not None:
            self.stats.keep_losses()
        self.connection = connection
        self.uid = connection.uid
        self._collectives = []
        self._stalled_at = ""
        self._connected_at = time.monotonic()
        self._gone_at = None
        self._ask_engines_at = 0.0
        self.stats.hello = bounded_hello(connection.hello)
        if connection.host_pid == 0:
            self.pid = self.stats.hello.pid
        self.poll_process()

    def take_in(self, messages: Sequence[wire.FromTraining]) -> None:
        """Take in messages of the training: who it is, steps, GPU times, memory."""
        for message in self._bounds.take(messages):
            match message:
                case wire.Steps():
                    self.stats.add_steps(message)
                    self._note_steps(message)
                    self._collectives = [] if message.steps else self._collectives
                    if message.steps and not message.history:
                        self._set_stalled("")
                        self._causes.step_ended()
                case wire.Alive():
                    self._worked_at = time.monotonic() - max(0, message.ago_ns) / 1e9
                case wire.Collectives():
                    self._collectives = message.counts
                case wire.Arrivals():
                    self.stamped.add(message)
                    self._take_waits(message)
                case wire.Overhead():
                    self.overhead_seconds = message.step_ns / 1e9
                case wire.Outside():
                    self._causes.add(message)
                    self._gpu_waits.add(message)
                case wire.StalledAt():
                    self._set_stalled(message.where)
                case wire.GpuTimes() | wire.Checkpoints():
                    self._take_late(message)
                case wire.Memory():
                    self.stats.memory = message
                case wire.Hello():
                    self.stats.hello = message
                    self._ask_engines_at = 0.0  # it may offer others now

    def _take_late(self, message: wire.GpuTimes | wire.Checkpoints) -> None:
        """Take in what is about steps that have ended."""
        if isinstance(message, wire.GpuTimes):
            self.stats.add_gpu_times(message)
        else:
            self._checkpoints.add(message)

    def hang_up(self) -> None:
        """Close the connection, whichever side ended it."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def end(self) -> None:
        """Note that the training is gone: its process has ended or become another program."""
        if self._gone_at is None:
            self._gone_at = time.monotonic()

    @property
    def is_gone(self) -> bool:
        """Return True if the training has ended."""
        return self._gone_at is not None

    def seconds_since_end(self, now: float) -> float:
        """Seconds for which it has been known to be gone at `now` (monotonic seconds); 0 while it is not."""
        return 0.0 if self._gone_at is None else now - self._gone_at

    def poll_process(self) -> None:
        """Query the process's state; one that has made a step since the last query is not stopped."""
        stepped, self._seen = self.stats.received > self._seen, self.stats.received
        self._status = psutil.STATUS_RUNNING if stepped else _status(self._process)

    def poll_engines(self) -> None:
        """Find out, now and then, how it can be captured; takes up to 0.1 s where nsys must be asked."""
        now = time.monotonic()
        if not self._engines or now < self._ask_engines_at:
            return
        self._ask_engines_at = now + ENGINES_SECONDS
        # Here and not above: a monitor without a training is spared the engines.
        from llmtop.capture.capabilities import capturable_engines

        self._capturable = () if self.is_gone or self.is_silent else capturable_engines(self.pid, self.stats.hello)
        self._asked_engines = True

    def is_alive(self) -> bool:
        """Return True if the process that attached still runs; taken for alive where it cannot be seen from here.

        Then the next contact decides: no socket listens for an ended process.
        """
        if self._process is None:
            return True
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.Error:
            return True

    def is_stopped(self) -> bool:
        """Return True if a signal (or a debugger) holds the process."""
        self._status = _status(self._process)
        return self._status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

    def read_identity(self) -> None:
        """Take rank and job from the environment of a process that has not replied; nothing where it is hidden."""
        try:
            environment = procfs.environ(self.pid)
        except NotPossibleHere:
            return
        who = launcher_env.from_environment(environment)
        command = procfs.words(self.pid)
        self.stats.hello = bounded_hello(
            wire.Hello(
                pid=self.pid,
                host=_HOST,
                command=" ".join(command),
                rank=who.rank,
                local_rank=who.local_rank,
                world_size=who.world_size,
                launch=_launch(launcher_env.launch(environment), command),
            )
        )

    def take(self, gpus: GpuLookup) -> Rank:
        """Return the rank as it is now; hands the new steps over.

        Args:
            gpus: names the GPU of a training that does not name it itself.
        """
        stats, hello, last = self.stats, self.stats.hello, self.stats.last
        state = self._state()
        figures = stats.rank_fields(running=state == "running")
        outside, window = figures.get("outside_seconds"), figures.get("window_seconds")
        figures["outside_causes"] = self._causes.figures(outside, window)
        figures["outside_work_pct"] = self._causes.work_pct(window, self.overhead_seconds)
        figures |= self._gpu_waits.figures(figures.get("step_seconds_mean"), window)
        gpu_uuid = hello.gpu_uuid or gpus.uuid_of(self.pid)
        gpu_name = None if gpu_uuid is None else gpus.name(gpu_uuid)
        figures |= self._steps_and_checkpoint() | stats.logged()
        mfu_pct, mfu_note = self._mfu(figures.get("tokens_per_s"), gpu_name)
        return Rank(
            pid=self.pid,
            host=hello.host or _HOST,
            uid=self.uid,
            rank=hello.rank,
            local_rank=hello.local_rank,
            world_size=hello.world_size,
            roles=hello.roles,
            gpu_uuid=gpu_uuid,
            command=hello.command or None,
            kind="request" if hello.kind == "request" else "step",
            inference=hello.inference,
            step=None if last is None else last.index,
            total_steps=hello.total_steps,
            accumulation_steps=hello.accumulation_steps,
            sees_checkpoints=hello.auto,
            mfu_pct=mfu_pct,
            mfu_note=mfu_note,
            mfu_estimated=mfu_pct is not None and hello.flops_estimated,
            lost=stats.lost,
            warmup_steps=hello.warmup_steps,
            overhead_seconds=self.overhead_seconds,
            memory_snapshot=_memory_snapshot(self.pid) if state == "gone" else None,
            capturable=() if state == "gone" else self._capturable,
            state=state,
            last_step_at=self._last_step_at(),
            last_work_at=None if self._worked_at is None else self._unix(self._worked_at),
            attached_at=hello.started_at or None,
            gpu_updates=stats.take_updates(),
            arrivals=() if hello.arrivals else None,
            new_waits=self._new_waits(),
            collectives=tuple(
                CollectiveCount(
                    group=one.group, enqueued=one.enqueued, completed=one.completed, operation=one.operation
                )
                for one in self._collectives
            ),
            phases_left_out=self._bounds.phases.refused_count,
            metrics_left_out=self._bounds.metrics.refused_count,
            note="; ".join(filter(None, (self._note(), self._bounds.note(), hello.note))) or None,
            **_memory(stats.memory),
            **figures,
        )

    def _take_waits(self, message: wire.Arrivals) -> None:
        has_gpu = self.stats.hello.gpu_uuid is not None
        found = (wait_seconds(one, has_gpu=has_gpu) for one in message.arrivals)
        self._waits = [*self._waits, *(one for one in found if one is not None)][-MAX_STEPS:]

    def _steps_and_checkpoint(self) -> dict[str, Any]:
        """Return fields of `Rank`: the new steps with their clock, which may hold a checkpoint, and the last
        checkpoint."""
        new_steps, offset = self.stats.take_new(), self.stats.unix_offset_ns
        return {
            "new_steps": new_steps,
            "clock_offset_seconds": None if offset is None else offset / 1e9,
            "checkpoint": self._checkpoints.current(new_steps),
        }

    def _new_waits(self) -> tuple[StampedWait, ...]:
        taken, self._waits = tuple(self._waits), []
        return taken

    def _set_stalled(self, where: str) -> None:
        """It stands still, or goes on: then work is seen, and the time without a step counts from now."""
        if self._stalled_at and not where:
            self._worked_at = time.monotonic()
        self._stalled_at = where

    def _note_steps(self, message: wire.Steps) -> None:
        last, own_ns = self.stats.last, self._wall_clock.offset_ns()
        if last is None:
            return
        theirs_ns, now = message.unix_offset_ns, time.monotonic()
        if abs(theirs_ns - own_ns) <= 2 * TOLERANCE_NS:
            ended = last.started_at + last.seconds - theirs_ns / 1e9
        elif message.history:
            # Its monotonic clock is another (a time namespace).
            ended = now - (time.time() - last.started_at - last.seconds)
        else:
            ended = now  # it has just come
        self._quiet_since = min(ended, now)

    def _last_step_at(self) -> float | None:
        """Unix time at which the last step ended, by the wall clock of now."""
        last = self.stats.last
        if last is None or self._quiet_since is None:
            return None
        ended_at, known = last.started_at + last.seconds, self._unix(self._quiet_since)
        return ended_at if abs(ended_at - known) <= _HEARD_WITHIN_SECONDS else known

    def _unix(self, monotonic: float) -> float:
        return monotonic + self._wall_clock.offset_ns() / 1e9

    def _state(self) -> RankState:
        if self._gone_at is not None:
            return "gone"
        if self._status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return "stopped"
        if self._stalled_at:
            return "paused"
        median = self.stats.figures().get("step_seconds_p50")
        if self._quiet_since is None or self.stats.hello.kind == "request" or self.stats.hello.inference:
            return "running"  # it may have nothing to answer
        limit = max(STALLED_SECONDS, STALLED_STEPS * (median or 0.0))
        lively = max(self._quiet_since, self._worked_at or self._quiet_since)
        return "stalled" if time.monotonic() - lively > limit else "running"

    def _note(self) -> str | None:
        return f"it waits {self._stalled_at}" if self._stalled_at else None

    def _mfu(self, tokens_per_s: float | None, name: str | None) -> tuple[float | None, str | None]:
        hello, last = self.stats.hello, self.stats.last
        if hello.flops_estimated or (hello.flops_per_token is None and hello.flops_unknown is not None):
            return estimated_mfu(hello.flops_per_token, tokens_per_s, name, hello.dtype, hello.flops_unknown)
        if hello.flops_per_token is not None and last is not None and last.tokens is None:
            return None, "no MFU: tell step() how many tokens it works on"
        return mfu(hello.flops_per_token, tokens_per_s, name, hello.dtype)


def _memory_snapshot(pid: int) -> str | None:
    """Return the memory snapshot that a process left at an out-of-memory error."""
    try:
        path = memory_snapshot(pid)
    except NotPossibleHere:
        return None
    return str(path) if path.exists() else None


def _memory(memory: wire.Memory | None) -> dict[str, Any]:
    if memory is None:
        return {}
    return {
        "memory_allocated_bytes": memory.allocated_bytes,
        "memory_reserved_bytes": memory.reserved_bytes,
        "memory_peak_bytes": memory.peak_bytes,
        "alloc_retries": memory.alloc_retries,
        "ooms": memory.ooms,
        "memory_kept_bytes": memory.kept_bytes,
    }


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid) if pid > 0 else None
    except psutil.Error:
        return None


def _status(process: psutil.Process | None) -> str | None:
    try:
        return None if process is None else process.status()
    except psutil.Error:
        return None


def _launch(found: launcher_env.LauncherEnv, command: Sequence[str]) -> wire.Launch:
    """Return how another process was started; its script is the first word after the interpreter's options."""
    script = next((word for word in command[1:] if not word.startswith("-")), "")
    return wire.Launch(**found._replace(program=launcher_env.program_name(script))._asdict())
