"""Situations of one node over minutes, as snapshots, for the live rules and the rules in Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from llmtop.model.snapshot import Gpu, Host, Phase, Rank, Snapshot, Step
from llmtop.model.stall_thresholds import STALLED_SECONDS, STALLED_STEPS

TICK_SECONDS = 5.0
BASE: dict[str, float] = {
    "util_pct": 99.0,
    "mem_util_pct": 45.0,
    "sm_active_pct": 88.0,
    "tensor_active_pct": 40.0,
    "dram_active_pct": 40.0,
    "power_share": 0.9,
    "temperature_c": 62.0,
}
IDLE: dict[str, float] = {
    "util_pct": 0.0,
    "mem_util_pct": 0.0,
    "sm_active_pct": 0.0,
    "tensor_active_pct": 0.0,
    "dram_active_pct": 0.0,
    "power_share": 0.11,
    "temperature_c": 33.0,
}
SPINNING = {**IDLE, "util_pct": 100.0, "sm_active_pct": 1.0, "power_share": 0.17, "temperature_c": 41.0}


@dataclass
class Card:
    """A GPU, with the values around which its own vary."""

    values: dict[str, float]
    model: str = "NVIDIA H200"
    limit: float = 700.0
    has_activity: bool = True
    reasons: tuple[str, ...] = ()


@dataclass
class Training:
    """One job on this node: equal ranks, but for what is planted."""

    job: str
    gpus: tuple[int, ...]
    step: float
    first_pid: int = 100
    slow: int | None = None
    slow_share: float = 0.0
    """Of the step, by which one rank computes longer."""
    noise: float = 0.01
    hangs_at: float | None = None
    paused_at: float | None = None
    """Seconds after the beginning."""
    checkpoints: tuple[float, float] | None = None
    """Every so many seconds the first rank writes for so many seconds, and the others wait."""
    restarts_at: float | None = None
    down: float = 60.0
    ended: float = 0.0
    """When the last step ended."""
    index: int = 0
    pauses_until: float = field(default=-1.0)


@dataclass
class Situation:
    """What a node holds, and for how long it is watched."""

    kind: str
    minutes: int
    cards: list[Card]
    trainings: list[Training]

    def snapshots(self, rng: np.random.Generator) -> Iterator[Snapshot]:
        """Yield a snapshot every five seconds, from 15 s on."""
        now = 15.0
        for training in self.trainings:
            training.ended = now
        while now <= 60.0 * self.minutes:
            ranks = [rank for training in self.trainings for rank in _ranks(training, now, rng)]
            gpus = tuple(
                _gpu(number, card, self._is_hung(number, now), rng) for number, card in enumerate(self.cards)
            )
            yield Snapshot(time=now, host=Host(name="node"), gpus=gpus, ranks=tuple(ranks))
            now += TICK_SECONDS

    def _is_hung(self, number: int, now: float) -> bool:
        return any(
            one.hangs_at is not None and now >= one.hangs_at and number in one.gpus for one in self.trainings
        )


def _gpu(number: int, card: Card, hung: bool, rng: np.random.Generator) -> Gpu:
    values = SPINNING if hung else card.values
    shaken = {name: max(0.0, value * (1 + 0.01 * rng.standard_normal())) for name, value in values.items()}
    percents = {name: min(value, 100.0) for name, value in shaken.items() if name.endswith("_pct")}
    if not card.has_activity:
        percents = {name: value for name, value in percents.items() if name in ("util_pct", "mem_util_pct")}
    return Gpu(
        index=number,
        uuid=f"GPU-{number}",
        name=card.model,
        power_limit_watts=card.limit,
        power_watts=card.limit * shaken["power_share"],
        temperature_c=shaken["temperature_c"],
        clock_event_reasons=card.reasons,
        sm_clock_mhz=1200.0 if card.reasons else 1980.0,
        sm_clock_max_mhz=1980.0,
        **percents,
    )


def _ranks(training: Training, now: float, rng: np.random.Generator) -> list[Rank]:
    began, pid = 15.0, training.first_pid
    if training.restarts_at is not None and now >= training.restarts_at:
        began, pid = training.restarts_at + training.down, training.first_pid + 50
        if now < began:
            return []
        if training.ended < began:
            training.ended, training.index = began, 0
    made = _steps(training, now, rng)
    usual = training.step
    quiet = now - training.ended
    found = []
    for place, gpu in enumerate(training.gpus):
        works = place == 0 and now < training.pauses_until
        worked = now if works else None
        lively = 0.0 if works else quiet
        state = "stalled" if lively > max(STALLED_SECONDS, STALLED_STEPS * usual) else "running"
        if training.paused_at is not None and now >= training.paused_at:
            state = "paused"
        found.append(
            Rank(
                pid=pid + place,
                host="node",
                rank=place,
                world_size=len(training.gpus),
                job=training.job,
                uid=1000,
                command="train.py",
                gpu_uuid=f"GPU-{gpu}",
                step=training.index,
                step_seconds=usual,
                step_seconds_p50=usual if training.index else None,
                last_step_at=training.ended if training.index else None,
                last_work_at=worked,
                attached_at=began,
                state=state,
                new_steps=tuple(steps[place] for steps in made),
            )
        )
    return found


def _steps(training: Training, now: float, rng: np.random.Generator) -> list[list[Step]]:
    """The steps that end until now, each of all ranks."""
    made = []
    while True:
        started = training.ended
        if training.hangs_at is not None and started >= training.hangs_at:
            return made
        if training.paused_at is not None and started >= training.paused_at:
            return made
        if training.checkpoints is not None:
            every, seconds = training.checkpoints
            turn = int(started // every)
            if turn and started - turn * every < training.step and training.pauses_until < turn * every:
                training.pauses_until = started + seconds
        if now < training.pauses_until:
            return made
        started = max(started, training.pauses_until)
        length = training.step * (1 + training.noise * rng.standard_normal())
        if started + length > now:
            return made
        made.append(
            [_step(training, place, training.ended, started + length, rng) for place in range(len(training.gpus))]
        )
        training.ended = started + length
        training.index += 1


def _step(training: Training, place: int, since: float, ended: float, rng: np.random.Generator) -> Step:
    whole = ended - since
    compute = training.step * 0.4 * (1 + 0.002 * rng.standard_normal())
    # In forward: a rank that is longer in backward alone is no straggler for the live rule.
    slower = training.step * training.slow_share if place == training.slow else 0.0
    times = {"forward": compute / 3 + slower, "backward": 2 * compute / 3}
    times["all_reduce"] = max(min(whole, training.step) - compute - slower, 0.0)
    return Step(
        index=training.index,
        started_at=since,
        seconds=whole,
        interval_seconds=whole,
        gpu_seconds=whole,
        gpu_idle_seconds=0.0,
        phases=tuple(Phase(name=name, host_seconds=one, gpu_seconds=one) for name, one in times.items()),
    )


def _training(rng: np.random.Generator, count: int, **more: object) -> Training:
    return Training(
        **{"job": "train.py", "gpus": tuple(range(count)), "step": float(rng.uniform(0.8, 4.0)), **more}
    )


def _cards(number: int, **values: float) -> list[Card]:
    return [Card({**BASE, **values}) for _ in range(number)]


def _healthy(rng: np.random.Generator) -> Situation:
    number = int(rng.integers(2, 5))
    return Situation("healthy", 7, _cards(number, power_share=rng.uniform(0.5, 1.0)), [_training(rng, number)])


def _memory_bound(rng: np.random.Generator) -> Situation:
    """Memory traffic of 10 to 92 %, at 18 to 60 % of the power limit: decoding, and less."""
    number = int(rng.integers(1, 4))
    cards = _cards(
        number,
        sm_active_pct=rng.uniform(10, 95),
        tensor_active_pct=rng.uniform(0, 30),
        dram_active_pct=rng.uniform(*((10, 92) if rng.random() < 0.5 else (60, 92))),
        mem_util_pct=rng.uniform(20, 90),
        power_share=rng.uniform(0.18, 0.6),
    )
    cards[0].has_activity = bool(rng.random() < 0.8)
    return Situation("memory-bound", 7, cards, [])


def _spinning(rng: np.random.Generator) -> Situation:
    cards = _cards(3)
    cards[int(rng.integers(3))].values = {
        **SPINNING,
        "sm_active_pct": rng.uniform(0.1, 60),
        "dram_active_pct": rng.uniform(0, 25),
        "power_share": rng.uniform(0.12, 0.45),
        "mem_util_pct": rng.uniform(0, 15),
    }
    cards[0].has_activity = bool(rng.random() < 0.7)
    return Situation("spinning", 7, cards, [])


def _throttled(rng: np.random.Generator) -> Situation:
    cards = _cards(4, temperature_c=rng.uniform(60, 75), power_share=rng.uniform(0.4, 1.0))
    hot = cards[int(rng.integers(4))]
    hot.reasons, hot.values["temperature_c"] = ("hw_thermal_slowdown",), rng.uniform(86, 94)
    return Situation("throttled", 7, cards, [_training(rng, 4)])


def _long_steps(rng: np.random.Generator) -> Situation:
    training = _training(rng, 2, step=float(rng.uniform(90, 200)))
    if rng.random() < 0.3:
        training.hangs_at = 18 * 60.0
        return Situation("long steps, hung", 40, _cards(2), [training])
    return Situation("steps of 150 s", 30, _cards(2), [training])


def _checkpoints(rng: np.random.Generator) -> Situation:
    training = _training(rng, 3, checkpoints=(float(rng.uniform(150, 250)), float(rng.uniform(15, 110))))
    return Situation("checkpoints", 10, _cards(3), [training])


def _restarts(rng: np.random.Generator) -> Situation:
    training = _training(rng, 2, restarts_at=float(rng.uniform(200, 360)), down=float(rng.uniform(30, 90)))
    return Situation("restarts", 10, _cards(2), [training])


def _two_jobs(rng: np.random.Generator) -> Situation:
    first = _training(rng, 2, job="a.py")
    second = _training(rng, 2, job="b.py", gpus=(2, 3), first_pid=300)
    broken = rng.random()
    if broken < 0.4:
        second.hangs_at = float(rng.uniform(150, 250))
    elif broken < 0.7:
        second.slow, second.slow_share = 1, float(rng.uniform(0.02, 0.3))
    return Situation("two jobs", 10, _cards(4), [first, second])


def _mixed(rng: np.random.Generator) -> Situation:
    small = Card({**BASE, "temperature_c": 78.0, "power_share": rng.uniform(0.5, 1)}, "NVIDIA L4", 72.0, False)
    low = Card({**SPINNING, "dram_active_pct": rng.uniform(0, 40)}, "NVIDIA A100-SXM4-80GB", 400.0)
    return Situation("mixed models", 7, [*_cards(2), small, low, Card(dict(IDLE), "NVIDIA L4", 72.0)], [])


def _half_idle(rng: np.random.Generator) -> Situation:
    working = int(rng.integers(1, 4))
    cards = [*_cards(working, temperature_c=rng.uniform(50, 75)), *(Card(dict(IDLE)) for _ in range(8 - working))]
    return Situation("half-idle", 7, cards, [_training(rng, working)])


def _hung(rng: np.random.Generator) -> Situation:
    number = int(rng.integers(1, 5))
    training = _training(rng, number, hangs_at=float(rng.uniform(100, 300)))
    if rng.random() < 0.3:
        training.paused_at, training.hangs_at = training.hangs_at, None
        return Situation("paused", 11, _cards(number), [training])
    return Situation("hung", 11, _cards(number), [training])


def _straggler(rng: np.random.Generator) -> Situation:
    number = int(rng.integers(2, 6))
    slow = _training(rng, number, slow=int(rng.integers(number)), slow_share=float(rng.uniform(0.01, 0.35)))
    return Situation("straggler", 8, _cards(number), [slow])


KINDS: tuple[Callable[[np.random.Generator], Situation], ...] = (
    _healthy,
    _memory_bound,
    _spinning,
    _throttled,
    _long_steps,
    _checkpoints,
    _restarts,
    _two_jobs,
    _mixed,
    _half_idle,
    _hung,
    _straggler,
)


def situation(number: int, seed: int) -> tuple[Situation, np.random.Generator]:
    """Return one situation of all kinds in turn, and the generator of random numbers for its snapshots."""
    rng = np.random.default_rng((seed, number))
    return KINDS[number % len(KINDS)](rng), rng
