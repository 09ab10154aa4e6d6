"""One training's steps as they arrive, and the figures that are made of them."""

from __future__ import annotations

from sys import intern
from typing import Any, NamedTuple

from msgspec.structs import replace

from collectors.trainings.late_steps import pop_old
from collectors.trainings.logged_series import PendingValues
from collectors.trainings.pending_steps import PendingSteps
from collectors.trainings.step_figures import StepFigures, steps_left
from llmtop.model.snapshot import Phase, Step, StepKind
from llmtop.naming.metric_names import metric_kind
from llmtop.protocol import wire
from llmtop.step_history.whole_steps import DECODE, PREFILL

HISTORY_STEPS = 512
"""How many finished steps a process is asked for on connecting, and how many are known here: a step that comes a
second time after a reconnect is matched among them."""


class _Times(NamedTuple):
    """When a step was, which tells whether another one with its number is the same."""

    started_at: float
    seconds: float
    interval_seconds: float | None


class RankStats:
    """State of one process's steps. Not safe for several threads."""

    def __init__(self) -> None:
        self.hello = wire.Hello()
        self.metrics: dict[str, float] = {}
        self.values = PendingValues()
        """Values that show how the training learns."""
        self.memory: wire.Memory | None = None
        self.last: Step | None = None
        self.received = 0
        """Steps so far, on all connections."""
        self.unix_offset_ns: int | None = None
        """Offset of the last `wire.Steps`."""
        self._clock_moved = False
        self._lost_there = 0
        self._lost_before = 0
        self._lost_here = 0
        self._come_to = StepFigures()
        self._known: dict[int, Step] = {}
        """The newest by index, for their GPU times."""
        self._older: dict[int, _Times] = {}
        self._new = PendingSteps()
        self._updates = PendingSteps()

    @property
    def lost(self) -> int:
        """Steps that never arrived or were dropped here because no reader took them."""
        return self._lost_before + self._lost_there + self._lost_here

    def keep_losses(self) -> None:
        """Keep the losses counted so far: the training counts anew for each connection."""
        self._lost_before += self._lost_there
        self._lost_there = 0

    def add_steps(self, message: wire.Steps) -> None:
        """Take finished steps; one that is known already (history after a reconnect) is passed over."""
        self._lost_there = max(self._lost_there, message.lost)
        self._clock_moved |= self.unix_offset_ns not in (None, message.unix_offset_ns)
        self.unix_offset_ns = message.unix_offset_ns
        self.received += len(message.steps)
        self.metrics.update(message.metrics)
        self.values.add(message.logged, is_history=message.history)
        for ordinal, done in enumerate(message.steps, message.first_ordinal):
            step = self._step(done, ordinal)
            if message.history and self._is_known(step):
                continue
            self._add(step)

    def add_gpu_times(self, message: wire.GpuTimes) -> None:
        """Match GPU times to their steps; of a step that is not known any more they are dropped."""
        for times in message.times:
            step = self._known.get(times.index)
            if step is not None:
                self._update(_with_gpu_times(step, times))

    def take_new(self) -> tuple[Step, ...]:
        """Return the steps since the last call, oldest first."""
        return self._new.take()

    def take_updates(self) -> tuple[Step, ...]:
        """Earlier steps whose GPU times came since the last call."""
        return self._updates.take()

    def logged(self) -> dict[str, Any]:
        """Fields of `Rank` about what it logs: the last values, losses first, and the new ones."""
        ordered = sorted(self.metrics.items(), key=lambda item: metric_kind(item[0]) != "loss")
        return {"metrics": dict(ordered), "new_values": self.values.take()}

    def figures(self) -> dict[str, Any]:
        """Fields of `Rank` made of the recent steps: percentiles, rates, phases, the GPU's idle share.

        Empty while no step is known of the kind that the process makes now: what came before is of another.
        """
        return self._come_to.figures() if self._has_current_kind() else {}

    def rank_fields(self, *, running: bool) -> dict[str, Any]:
        """These, the last step's length, and when the training will end; rates only while it is running."""
        if not self._has_current_kind():
            return {"step_seconds": None, "eta_seconds": None}
        last = None if self.last is None else self.last.index
        return self._come_to.rank_fields(running=running, left=steps_left(self.hello.total_steps, last))

    def _has_current_kind(self) -> bool:
        """Return True if the last step is of the kind that the process makes now, or there is none."""
        return self.last is None or (self.last.kind == "request") == (self.hello.kind == "request")

    def _is_known(self, step: Step) -> bool:
        known = self._known.get(step.index) or self._older.get(step.index)
        if known is None or known.started_at == step.started_at:
            return known is not None
        # The wall clock was set; all times sent from then on are by the new one. Durations are by the monotonic
        # clock.
        mine, theirs = (known.seconds, known.interval_seconds), (step.seconds, step.interval_seconds)
        return self._clock_moved and mine == theirs

    def _step(self, done: wire.StepDone, ordinal: int) -> Step:
        are_requests = (self.hello.kind == "request") == (ordinal >= self.hello.kind_since)
        kind: StepKind = "request" if are_requests else "step"
        last = self.last
        # Most steps have as many as the one before: of those that are kept, it is kept once.
        same_work = last is not None and (last.tokens, last.samples) == (done.tokens, done.samples)
        work = last if last is not None and same_work else done
        # The first of a kind began at no fixed time after the last of the other kind.
        interval_ns = None if ordinal == self.hello.kind_since else done.interval_ns
        return Step(
            index=done.index,
            started_at=done.started_unix_ns / 1e9,
            seconds=done.host_ns / 1e9,
            interval_seconds=None if interval_ns is None else interval_ns / 1e9,
            tokens=work.tokens,
            samples=work.samples,
            phases=tuple(
                Phase(name=intern(phase.name), host_seconds=phase.host_ns / 1e9) for phase in done.phases
            ),
            warmup=ordinal < self.hello.warmup_steps,
            kind=kind,
            **(_request_figures(done) if self.hello.inference and kind == "request" else {}),
        )

    def _add(self, step: Step) -> None:
        self.last = step
        self._known.pop(step.index, None)
        self._known[step.index] = step
        for old in pop_old(self._known, step, lambda known: known):
            self._older[old.index] = _Times(old.started_at, old.seconds, old.interval_seconds)
        while self._older and len(self._known) + len(self._older) > HISTORY_STEPS:
            del self._older[next(iter(self._older))]
        self._come_to.add(step)
        self._lost_here += self._new.add(step)

    def _update(self, step: Step) -> None:
        self._known[step.index] = step
        if not self._new.replace(step):
            self._updates.add(step)
        self._come_to.update(step)


def _request_figures(done: wire.StepDone) -> dict[str, float | None]:
    """Return the figures of a request to a language model, from its phases (`instrument.auto.requests`)."""
    took = {phase.name: phase.host_ns / 1e9 for phase in done.phases}
    first = took.get(PREFILL)
    tpot = None
    if first is not None and DECODE in took and done.tokens and done.samples:
        following = done.tokens / done.samples - 1
        tpot = took[DECODE] / following if following > 0 else None
    return {"tokens_in": done.tokens_in, "ttft_seconds": first, "tpot_seconds": tpot}


def _first_token(step: Step, gpu_seconds: float | None) -> dict[str, float | None]:
    """Return the same by the GPU's clock where that is later: the host may run ahead of the GPU."""
    first, each = step.ttft_seconds, step.tpot_seconds
    if first is None or gpu_seconds is None or gpu_seconds <= first:
        return {}
    took = {phase.name: phase.host_seconds for phase in step.phases}
    decode = took.get(DECODE, 0.0)
    if gpu_seconds > first + decode:
        return {}  # from before the request began: the GPU had other work
    return {"ttft_seconds": gpu_seconds, "tpot_seconds": each and each * (first + decode - gpu_seconds) / decode}


def _with_gpu_times(step: Step, times: wire.GpuTime) -> Step:
    by_name = dict(times.phases)
    phases = tuple(
        replace(phase, gpu_seconds=by_name[phase.name] / 1e9) if phase.name in by_name else phase
        for phase in step.phases
    )
    idle = None if times.idle_ns is None else times.idle_ns / 1e9
    return replace(
        step,
        gpu_seconds=times.gpu_ns / 1e9,
        gpu_idle_seconds=idle,
        gpu_host_paced_seconds=times.host_paced_ns / 1e9,
        phases=phases,
        **_first_token(step, None if PREFILL not in by_name else by_name[PREFILL] / 1e9),
    )
