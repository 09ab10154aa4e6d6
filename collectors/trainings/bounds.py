"""Limits on one training's messages: whatever sends on its socket, a monitor's memory and lines stay bounded.

A training of llmtop's has 128 names of phases and 64 of metrics at most (`llmtop.instrument`), and sends a few
dozen steps a message. More comes from a broken or foreign publisher. What is over the limits is left out and
counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from sys import intern

from msgspec.structs import astuple, replace

from collectors.trainings.checkpoints import MOST_SAVED, is_valid
from llmtop.format import printable
from llmtop.protocol import wire

MAX_PHASES = 128
"""Names, and phases of one step."""
MAX_METRICS = 128
MAX_NAME = 1100
"""Characters: sixteen nested phases of 64."""
MAX_GROUPS = 128
"""Process groups."""
MAX_CAUSES = 64
"""Limit for activities of a host outside phases, in one message."""
MAX_WORDS = 200
"""Characters of one of them."""
MAX_STAMPS = 16
"""Limit of one step."""
MAX_STEPS = 4096
"""Steps, and GPU times, of one message."""
_COUNTED = 20_000
"""Names over the limit are counted exactly up to here; beyond it the count is a lower bound."""
_LARGEST_COUNT = 1 << 53
_LARGEST_TIME = 1 << 62
"""Nanoseconds: differences of two fit into 64 bits."""
_MOST_RANKS = 1 << 24
_LARGEST_AMOUNT = 1e18
"""Tokens of a step: sums of them stay finite."""
_TEXTS = {
    "version": 64,
    "host": 256,
    "command": 400,
    "gpu_uuid": 128,
    "kind": 16,
    "dtype": 32,
    "flops_unknown": 200,
    "torch": 64,
    "note": 400,
}


_LAUNCH_TEXT = 128


class KnownNames:
    """The first so many names, and how many others came."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.known: set[str] = set()
        """Admitted names."""
        self._others: set[int] = set()

    @property
    def refused_count(self) -> int:
        """How many different names were refused; at least so many, when they are very many."""
        return len(self._others)

    def admit(self, name: str) -> bool:
        """Return True if a name is known already or may become so: there is room for one more."""
        if name in self.known:
            return True
        if len(self.known) < self._most and len(name) <= MAX_NAME:
            self.known.add(name)
            return True
        if len(self._others) < _COUNTED:
            self._others.add(hash(name))
        return False


class Bounds:
    """How much of one training is taken in, for as long as it is watched."""

    def __init__(self) -> None:
        self.phases = KnownNames(MAX_PHASES)
        self.metrics = KnownNames(MAX_METRICS)

    def note(self) -> str | None:
        """Return a note on the left-out parts; None if nothing is left out."""
        parts = [
            f"{most} {what} and {names.refused_count:,} more"
            for what, most, names in (
                ("phases", MAX_PHASES, self.phases),
                ("metrics", MAX_METRICS, self.metrics),
            )
            if names.refused_count
        ]
        return f"it has {' and '.join(parts)}, which are left out" if parts else None

    def take(self, messages: Iterable[wire.FromTraining]) -> Iterator[wire.FromTraining]:
        """Yield the messages of a training without what goes beyond the limits."""
        for message in messages:
            match message:
                case wire.Steps():
                    self._steps(message)
                    yield message
                case wire.GpuTimes():
                    self._gpu_times(message)
                    yield message
                case wire.Memory():
                    if min(message.allocated_bytes, message.reserved_bytes) >= 0:
                        message.kept_bytes = {
                            phase[:MAX_NAME]: size
                            for phase, size in islice(message.kept_bytes.items(), MAX_PHASES)
                            if 0 < size < _LARGEST_COUNT
                        }
                        yield message
                case wire.Collectives():
                    message.counts = [
                        replace(
                            count, group=count.group[:MAX_NAME], operation=(count.operation or "")[:256] or None
                        )
                        for count in message.counts[:MAX_GROUPS]
                        if 0 <= count.enqueued <= _LARGEST_COUNT
                    ]
                    yield message
                case wire.Hello():
                    yield bounded_hello(message)
                case wire.Checkpoints():
                    message.saved = [one for one in message.saved[-MOST_SAVED:] if is_valid(one)]
                    yield message
                case wire.Overhead():
                    if 0 <= message.step_ns < _LARGEST_COUNT:
                        yield message
                case _:
                    _cut_down(message)
                    yield message

    def _steps(self, message: wire.Steps) -> None:
        """Cut it down; steps that no clock can have timed count as lost, as do those beyond the limit."""
        steps = message.steps
        over = max(0, len(steps) - MAX_STEPS)
        if over:
            steps = steps[over:]
            message.first_ordinal += over
        whole = [step for step in steps if step.host_ns >= 0 and step.started_unix_ns >= 0]
        message.lost = _bounded_count(message.lost + over + len(steps) - len(whole))
        message.steps = whole
        for step in whole:
            if step.interval_ns is not None and step.interval_ns < 0:
                step.interval_ns = None
            if step.tokens is not None:
                step.tokens = _amount(step.tokens)
            if step.samples is not None:
                step.samples = _amount(step.samples)
            if step.tokens_in is not None:
                step.tokens_in = _amount(step.tokens_in)
            if step.phases:
                known, admit = self.phases.known, self.phases.admit
                step.phases = [
                    phase
                    for phase in step.phases
                    if phase.host_ns >= 0 and (phase.name in known or admit(phase.name))
                ][:MAX_PHASES]
        admitted = self.metrics.admit
        message.metrics = {name: value for name, value in message.metrics.items() if admitted(name)}
        message.logged = [
            one for one in message.logged[-MAX_STEPS:] if admitted(one.name) and 0 <= one.step < _LARGEST_COUNT
        ]

    def _gpu_times(self, message: wire.GpuTimes) -> None:
        known = message.times[-MAX_STEPS:]
        message.times = [one for one in known if min(one.gpu_ns, one.host_paced_ns, one.idle_ns or 0) >= 0]


def _cut_down(message: wire.FromTraining) -> None:
    """Cut down messages that are always accepted."""
    match message:
        case wire.Outside():
            _outside(message)
        case wire.Arrivals():
            _arrivals(message)
        case wire.StalledAt():
            message.where = message.where[:MAX_WORDS]


def _arrivals(message: wire.Arrivals) -> None:
    """Cut it down to sensible lengths; stamps that no clock can have made are left out."""
    message.group, message.clock = message.group[:_LAUNCH_TEXT], message.clock[:_LAUNCH_TEXT]
    message.arrivals = message.arrivals[-MAX_STEPS:]
    for arrival in message.arrivals:
        arrival.stamps = [
            stamp
            for stamp in arrival.stamps[:MAX_STAMPS]
            if 0 <= stamp.host_ns < _LARGEST_TIME and (stamp.gpu_ns is None or abs(stamp.gpu_ns) < _LARGEST_TIME)
        ]
        waited = arrival.waited_host_ns, arrival.waited_gpu_ns
        arrival.waited_host_ns, arrival.waited_gpu_ns = (
            ns if ns is not None and 0 <= ns < _LARGEST_TIME else None for ns in waited
        )


def _outside(message: wire.Outside) -> None:
    """Cut it down to sensible lengths; times that cannot be are left out."""
    message.found, message.waited = _causes(message.found), _causes(message.waited)
    message.over_ns, message.samples = _bounded_count(message.over_ns), _bounded_count(message.samples)
    message.kept_after = _phases_before(message.kept_after, message.found)
    message.placed_after = _phases_before(message.placed_after, message.found)
    message.early = _causes(message.early)
    judged = message.judged_ns
    message.judged_ns = judged if judged is not None and 0 < judged < _LARGEST_COUNT else None
    message.sampled = [
        step for step in message.sampled[:MAX_CAUSES] if all(0 <= ns < _LARGEST_COUNT for ns in astuple(step))
    ]


def _causes(message: dict[str, int]) -> dict[str, int]:
    # A minute of messages is kept, and they name the same few lines: each text once.
    known = [(intern(what[:MAX_WORDS]), ns) for what, ns in message.items() if 0 < ns < _LARGEST_COUNT]
    return dict(known[:MAX_CAUSES])


def _phases_before(after: dict[str, str], found: dict[str, int]) -> dict[str, str]:
    return {intern(what): intern(phase[:MAX_WORDS]) for what, phase in after.items() if what in found}


def bounded_hello(message: wire.Hello) -> wire.Hello:
    """Return the training's hello with texts cut to sensible lengths; impossible numbers become absent."""
    texts = {}
    for name, most in _TEXTS.items():
        text = getattr(message, name)
        if text is not None:
            texts[name] = text[:most]
    return replace(
        message,
        **texts,
        pid=message.pid if 0 < message.pid < 1 << 31 else 0,
        rank=_place(message.rank),
        local_rank=_place(message.local_rank),
        world_size=_place(message.world_size),
        launch=_launch(message.launch),
        total_steps=None
        if message.total_steps is None or message.total_steps < 0
        else _bounded_count(message.total_steps),
        warmup_steps=_bounded_count(message.warmup_steps),
        kind_since=_bounded_count(message.kind_since),
        accumulation_steps=None
        if message.accumulation_steps is None
        else _bounded_count(message.accumulation_steps) or None,
        flops_per_token=message.flops_per_token if _is_amount(message.flops_per_token) else None,
        roles={name[:32]: at for name, at in list(message.roles.items())[:8] if 0 <= at < 1 << 31},
        started_at=message.started_at if _is_amount(message.started_at) else 0.0,
        engines=[engine[:32] for engine in message.engines[:16]],
    )


def _launch(message: wire.Launch) -> wire.Launch:
    """Return the same in a line: these texts become names."""
    return wire.Launch(
        **{name: printable(getattr(message, name), _LAUNCH_TEXT) for name in message.__struct_fields__}
    )


def _bounded_count(number: int) -> int:
    return min(max(0, number), _LARGEST_COUNT)


def _place(number: int | None) -> int | None:
    return number if number is not None and 0 <= number < _MOST_RANKS else None


def _amount(number: float | None) -> float | None:
    return number if number is not None and -_LARGEST_AMOUNT < number < _LARGEST_AMOUNT else None


def _is_amount(number: float | None) -> bool:
    return number is not None and math.isfinite(number) and number >= 0
