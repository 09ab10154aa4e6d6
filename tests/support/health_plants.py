"""Generate logged values of trainings with planted events (tests/data/health_plants/README.md).

python -m tests.support.health_plants [SEED]

`series(seed)` yields 1,000 series, half of them without an event; `public()` yields the curves of public
repositories; `mesh_plants.meshes(seed)` yields phase times of large meshes. The command prints what they hold.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tests.support.processes import REPOSITORY

DATA = REPOSITORY / "tests" / "data" / "health_plants"
COUNT = 1000
KINDS = ("nonfinite", "loss_spike", "grad_norm_jump", "loss_scale_collapse", "loss_stuck", "ranks_differ")
HEALTHY = (
    "plain", "lr_restart", "warmup_hump", "curriculum_ramp", "evaluation_mixed", "first_steps", "batch_noise",
    "plateau_at_end", "epochs", "rounded", "rank_jitter", "deep_scale_start",
)  # fmt: skip
WINDOW = 1000
SPIKE_SIGMA = 7.5
"""A planted spike exceeds the rolling mean of 1,000 values by 7 standard deviations: the spike score of OLMo 2."""
HEALTHY_SIGMA = 5.5
GRAD_CAP = 4.0
"""Most that a healthy gradient norm exceeds its local median; a planted jump is 8 to 100 times the median."""


@dataclass(frozen=True)
class Event:
    """One planted event, or one that may be reported without being an error."""

    kind: str
    metric: str
    step: int
    """The first logged step at which the event is visible."""
    until: int
    """The last step at which a report belongs to this event."""
    rank: int | None = None
    """None: all ranks, or no rank can be named."""


@dataclass(frozen=True)
class Series:
    """Values that one training logged."""

    name: str
    family: str
    features: tuple[str, ...]
    steps: np.ndarray
    """Training step of each logged value; shape (values,)."""
    values: dict[str, np.ndarray]
    """By metric ("loss", "grad_norm", "loss_scale"): shape (ranks, values)."""
    evaluations: tuple[np.ndarray, np.ndarray] | None
    """Steps and values of `eval_loss`; None if nothing is evaluated or the values are mixed into `loss`."""
    lr: np.ndarray | None
    log_every: int
    reduced: bool
    """Whether ranks log the all-reduced loss (equal) or their own."""
    truth: tuple[Event, ...]
    tolerated: tuple[Event, ...]
    """Events whose report is neither right nor false."""

    def healthy_values(self) -> int:
        """Return how many logged values lie outside each event, planted or tolerated."""
        covered = np.zeros(len(self.steps), bool)
        for event in (*self.truth, *self.tolerated):
            covered |= (self.steps >= event.step) & (self.steps <= event.until)
        return int((~covered).sum())


@dataclass
class _Draft:
    """A series while it is made."""

    rng: np.random.Generator
    family: str
    n: int
    log_every: int
    ranks: int
    reduced: bool
    sigma: float
    """Standard deviation of the batch noise, relative to the loss."""
    warm: int
    """Logged values of the warm-up."""
    lr: np.ndarray
    clean: np.ndarray
    values: dict[str, np.ndarray]
    truth: list[Event]
    tolerated: list[Event]
    features: list[str]
    evaluations: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def steps(self) -> np.ndarray:
        return (np.arange(self.n) + 1) * self.log_every

    def event(self, kind: str, metric: str, first: int, last: int, rank: int | None = None) -> Event:
        """Return an event by indices of logged values."""
        steps = self.steps
        return Event(kind, metric, int(steps[first]), int(steps[min(last, self.n - 1)]), rank)

    def place(self, room: int = 50) -> int:
        """Return an index after the warm-up that leaves `room` values after it."""
        low = min(max(WINDOW, self.warm + 100), self.n // 2)
        return int(self.rng.integers(low, max(self.n - room, low + 1)))


def _noise(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Heavy-tailed noise of standard deviation 1, clipped where the published criterion starts to count spikes."""
    drawn = rng.standard_t(6, shape) / np.sqrt(1.5)
    return np.clip(drawn, -HEALTHY_SIGMA, HEALTHY_SIGMA)


def _schedule(rng: np.random.Generator, n: int, warm: int, kind: str) -> np.ndarray:
    """Learning rate by logged value, at most 1."""
    t = np.arange(n)
    progress = np.clip((t - warm) / max(n - warm, 1), 0, 1)
    if kind == "restarts":
        cycles = int(rng.integers(2, 6))
        lr = 0.05 + 0.95 * (1 + np.cos(np.pi * (progress * cycles % 1))) / 2
    elif kind == "constant":
        lr = np.ones(n)
    elif kind == "linear":
        lr = 1 - 0.99 * progress
    elif kind == "steps":
        lr = 0.1 ** np.floor(progress * 3)
    else:
        lr = 0.05 + 0.95 * (1 + np.cos(np.pi * progress)) / 2
    return lr * np.clip((t + 1) / max(warm, 1), 0, 1)


def _trend(rng: np.random.Generator, family: str, n: int, lr: np.ndarray) -> np.ndarray:
    """Loss without batch noise."""
    t = np.arange(n, dtype=float)
    if family == "lm":
        start, floor, tau, alpha = (
            rng.uniform(9, 12),
            rng.uniform(1.7, 3),
            rng.uniform(30, 200),
            rng.uniform(0.4, 0.8),
        )
        return floor + (start - floor) * (1 + t / tau) ** -alpha
    if family == "vision":
        decay = rng.uniform(0.6, 1.5) + rng.uniform(4, 6) * (1 + t / rng.uniform(100, 500)) ** -0.6
        lowered = 0.15 * np.floor(np.log10(1 / np.maximum(lr, 1e-3)))
        return decay * (1 - lowered * (t > n / 4))
    if family == "finetune":
        return rng.uniform(0.5, 1.2) + rng.uniform(0.5, 2) * np.exp(-t / rng.uniform(20, 150))
    if family == "rl":
        walk = np.cumsum(rng.standard_normal(n)) / np.sqrt(n)
        return rng.uniform(0.3, 3) * np.exp(0.5 * walk)
    period = rng.uniform(80, 800)
    phase = 2 * np.pi * t / period + 0.6 * np.cumsum(rng.standard_normal(n)) / np.sqrt(period)
    return rng.uniform(0.7, 3) * (1 + rng.uniform(0.1, 0.4) * np.sin(phase))


SIZES = {"lm": (5000, 16000), "vision": (4000, 10000), "finetune": (1500, 4000), "rl": (3000, 9000),
         "gan": (4000, 9000)}  # fmt: skip
SIGMAS = {
    "lm": (0.01, 0.06),
    "vision": (0.03, 0.15),
    "finetune": (0.05, 0.3),
    "rl": (0.15, 0.3),
    "gan": (0.08, 0.3),
}


def _draft(rng: np.random.Generator, family: str, feature: str, kind: str) -> _Draft:
    n = int(rng.integers(*SIZES[family])) if feature != "first_steps" else int(rng.integers(30, 101))
    warm = int(np.clip(n * rng.uniform(0, 0.05), 5, 600))
    ranks = int(rng.choice([1, 1, 1, 2, 4, 8]))
    reduced = bool(rng.random() < 0.5)
    if kind == "ranks_differ" or feature == "rank_jitter":
        ranks, reduced = int(rng.choice([2, 4, 8])), True
    schedule = (
        "restarts" if feature == "lr_restart" else str(rng.choice(["cosine", "constant", "linear", "steps"]))
    )
    lr = _schedule(rng, n, warm, "cosine" if feature == "plateau_at_end" else schedule)
    low, high = SIGMAS[family]
    sigma = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    if kind == "loss_stuck":
        sigma = min(sigma, 0.1)
    draft = _Draft(
        rng, family, n, int(rng.choice([1, 1, 10, 50])), ranks, reduced, sigma, warm, lr,
        _trend(rng, family, n, lr), {}, [], [], [feature],
    )  # fmt: skip
    _shape_healthy(draft, feature)
    _fill(draft, feature, kind)
    return draft


def _shape_healthy(draft: _Draft, feature: str) -> None:
    """Change the trend as healthy trainings do."""
    rng, n, t = draft.rng, draft.n, np.arange(draft.n)
    if feature == "lr_restart":
        for at in np.flatnonzero(np.diff(draft.lr) > 0.3):
            rise, decay = rng.uniform(0.03, 0.2), rng.uniform(50, 300)
            after = np.maximum(t - at, 0)
            draft.clean *= 1 + (t > at) * rise * (1 - np.exp(-after / 15)) * np.exp(-after / decay)
    elif feature == "warmup_hump":
        middle = max(draft.warm, 20)
        draft.clean *= 1 + rng.uniform(0.1, 0.3) * np.exp(-(((t - middle) / (middle / 3)) ** 2))
    elif feature == "curriculum_ramp":
        at, length = draft.place(), rng.integers(100, 400)
        draft.clean *= 1 + rng.choice([-0.2, -0.1, 0.05, 0.1, 0.15]) * np.clip((t - at) / length, 0, 1)
    elif feature == "plateau_at_end":
        flat = int(n * rng.uniform(0.5, 0.7))
        draft.clean[flat:] = draft.clean[flat]
    elif feature == "epochs":
        for at in range(n // 4, n, n // 4):
            draft.clean[at:] *= rng.uniform(0.85, 0.97)


def _fill(draft: _Draft, feature: str, kind: str) -> None:
    """Add noise, gradient norm, loss scale and evaluations."""
    rng, n = draft.rng, draft.n
    noise = _noise(rng, (1 if draft.reduced else draft.ranks, n))
    if feature == "batch_noise":  # a share of batches that are from a harder source, on and on
        noise = np.clip(noise + 3.5 * (rng.random(noise.shape) < 0.03), -HEALTHY_SIGMA, HEALTHY_SIGMA)
    if draft.family == "rl" and rng.random() < 0.4 and kind != "loss_stuck":  # a policy loss around zero
        draft.features.append("signed")
        loss = draft.sigma * noise * np.median(draft.clean)
    else:
        loss = draft.clean * np.maximum(1 + draft.sigma * noise, 0.02)
    if not draft.reduced:
        loss = loss * rng.normal(1, 0.02, (draft.ranks, 1))
    draft.values["loss"] = np.repeat(loss, draft.ranks, 0) if draft.reduced else loss
    if feature == "rank_jitter":
        draft.values["loss"] *= 1 + 1e-7 * rng.standard_normal((draft.ranks, n))
    if feature == "rounded":
        draft.values["loss"] = np.round(draft.values["loss"], 2)
    if kind == "grad_norm_jump" or rng.random() < 0.75:
        _grad_norm(draft)
    if kind == "loss_scale_collapse" or feature == "deep_scale_start" or rng.random() < 0.3:
        _loss_scale(draft, feature)
    if feature == "evaluation_mixed" or rng.random() < 0.2:
        _evaluations(draft, mixed=feature == "evaluation_mixed" and rng.random() < 0.5)


def _grad_norm(draft: _Draft) -> None:
    rng, n, t = draft.rng, draft.n, np.arange(draft.n)
    spread = rng.uniform(0.05, 0.35)
    level = rng.uniform(0.1, 3) * (1 + rng.uniform(2, 15) * np.exp(-t / rng.uniform(5, max(draft.warm / 3, 6))))
    level = level * np.linspace(1, rng.uniform(0.7, 2), n)
    ratio = np.exp(spread * np.clip(rng.standard_normal(n), -4, 4))
    ratio[rng.random(n) < 0.001] *= rng.uniform(1.5, 2.5)
    mean = np.exp(spread**2 / 2)
    cap = min(GRAD_CAP, mean + HEALTHY_SIGMA * mean * np.sqrt(np.expm1(spread**2)))
    draft.values["grad_norm"] = np.repeat((level * np.minimum(ratio, cap))[None], draft.ranks, 0)


def _loss_scale(draft: _Draft, feature: str) -> None:
    """A GradScaler: halved at an overflow, doubled after an interval without one."""
    rng, n = draft.rng, draft.n
    interval = max(int(rng.choice([2000, 2000, 1000, 200])) // draft.log_every, 20)
    deep = feature == "deep_scale_start"
    power = 24 if deep else 16
    ceiling = int(rng.integers(12, 17))
    log2 = np.empty(n)
    position, overflows = 0, []
    while power > ceiling and position < n:  # the first steps find the scale
        log2[position : position + 1] = power
        power -= 1
        overflows.append(position)
        position += 1
    while position < n:
        quiet = int(interval * rng.uniform(0.1, 1)) if power > ceiling else interval
        log2[position : position + quiet] = power
        position += quiet
        if power > ceiling and position < n:
            power -= 1
            overflows.append(position)
        else:
            power += 1
    draft.values["loss_scale"] = np.repeat(2.0 ** log2[None], draft.ranks, 0)
    if "grad_norm" in draft.values and rng.random() < 0.5:  # clip_grad_norm_ returns inf at an overflow
        draft.features.append("overflow_norm_inf")
        for at in overflows:
            draft.values["grad_norm"][:, at] = np.inf
            draft.tolerated.append(draft.event("nonfinite", "grad_norm", at, at))


def _evaluations(draft: _Draft, mixed: bool) -> None:
    rng, every = draft.rng, max(draft.n // int(draft.rng.integers(5, 40)), 10)
    at = np.arange(every - 1, draft.n, every)
    gap = rng.uniform(1, 4) * draft.sigma  # below the 5.5 sigma of batch noise
    values = draft.clean[at] * (1 + min(gap, 0.25))
    if not mixed or "signed" in draft.features:
        draft.evaluations = (draft.steps[at], values)
        return
    draft.features.append("mixed")
    draft.values["loss"][:, at] = values


# Planted events


def _criterion(values: np.ndarray, at: int) -> float:
    """Least value at `at` that the spike score counts, with a margin."""
    before = values[max(at - WINDOW, 0) : at]
    before = before[np.isfinite(before)]
    return float(before.mean() + SPIKE_SIGMA * max(before.std(), 1e-3 * abs(before.mean())))


def _plant_nonfinite(draft: _Draft) -> None:
    rng = draft.rng
    metric = str(
        rng.choice([name for name in ("loss", "loss", "grad_norm", "loss_scale") if name in draft.values])
    )
    at, length = draft.place(), int(rng.choice([1, 3, 20, draft.n]))
    value = (
        float(rng.choice([np.nan, np.inf])) if metric != "loss" else float(rng.choice([np.nan, np.nan, np.inf]))
    )
    rank = int(rng.integers(draft.ranks)) if metric == "loss" and not draft.reduced and draft.ranks > 1 else None
    draft.values[metric][slice(None) if rank is None else rank, at : at + length] = value
    draft.truth.append(draft.event("nonfinite", metric, at, at + length + 20, rank))
    if metric == "loss" and "grad_norm" in draft.values:
        draft.values["grad_norm"][:, at : at + length] = value
        draft.tolerated.append(draft.event("nonfinite", "grad_norm", at, at + length + 20))
    for kind, name in (("loss_spike", "loss"), ("grad_norm_jump", "grad_norm"), ("loss_stuck", "loss")):
        if name in draft.values:
            draft.tolerated.append(draft.event(kind, name, at, at + length + 20))


def _plant_spike(draft: _Draft) -> None:
    rng, n = draft.rng, draft.n
    loss = draft.values["loss"]
    spots = sorted(draft.place() for _ in range(int(rng.integers(1, 4))))
    spots = [at for index, at in enumerate(spots) if index == 0 or at - spots[index - 1] > WINDOW + 400]
    rank = int(rng.integers(draft.ranks)) if not draft.reduced and draft.ranks > 1 and rng.random() < 0.3 else None
    rows = range(draft.ranks) if rank is None else [rank]
    for at in spots:
        shape = str(
            rng.choice(["single", "decay", "decay", "diverge"] if at == spots[-1] else ["single", "decay"])
        )
        length = {"single": 1, "decay": int(rng.integers(5, 150)), "diverge": n - at}[shape]
        after = np.arange(min(length, n - at))
        fall = np.exp(-3 * after / max(length, 1)) if shape == "decay" else np.ones(len(after))
        times = rng.uniform(1.05, 3)
        for row in rows:
            base = loss[row, at : at + len(after)]
            mean = loss[row, max(at - WINDOW, 0) : at].mean()
            height = (_criterion(loss[row], at) - mean) * times
            loss[row, at : at + len(after)] = np.maximum(base, 0) + height * fall + (mean - min(base[0], mean))
        last = at + len(after) + (100 if shape != "diverge" else 0)
        draft.truth.append(draft.event("loss_spike", "loss", at, last, rank))
        if "grad_norm" in draft.values:
            draft.values["grad_norm"][:, at : at + len(after)] *= 1 + rng.uniform(0, 12) * fall
            draft.tolerated.append(draft.event("grad_norm_jump", "grad_norm", at, last))


def _plant_grad_norm(draft: _Draft) -> None:
    rng, n = draft.rng, draft.n
    norm = draft.values["grad_norm"]
    at = draft.place(150)
    shape = str(rng.choice(["single", "burst", "level"]))
    length = {"single": 1, "burst": int(rng.integers(3, 40)), "level": n - at}[shape]
    before = norm[0, max(at - WINDOW, 0) : at]
    before = before[np.isfinite(before)]
    factor = max(float(np.exp(rng.uniform(np.log(8), np.log(15 if shape == "level" else 100)))),
                 _criterion(norm[0], at) / float(np.median(before)))  # fmt: skip
    finite = np.where(np.isfinite(norm[:, at : at + length]), norm[:, at : at + length], np.median(before))
    norm[:, at : at + length] = finite * factor
    norm[:, at] = np.maximum(norm[:, at], np.median(before) * factor)
    draft.truth.append(draft.event("grad_norm_jump", "grad_norm", at, at + length + 20))


def _plant_collapse(draft: _Draft) -> None:
    rng, n = draft.rng, draft.n
    scale = draft.values["loss_scale"]
    at = draft.place(150)
    a_value = int(rng.choice([1, 2])) if draft.log_every == 1 else int(rng.integers(2, 7))
    start, floor = float(np.log2(scale[0, at])), float(rng.choice([0, 0, -2, -10]))
    path = np.maximum(start - a_value * (1 + np.arange(n - at)), floor)
    down = int(np.argmax(path == floor))
    back = down + int(rng.integers(30, 300))
    if rng.random() < 0.4:  # the run recovers: doubled again after intervals
        path[back:] = np.minimum(floor + np.arange(max(len(path) - back, 0)) // 20, start)
    scale[:, at:] = 2.0**path
    last = at + back + 100
    draft.truth.append(draft.event("loss_scale_collapse", "loss_scale", at, last))
    for kind, metric in (("nonfinite", "grad_norm"), ("grad_norm_jump", "grad_norm")):
        if metric in draft.values:
            draft.tolerated.append(draft.event(kind, metric, at, at + down + 1))
    if "grad_norm" in draft.values:
        draft.values["grad_norm"][:, at : at + down + 1] = float(rng.choice([np.inf, np.nan]))


def _plant_stuck(draft: _Draft) -> None:
    rng, n = draft.rng, draft.n
    loss = draft.values["loss"]
    shape = str(rng.choice(["exact", "exact", "tiny", "tiny", "collapsed", "never"]))
    draft.features.append(shape)
    if shape == "never":
        loss[:] = np.log(rng.choice([2, 1000, 32000, 50257, 128256])) * (1 + 0.004 * _noise(rng, (1, n)))
        draft.truth.append(draft.event("loss_stuck", "loss", 0, n))
        return
    at = int(rng.integers(n // 4, n - max(400, n // 5)))
    if shape == "exact":
        loss[:, at:] = loss[:, at : at + 1]
    elif shape == "tiny":
        loss[:, at:] = loss[:, at : at + 1] * (1 + 1e-6 * _noise(rng, (1, n - at)))
    else:
        loss[:, at:] = np.log(32000) * (1 + 0.002 * _noise(rng, (1, n - at)))
        draft.tolerated.append(draft.event("loss_spike", "loss", at, n))
    draft.truth.append(draft.event("loss_stuck", "loss", at, n))


def _plant_differ(draft: _Draft) -> None:
    rng, n = draft.rng, draft.n
    loss = draft.values["loss"]
    at = int(rng.integers(max(150, draft.warm), n - 200))
    size = float(10.0 ** rng.uniform(-4, -0.7))
    if rng.random() < 0.25 or draft.ranks == 2:  # each rank differs, or one of two: no rank can be named
        rows, rank = np.arange(1 if draft.ranks == 2 else 0, draft.ranks), None
    else:
        rank = int(rng.integers(draft.ranks))
        rows = np.array([rank])
    drift = np.abs(1 + 0.3 * rng.standard_normal((len(rows), n - at))) * rng.choice([-1, 1], (len(rows), 1))
    drift *= 1 + 0.2 * np.arange(len(rows))[:, None]
    loss[rows, at:] *= 1 + size * drift
    draft.truth.append(draft.event("ranks_differ", "loss", at, n, rank))


PLANT = {"nonfinite": _plant_nonfinite, "loss_spike": _plant_spike, "grad_norm_jump": _plant_grad_norm,
         "loss_scale_collapse": _plant_collapse, "loss_stuck": _plant_stuck,
         "ranks_differ": _plant_differ}  # fmt: skip


def series(seed: int) -> Iterator[Series]:
    """Yield 1,000 series: even numbers are healthy, odd ones have the kinds in turn."""
    families = list(SIZES)
    for index in range(COUNT):
        rng = np.random.default_rng([seed, index])
        half = index // 2
        healthy = index % 2 == 0
        kind = "" if healthy else KINDS[half % len(KINDS)]
        feature = HEALTHY[half % len(HEALTHY)] if healthy else "planted"
        family = families[int(rng.choice(5, p=[0.4, 0.15, 0.2, 0.15, 0.1]))]
        draft = _draft(rng, family, feature, kind)
        if kind:
            PLANT[kind](draft)
        has_lr = feature == "lr_restart" or rng.random() < 0.85
        yield Series(
            f"{index:03d}-{family}-{kind or feature}", family, tuple(draft.features), draft.steps, draft.values,
            draft.evaluations, draft.lr * 10.0 ** rng.uniform(-5, -3) if has_lr else None, draft.log_every,
            draft.reduced, tuple(draft.truth), tuple(draft.tolerated),
        )  # fmt: skip


def public() -> Iterator[Series]:
    """Yield the curves of public repositories, judged by hand."""
    for curve in json.loads(gzip.decompress((DATA / "public.json.gz").read_bytes())):
        steps = np.array(curve["steps"])
        values = {name: np.array([[float(value) for value in row]]) for name, row in curve["values"].items()}
        events = {
            part: tuple(Event(kind, metric, first, last) for kind, metric, first, last in curve[part])
            for part in ("truth", "tolerated")
        }
        lr = None if curve["lr"] is None else np.array(curve["lr"])
        yield Series(
            curve["source"], curve["family"], ("public",), steps, values, None, lr, curve["log_every"], True,
            events["truth"], events["tolerated"],
        )  # fmt: skip


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    events: Counter[str] = Counter()
    healthy = trained = count = 0
    for made in series(seed):
        count += 1
        healthy += made.healthy_values()
        trained += made.healthy_values() * made.log_every
        events.update(event.kind for event in made.truth)
    print(f"{count} series, {healthy:,} healthy logged values of {trained:,} steps, events: {dict(events)}")


if __name__ == "__main__":
    main()
