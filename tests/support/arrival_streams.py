"""What the ranks of a job stamp, made of measured jitter: of how long equal ranks compute in a step.

Ranks of one job do the same work and meet at the end of each step. How long each takes for its part is drawn from
tests/data/arrivals.npz, stretches of steps at a time, so that what lasts there lasts here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from collectors.trainings.arrivals import StepStamps, compare_arrivals
from llmtop.model.snapshot import Alert, Host, Rank, Snapshot
from llmtop.protocol import wire
from llmtop.rules.engine import Rules
from tests.support.data import DATA

MS = 1_000_000
STRETCH = 16
SEGMENTS = 8
"""Parts of a step of FSDP, after each of which ranks wait for each other."""
POINTS = ("forward", "backward", "first_gradient", "last_gradient", "end")
_MEASURED = np.load(DATA / "arrivals.npz")


@dataclass
class Plant:
    """What one rank does beside the others' work, from a step on. Times in ms."""

    rank: int
    before: Callable[[np.random.Generator], float] = lambda _random: 0.0
    """What it does before its forward."""
    factor: Callable[[np.random.Generator], float] = lambda _random: 1.0
    """How many times as long it takes to compute."""
    extra: float = 0.0
    """What it computes more in its forward."""
    since: int = 0


PLANTS: dict[str, Callable[[int], Plant]] = {
    "extra compute": lambda since: Plant(1, extra=25.0, since=since),
    "sleep before forward": lambda since: Plant(1, before=lambda _: 30.0, since=since),
    "slow data": lambda since: Plant(1, before=lambda random: random.uniform(10.0, 60.0), since=since),
    "slow clock": lambda since: Plant(1, factor=lambda _: 1.4, since=since),
    "memory-bound neighbour": lambda since: Plant(1, factor=lambda random: random.uniform(1.2, 2.2), since=since),
}


@dataclass
class Job:
    """Ranks that train together, beside a monitor that looks after every few steps."""

    ranks: int = 2
    plant: Plant | None = None
    seed: int = 0
    jitter: float = 1.0
    """How much of what was measured on a busy machine."""
    sharded: bool = False
    """Whether they wait for each other all over the step, as under FSDP."""
    gpu: bool = False
    communication_ms: float = 5.0
    """From the last gradient of all to the end."""
    offsets_ms: tuple[float, ...] = ()
    """Of the ranks' clocks, which are then different ones."""
    indices: tuple[int, ...] = ()
    """What each rank adds to the number of a step."""
    on_host_clock: bool = True
    step: int = 0
    now_ms: float = 1e6
    alerts: list[Alert] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.rules, self.stamped = Rules(), [StepStamps() for _ in range(self.ranks)]
        self.lengths: list[float] = []
        self._work = [self._jittered() for _ in range(self.ranks)]

    def run(self, steps: int, every: int = 5) -> Iterator[list[Alert]]:
        """The alerts, after every so many steps."""
        for _ in range(steps):
            self._one_step()
            if self.step % every == 0:
                yield self.look()

    def look(self) -> list[Alert]:
        """What the monitor says now."""
        told = [(self.rank(place), stamped) for place, stamped in enumerate(self.stamped)]
        ranks = tuple(compare_arrivals(told))
        snapshot = Snapshot(time=self.now_ms / 1e3, host=Host(name="node"), ranks=ranks)
        self.alerts = list(self.rules.apply(snapshot).alerts)
        self.figures = ranks
        return self.alerts

    def first_named(self, steps: int) -> tuple[int, int] | None:
        """The first rank that is accused within so many steps, and after how many it was."""
        begun = self.step
        for alerts in self.run(steps):
            for alert in alerts:
                if alert.id == "straggler":
                    assert alert.pid == 100 + alert.evidence["rank"]
                    return alert.evidence["rank"], self.step - begun
        return None

    def rank(self, place: int) -> Rank:
        """What the monitor knows of one rank, without its arrivals."""
        length = float(np.median(self.lengths[-50:])) / 1e3
        return Rank(
            pid=100 + place, host=f"node{place if self.offsets_ms else 0}", job="run", rank=place,
            world_size=self.ranks, step=self.step, step_seconds=length, step_seconds_p50=length, arrivals=(),
            last_step_at=self.now_ms / 1e3, gpu_uuid=f"GPU-{place}" if self.gpu else None,
        )  # fmt: skip

    def _jittered(self) -> Iterator[tuple[float, float, float]]:
        """Milliseconds from forward to backward and to the first and the last gradient."""
        measured = _MEASURED["ddp"]
        own = (measured - measured[:, :, :1])[:, :, 1:4]
        usual = np.median(own.reshape(-1, 3), axis=0)
        # What slowed both of them down at once is left out: only how they differ makes one the last.
        apart = (own - own.mean(axis=1, keepdims=True)) * np.sqrt(2)
        while True:
            begin, place = int(self.random.integers(len(own) - STRETCH)), int(self.random.integers(2))
            for row in apart[begin : begin + STRETCH, place]:
                yield tuple(np.maximum.accumulate(np.maximum(usual + self.jitter * row, 0.0)))

    def _one_step(self) -> None:
        begun, plants = self.now_ms, [self._planted(place) for place in range(self.ranks)]
        parts = [np.array(next(work)) * factor for work, (_, factor, _) in zip(self._work, plants, strict=True)]
        came = [begun + before for before, _, _ in plants]
        extra = [more for _, _, more in plants]
        if self.sharded:
            stamps, waited, end = self._sharded(came, parts, extra)
        else:
            stamps = [
                [at, *(at + more + part)] for at, part, more in zip(came, parts, extra, strict=True)
            ]  # forward, backward, first and last gradient
            end = max(one[-1] for one in stamps) + self.communication_ms
            waited = [0.0] * self.ranks
        for place, one in enumerate(stamps):
            self._stamp(place, [*one, end], waited[place])
        end = float(end)
        self.lengths.append(end - begun)
        self.now_ms = end
        self.step += 1

    def _sharded(
        self, came: list[float], parts: list[np.ndarray], extra: list[float]
    ) -> tuple[list[list[float]], list[float], float]:
        """Half of the segments are the forward's; what one computes more is done before the last of these."""
        at, waited, stamps = list(came), [0.0] * self.ranks, [[one] for one in came]
        for segment in range(SEGMENTS):
            if segment == SEGMENTS // 2:
                for place in range(self.ranks):
                    at[place] += extra[place]
                    stamps[place].append(at[place])
            together = max(at) + self.communication_ms / SEGMENTS
            for place in range(self.ranks):
                waited[place] += together - at[place]
                at[place] = together + parts[place][-1] / SEGMENTS
        return stamps, [one + max(at) - mine for one, mine in zip(waited, at, strict=True)], max(at)

    def _planted(self, place: int) -> tuple[float, float, float]:
        plant = self.plant
        if plant is None or plant.rank != place or self.step < plant.since:
            return 0.0, 1.0, 0.0
        return plant.before(self.random), plant.factor(self.random), plant.extra

    def _stamp(self, place: int, times_ms: list[float], waited_ms: float) -> None:
        points = ("forward", "backward", "end") if self.sharded else POINTS
        offset = self.offsets_ms[place] if self.offsets_ms else 0.0
        own = [round((at + offset) * MS) for at in times_ms]
        # The host of a GPU runs ahead of it by what it likes.
        host = [at - round(self.random.uniform(0, 30) * MS) for at in own] if self.gpu else own
        zero = 0 if self.on_host_clock else own[0]
        stamps = [
            wire.ArrivalStamp(point, by_host, at - zero if self.gpu else None)
            for point, by_host, at in zip(points, host, own, strict=True)
        ]
        waited = round(waited_ms * MS) if self.sharded else None
        index = self.step + (self.indices[place] if self.indices else 0)
        arrival = wire.Arrival(
            index, stamps, self.on_host_clock, None if self.gpu else waited, waited if self.gpu else None
        )
        clock = f"boot{place if self.offsets_ms else 0}"
        self.stamped[place].add(wire.Arrivals(arrivals=[arrival], group="all", clock=clock))
